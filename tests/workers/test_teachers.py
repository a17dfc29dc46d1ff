"""Teachers of finished rollouts: which tokens they score, and what happens to a rollout whose teacher does not answer."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vime.algorithm.distillation import HINT, is_taught, read_by_teacher
from vime.chat.agent_clock import AgentClock
from vime.chat.trace import Trace
from vime.chat.traffic import Traffic
from vime.config import (
    DistillationConfig,
    MethodConfig,
    RolloutConfig,
    RunConfig,
    ServedModelConfig,
    TeacherConfig,
    TeacherPlace,
    TeacherTerm,
)
from vime.errors import ContextFullError, ServerError
from vime.files.serialization import from_json, to_json
from vime.serving.endpoint import Endpoint
from vime.serving.scores import Scores
from vime.types import Prompt, Rollout, Sample, Sampling, StopReason, Turn
from vime.workers.teachers import MAX_REQUESTS, Teachers
from vime.workers.worker import RolloutWorker

PROMPT = Prompt(index=3, row=3, messages=[{"role": "user", "content": "go"}], ground_truth=["x"], dataset="sums")


class Teacher:
    """Gives token t after token s the logprob -(s + t / 1000), so that a score tells which two tokens it belongs to."""

    def __init__(self, *errors: Exception) -> None:
        self.asked: list[list[int]] = []
        self.errors: list[Exception] = [*errors]
        self.num_now = self.most_at_once = 0
        self.sessions, self.finished, self.versions = list[str](), list[str](), list[int]()

    async def score(
        self, token_ids: Any, *, num_likeliest: int, session_id: str, request_id: str, minimum_version: int = 0, **_: Any
    ) -> Scores:
        tokens = np.asarray(token_ids)
        self.asked.append(tokens.tolist())
        self.sessions.append(session_id)
        self.versions.append(minimum_version)
        self.num_now += 1
        self.most_at_once = max(self.most_at_once, self.num_now)
        await asyncio.sleep(0.001)
        self.num_now -= 1
        if self.errors:
            raise self.errors.pop()
        logprobs = -(tokens[:-1] + tokens[1:] / 1000).astype(np.float32)
        ids = np.tile(np.arange(num_likeliest, dtype=np.int32), (len(logprobs), 1)) + 10 * tokens[1:, None]
        return Scores(logprobs=logprobs, ids=ids, likeliest=np.repeat(logprobs[:, None], num_likeliest, 1))

    async def generate(self, token_ids: Any, **_: Any) -> Turn:
        return Turn(output_ids=[7, 2], logprobs=[-0.5, -0.25], weight_versions=[0, 0], finish_reason="stop")

    def finish(self, session_id: str) -> None:
        self.finished.append(session_id)


def sample(tokens: list[int], mask: list[int], **more: Any) -> Sample:
    return Sample(tokens=tokens, loss_mask=mask, rollout_log_probs=[-1.0] * len(mask), **more)


def rollout_of(*samples: Sample, rollout_id: int = 0, stop_reason: StopReason = StopReason.ANSWERED) -> Rollout:
    return Rollout(rollout_id=rollout_id, group_index=0, samples=list(samples), stop_reason=stop_reason, reward=1.0)


class Words:
    """A tokenizer whose chat template is one token, and each word another."""

    bos_token_id: int | None = None

    def apply_chat_template(self, messages: list[dict[str, str]], *, tokenize: bool) -> str:
        assert [message["role"] for message in messages] == ["system"]
        return f"<system> {messages[0]['content']}"

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [90 + number for number, _ in enumerate(text.split())]}


class Begun(Words):
    """Begins a text, or each turn of it, with the token that is its chat template."""

    bos_token_id = 90


def hint(row: Any, sample: Sample) -> str:
    assert row["question"] == "go"
    return "it is seven" if sample.seat != "blind" else ""


def broken_hint(row: Any, sample: Sample) -> str:
    raise ValueError("no such field")


async def teach(
    rollout: Rollout, teacher: Teacher, *, traffic: Traffic | None = None, tokenizer: type[Words] = Words, **own: Any
) -> Rollout:
    run = RunConfig()
    run.algorithm.distillation = DistillationConfig(**{"teachers": {"solver": TeacherConfig()}, **own})
    run.serving.models["solver"] = ServedModelConfig()
    about = {"traffic": traffic or Traffic(), "clock": AgentClock()}
    served: Any = SimpleNamespace(client=lambda name: teacher, tokenizer=lambda name: tokenizer(), **about)
    await Teachers(run, served).teach(rollout, prompt=PROMPT, session="s", version=7, trace=Trace())
    return rollout


async def test_only_what_the_student_sampled_has_columns_and_every_sequence_is_sent_once():
    teacher = Teacher()
    turns = sample([1, 2, 3, 4, 5, 6, 7, 8], [1, 0, 0, 1, 1, 0])
    branch, removed = sample([9, 4], [1], seat="helper"), sample([5, 6], [1], remove_sample=True)
    rollout = await teach(rollout_of(turns, branch, removed), teacher, term=TeacherTerm.loss, top_k=2)
    assert sorted(teacher.asked) == [[1, 2, 3, 4, 5, 6, 7], [9, 4]], "up to the last token that is trained"
    assert turns.columns["teacher"].tolist() == pytest.approx([-2.003, -5.006, -6.007])
    assert turns.columns["teacher_ids"].tolist() == [[30, 31], [60, 61], [70, 71]]
    assert branch.columns["teacher"].tolist() == pytest.approx([-9.004]) and not is_taught(removed)
    assert rollout.stop_reason is StopReason.ANSWERED and rollout.seconds["teacher"] > 0
    again = Rollout.from_dict(from_json(to_json(rollout.to_dict())))
    np.testing.assert_array_equal(again.samples[0].columns["teacher_ids"], turns.columns["teacher_ids"])


async def test_tokens_that_the_students_head_has_no_row_for_belong_to_the_rest():
    taught = sample([1, 102], [1])
    await teach(rollout_of(taught), Teacher(), term=TeacherTerm.loss, top_k=5)  # the student has 1,024 rows
    assert taught.columns["teacher_ids"].tolist() == [[1020, 1021, 1022, 1023, -1]]
    assert np.isneginf(taught.columns["teacher_logprobs"]).tolist() == [[False] * 4 + [True]]
    assert taught.columns["teacher_ids"].dtype == np.int32 and taught.columns["teacher_logprobs"].dtype == np.float32


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ServerError("solver gave no answer"), StopReason.SERVER_LOST),
        (ContextFullError("too long", "solver"), StopReason.REQUEST_REFUSED),
    ],
)
async def test_without_an_answer_a_rollout_leaves_the_batch_and_is_no_zero(error: Exception, reason: StopReason):
    rollout = await teach(rollout_of(sample([1, 2], [1]), sample([3, 4], [1])), Teacher(error))
    assert rollout.stop_reason is reason and "teacher" in rollout.error and str(error) in rollout.error
    assert not rollout.counting.trained and not rollout.counting.in_baseline
    assert {each.stop_reason for each in rollout.samples} == {reason} and rollout.reward == 1.0


async def test_rollouts_that_do_not_count_and_other_data_sets_and_seats_are_not_scored():
    teacher = Teacher()
    await teach(rollout_of(sample([1, 2], [1]), stop_reason=StopReason.SERVER_LOST), teacher)
    await teach(rollout_of(sample([1, 2], [1])), teacher, teachers={"solver": TeacherConfig(datasets=["words"])})
    assert not teacher.asked
    two = rollout_of(sample([1, 2], [1], seat="white"), sample([3, 4], [1], seat="black"))
    await teach(two, teacher, teachers={"solver": TeacherConfig(seats=["black"])})
    assert [is_taught(each) for each in two.samples] == [False, True]


async def test_a_hint_stands_in_front_of_the_sequence_for_the_teacher_alone():
    teacher = Teacher()
    own: dict[str, Any] = {"teachers": {"actor": TeacherConfig(hint=f"{__file__}:hint")}}
    taught, blind = sample([1, 2, 3, 4], [1, 0, 1]), sample([5, 6], [1], seat="blind")
    await teach(rollout_of(taught, blind), teacher, **own)
    assert sorted(teacher.asked) == [[5, 6], [90, 91, 92, 93, 1, 2, 3, 4]] and taught.tokens == [1, 2, 3, 4]
    assert taught.columns["teacher"].tolist() == pytest.approx([-1.002, -3.004])


@pytest.mark.parametrize("trainer", [{}, {"place": TeacherPlace.trainer, "decay": 0.9}])
async def test_a_token_that_begins_a_text_stays_the_first_and_is_there_once(trainer: dict[str, Any]):
    teacher = Teacher()
    own: dict[str, Any] = {"teachers": {"actor": TeacherConfig(hint=f"{__file__}:hint", **trainer)}}
    samples = [sample([90, 2, 3, 4], [1, 0, 1]), sample([90, 2, 90, 4], [1]), sample([5, 2, 90, 4], [1])]
    await teach(rollout_of(*samples), teacher, tokenizer=Begun, **own)
    of_text, of_turn, plain = ([90, 91, 92, 93, 2, 3, 4], [90, 91, 92, 93, 90, 2, 90, 4], [90, 91, 92, 93, 5, 2, 90, 4])
    if trainer:
        again = Rollout.from_dict(from_json(to_json(rollout_of(*samples).to_dict())))
        assert [read_by_teacher(each).tokens for each in again.samples] == [of_text, of_turn, plain]
        return
    assert sorted(teacher.asked) == sorted([of_text, of_turn, plain])
    assert samples[0].columns["teacher"].tolist() == pytest.approx([-93.002, -3.004])


async def test_the_trained_model_scores_with_its_groups_weights_outside_of_syncs():
    teacher, traffic, rollout = Teacher(), Traffic(), rollout_of(sample([1, 2], [1]))
    assert await traffic.hold(1.0)
    await teach(rollout, teacher, traffic=traffic)
    assert teacher.versions == [0], "a frozen model has no versions, and no sync stops it"
    own: dict[str, Any] = {"teachers": {"actor": TeacherConfig(hint=f"{__file__}:hint")}}
    waiting = asyncio.create_task(teach(rollout, teacher, traffic=traffic, **own))
    await asyncio.sleep(0.01)
    assert not waiting.done() and len(teacher.asked) == 1
    traffic.release()
    await waiting
    assert teacher.versions == [0, 7] and traffic.usage().num_calls == 1


async def test_a_teacher_in_the_trainer_is_not_asked_and_its_sequences_get_the_hint():
    teacher, trainer = Teacher(), {"place": TeacherPlace.trainer, "decay": 0.9, "hint": f"{__file__}:hint"}
    taught, blind = sample([1, 2, 3, 4, 5], [1, 0, 1, 0]), sample([5, 6], [1], seat="blind")
    rollout = await teach(rollout_of(taught, blind), teacher, teachers={"self": TeacherConfig(**trainer)})
    assert not teacher.asked and rollout.stop_reason is StopReason.ANSWERED and not is_taught(taught)
    assert [each.columns[HINT].tolist() for each in rollout.samples] == [[90, 91, 92, 93], []]
    again = Rollout.from_dict(from_json(to_json(rollout.to_dict())))
    for read, mask, each in zip(([90, 91, 92, 93, 1, 2, 3, 4], [5, 6]), ([1, 0, 1], [1]), again.samples):
        found = read_by_teacher(each)
        assert found.tokens == read and found.loss_mask == mask, "up to the last token that is trained"
    long = rollout_of(sample([1] * RunConfig().serving.models["actor"].max_model_len, [1]))
    await teach(long, teacher, teachers={"self": TeacherConfig(**trainer)})
    assert long.stop_reason is StopReason.REQUEST_REFUSED and "max_model_len" in long.error


async def test_a_hint_that_raises_costs_its_rollout():
    own: dict[str, Any] = {"teachers": {"actor": TeacherConfig(hint=f"{__file__}:broken_hint")}}
    rollout = await teach(rollout_of(sample([1, 2], [1])), Teacher(), **own)
    assert rollout.stop_reason is StopReason.GENERATE_RAISED and "no such field" in rollout.error and rollout.traceback


async def test_a_teacher_has_few_requests_at_a_time():
    teacher = Teacher()
    await teach(rollout_of(*(sample([1, number], [1]) for number in range(5 * MAX_REQUESTS))), teacher)
    assert len(teacher.asked) == 5 * MAX_REQUESTS and teacher.most_at_once == MAX_REQUESTS


async def generate(context: Any, sample: Sample, sampling: Sampling) -> list[Sample]:
    await context.models["actor"].complete([1, 2], max_tokens=4)
    return context.samples(sample)


async def reward(context: Any, samples: list[Sample]) -> float:
    return 0.5


@pytest.mark.parametrize("is_evaluation", [False, True])
async def test_a_worker_has_its_training_rollouts_taught_and_never_those_of_an_evaluation(
    checkpoints: dict[str, Path], is_evaluation: bool
):
    method = MethodConfig(name="m", generate=f"{__file__}:generate", reward=f"{__file__}:reward")
    config = RunConfig(method=method, rollout=RolloutConfig())
    config.algorithm.distillation = DistillationConfig(teachers={"solver": TeacherConfig(datasets=["sums"])})
    config.serving.models["solver"] = type(config.serving.models["actor"])()
    about = {"worker_urls": (), "tokenizer": str(checkpoints["untied"]), "max_model_len": 64}
    endpoints = {
        name: Endpoint(name=name, url="http://nowhere", model=name, trained=name == "actor", **about)
        for name in ("actor", "solver")
    }
    teacher = Teacher()
    worker = RolloutWorker(config, endpoints, make_client=lambda endpoint, serving: teacher)
    if is_evaluation:
        await worker.run_item(prompt=PROMPT, row="trained", temperature=1.0, version=0)
        assert not teacher.asked
        return
    group = await worker.run_group(prompt=PROMPT, slot=1, num_rollouts=2, version=0)
    assert teacher.asked == [[1, 2, 7, 2]] * 2
    assert all(is_taught(each.samples[0]) and each.reward == 0.5 for each in group.rollouts)
    teacher.errors.append(ServerError("gone"))
    lost = await worker.run_group(prompt=PROMPT, slot=2, num_rollouts=2, version=0)
    assert sorted(each.stop_reason.value for each in lost.rollouts) == ["answered", "server_lost"]
    assert set(teacher.sessions) <= set(teacher.finished), "routers no longer count them as load"
