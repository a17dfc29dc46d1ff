"""Whole rollouts with scripted models: rewards as those of slime's example, what is trained, stages and models of the roles."""

import asyncio
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import agentic.multi_agent.config  # registers the schema
from agentic.multi_agent.config import Role
from agentic.multi_agent.eval_log import eval_log
from agentic.multi_agent.generate import generate, judgment_of, single_turn, solution_of
from agentic.multi_agent.prompts import FULL, TINY
from agentic.multi_agent.reward import reward
from tests.completing import context_with
from vime.algorithm.batch import build_updates
from vime.algorithm.choice import algorithm_of
from vime.config import RunConfig
from vime.errors import ConfigError
from vime.model.load_tokenizer import load_tokenizer
from vime.preflight.compose import compose_run
from vime.preflight.validation import validate
from vime.rollout.context import Context, Sampling
from vime.trajectory.plain_text import render
from vime.types import Group, Prompt, Rollout, Sample, Status, StopReason, Turn
from vime.workers.isolation import check_samples
from vime.workers.own_verdict import set_reward

ACTOR = Path(agentic.multi_agent.config.__file__).parent / "tiny/actor"
RECORDED = [json.loads(line) for line in (Path(__file__).parent / "rollouts.jsonl").read_text().splitlines()]
"""Replies of all roles made by us, and the rewards that slime's code (624b824a) gives them: solvers, rewriters, selector."""
CAPTURED = [json.loads(line) for line in (Path(__file__).parent / "captured.jsonl").read_text().splitlines()]
"""Rollouts of a training run of the laptop task, with the tokens of every sample."""
TOKENIZER: Any = load_tokenizer(ACTOR)
END = "<|im_end|>"
ROLES = {"earlier solutions": "rewriter", "candidate solutions": "selector"}
EXTRA = "+serving.models.other={checkpoint: elsewhere, trained: false}"


class Scripted:
    """A model that says given texts by role; each token's logprob is its number among all that were sampled."""

    shows_tokens, max_model_len = True, 4096
    sampled: list[list[int]] | None = None
    """Replies as tokens, in place of texts."""

    def __init__(self, replies: dict[str, list[str]], *, name: str = "actor") -> None:
        self.name, self.tokenizer = name, TOKENIZER
        self.replies = {role: list(texts) for role, texts in replies.items()}
        self.turns, self.prompts, self.running, self.most_running = list[Turn](), list[str](), 0, 0

    def render(self, messages: Any) -> list[int]:
        return render(self.tokenizer, messages)

    async def chat(self, messages: Any, *, max_tokens: int) -> Turn:
        turn = await self.complete(self.render(messages), max_tokens=max_tokens)
        return Turn(message=turn.message, usage=(len(turn.prompt_ids), len(turn.output_ids)), finish_reason=turn.finish_reason)

    async def complete(self, token_ids: Any, *, max_tokens: int) -> Turn:
        prompt = self.tokenizer.decode(token_ids)
        if self.sampled is None:
            role = next((role for words, role in ROLES.items() if words in prompt.lower()), "solver")
            ids = self.tokenizer.encode(self.replies[role].pop(0), add_special_tokens=False)[:max_tokens]
        else:
            ids = self.sampled.pop(0)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        for _ in range(3):  # others may begin meanwhile
            await asyncio.sleep(0)
        self.running -= 1
        start = sum(len(turn.output_ids) for turn in self.turns)
        turn = Turn(
            prompt_ids=list(token_ids),
            output_ids=ids,
            logprobs=[-float(start + place) for place in range(len(ids))],
            weight_versions=[1] * len(ids),
            finish_reason="length" if len(ids) == max_tokens else "stop",
            message={"role": "assistant", "content": self.tokenizer.decode(ids).removesuffix(END)},
        )
        self.turns.append(turn)
        self.prompts.append(prompt)
        return turn


@cache
def config_of(*words: str) -> RunConfig:
    fixed = [
        "+method=multi_agent",
        "mode=plan",
        "method.prompt_style=full",
        "method.max_response_tokens=500",
        "serving.models.actor.max_model_len=4096",
    ]
    return compose_run([*fixed, "method.maths=true", "model.reasoning_parser=qwen3", *words]).config


@cache
def tiny_config() -> RunConfig:
    return compose_run(["+method=multi_agent", "mode=plan"]).config


def context_of(models: dict[str, Any], *words: str) -> Context:
    return context_with(models, config=config_of(*words))


async def play(replies: dict[str, list[str]], *words: str, label: str = "5", **others: Any) -> tuple[list[Sample], Scripted]:
    model = Scripted(replies)
    numbers = [f"method.num_solvers={len(replies['solver'])}", f"method.num_rewriters={len(replies.get('rewriter', ()))}"]
    context = context_of({"actor": model, **others}, *numbers, *words)
    template = Sample(prompt=[{"role": "user", "content": "What is it?"}], label=[label], rollout_id=7, group_index=0)
    samples = check_samples(await generate(context, template, Sampling(temperature=1.0, top_p=1.0)), template)
    found = await reward(context, samples)
    set_reward(rollout := Rollout(rollout_id=7, group_index=0, samples=samples), found)
    assert rollout.reward == pytest.approx(found.score)
    return samples, model


def right(answer: int = 5, number: int = 0) -> str:
    return f"<think>I try.</think>Attempt {number}: \\boxed{{{answer}}}"


@pytest.mark.parametrize("part", range(6))
async def test_rewards_are_those_of_the_original(part: int):
    for row in RECORDED[part::6]:
        replies = {role: texts if isinstance(texts, list) else [texts] for role, texts in row["replies"].items()}
        samples, _ = await play(replies, label=row["label"])
        assert [sample.reward for sample in samples] == pytest.approx(row["rewards"]), replies


def test_there_are_enough_recorded_rollouts_with_every_ending():
    lengths = {(len(row["replies"]["solver"]), len(row["rewards"])) for row in RECORDED}
    assert len(RECORDED) >= 200
    assert {(5, 5), (5, 10), (5, 11)} <= lengths
    assert {round(value, 3) for row in RECORDED for value in row["rewards"]} == {0.0, 0.8, 1.2}


def test_a_solution_is_what_follows_the_only_end_of_thinking():
    assert solution_of("<think>a</think> b ", thinking=True) == "b"
    for text in ("b", "<think>a</think> ", "<think>a</think>b</think>c"):
        assert solution_of(text, thinking=True) is None
    assert solution_of(" b ", thinking=False) == "b" and solution_of(" ", thinking=False) is None


@pytest.mark.parametrize(("text", "place"), [("Judgment: 2", 1), ("Judgment:\n 3", 2), ("Judgment: 1, Judgment: 2", 0)])
def test_the_first_judgment_counts(text: str, place: int):
    assert judgment_of(text, num_solutions=3) == place


@pytest.mark.parametrize("text", ["Judgment: 0", "Judgment: 4", "Judgment: IDX", "judgment: 1", ""])
def test_a_judgment_that_names_no_solution_chooses_nothing(text: str):
    assert judgment_of(text, num_solutions=3) is None


@pytest.mark.parametrize("wording", [FULL, TINY])
def test_solutions_are_numbered_in_their_order_behind_or_before_the_problem(wording: Any):
    for role in ("rewriter", "selector"):
        text = wording.prompt(role, "PROBLEM", ["first", "second", "third"])
        assert text.index("first") < text.index("second") < text.index("third")
        assert text.count("PROBLEM") == 1
        listed = [
            wording.solution.format(index=index, solution=name) for index, name in enumerate(("first", "second", "third"), 1)
        ]
        assert "\n".join(listed) in text
    assert FULL.prompt("selector", "p", ["a", "b"]).count("Judgment: IDX") == 1


async def test_every_sampled_token_is_trained_once_and_no_other():
    replies = {
        "solver": [right(number=n) for n in range(3)],
        "rewriter": [right(6), right(5)],
        "selector": ["</think>Judgment: 2"],
    }
    samples, model = await play(replies)
    assert [sample.metadata["role"] for sample in samples] == ["solver"] * 3 + ["rewriter"] * 2 + ["selector"]
    sampled = {(tuple(turn.output_ids), tuple(turn.logprobs)) for turn in model.turns}
    kept = [(tuple(s.tokens[-s.response_length :]), tuple(s.rollout_log_probs)) for s in samples]
    assert len(kept) == len(sampled) == 6 and set(kept) == sampled
    for sample in samples:
        assert all(sample.loss_mask) and sample.rollout_id == 7
        prompt = TOKENIZER.decode(list(sample.tokens[: -sample.response_length]))
        others = {text for role in replies.values() for text in role} - {sample.response}
        is_reading = sample.metadata["role"] != "solver"
        assert is_reading == any((solution_of(text, thinking=True) or "") in prompt for text in others if "Attempt" in text)
    assert samples[-1].metadata["chosen"] == 4 and samples[-1].stop_reason is StopReason.ANSWERED


async def test_the_calls_of_a_stage_run_at_once():
    _, model = await play({"solver": [right()] * 4, "rewriter": [right()] * 3, "selector": ["</think>Judgment: 1"]})
    assert model.most_running == 4


async def test_the_replies_of_frozen_models_are_read_and_rewarded_but_not_trained():
    rewriter = Scripted({"rewriter": [right(6), right(5)]}, name="other")
    replies = {"solver": [right(), right(4)], "selector": ["</think>Judgment: 2"]}
    words = ["method.num_rewriters=2", "method.rewriter_model=other", EXTRA]
    samples, model = await play(replies, *words, other=rewriter)
    assert len(rewriter.turns) == 2 and len(model.turns) == 3
    frozen = [sample for sample in samples if sample.metadata["role"] == "rewriter"]
    assert [sample.response for sample in frozen] == [right(6), right(5)]
    assert all(sample.remove_sample and not sample.num_trained_tokens for sample in frozen)
    assert [sample.reward for sample in samples] == pytest.approx([1.2, 0.0, 0.0, 1.2, 1.2])
    trained = [tuple(sample.tokens[-sample.response_length :]) for sample in samples if sample.num_trained_tokens]
    assert trained == [tuple(turn.output_ids) for turn in model.turns]


async def test_a_frozen_model_behind_a_chat_api_may_play_a_role():
    selector = Scripted({"selector": ["</think>Judgment: 1"]}, name="other")
    selector.shows_tokens = False
    replies = {"solver": [right(), right(4)], "rewriter": [right(), right(4)]}
    samples, _ = await play(replies, "method.selector_model=other", EXTRA, other=selector)
    assert samples[-1].response == "</think>Judgment: 1" and samples[-1].metadata["tokens"] > 0
    assert [sample.reward for sample in samples] == pytest.approx([1.2, 0.0, 1.2, 0.0, 1.2])


async def test_without_rewriters_the_selector_reads_the_solvers():
    samples, _ = await play({"solver": [right(4), right()], "selector": ["</think>Judgment: 2"]})
    assert len(samples) == 3 and samples[-1].metadata["chosen"] == 1
    assert [sample.reward for sample in samples] == pytest.approx([0.0, 1.2, 1.2])


async def test_one_solver_is_asked_once_and_its_solution_is_the_answer():
    samples, _ = await play({"solver": [right()]})
    assert len(samples) == 1 and samples[0].reward == pytest.approx(1.2) and samples[0].metadata["chosen"] == 0


async def test_replies_that_are_cut_or_without_solution_end_the_rollout():
    samples, _ = await play({"solver": ["<think>" + "7" * 600] * 2})
    assert len(samples) == 2 and samples[-1].stop_reason is StopReason.TOKEN_LIMIT and samples[-1].metadata["chosen"] is None
    samples, _ = await play({"solver": ["never", "never"]})
    assert len(samples) == 2 and samples[-1].stop_reason is StopReason.MALFORMED
    samples, _ = await play({"solver": [right()] * 2, "rewriter": [right()] * 2, "selector": ["</think>none"]})
    assert len(samples) == 5 and samples[-1].stop_reason is StopReason.MALFORMED and samples[-1].reward == 0.0


async def test_a_prompt_without_room_for_a_reply_ends_the_rollout():
    model = Scripted({"solver": [right(), right()]})
    context = context_of({"actor": model}, "method.num_solvers=2", "method.num_rewriters=2")
    template = Sample(prompt=[{"role": "user", "content": "What is it?"}], label=["5"])
    context.models["actor"].max_model_len = 120
    samples = await generate(context, template, Sampling(temperature=1.0, top_p=1.0))
    assert [sample.metadata["role"] for sample in samples] == ["solver"] * 2
    context = context_of({"actor": model, "other": Scripted({})}, "method.rewriter_model=other", EXTRA)
    context.models["actor"].max_model_len = 4  # not even for the solvers; that a frozen rewriter has room does not help
    samples = await generate(context, template, Sampling(temperature=1.0, top_p=1.0))
    assert len(samples) == 1 and samples[0].remove_sample and (await reward(context, samples)).score == 0.0


async def test_the_baseline_asks_one_solver_with_the_same_prompt():
    model = Scripted({"solver": [right()]})
    context, template = context_of({"actor": model}), Sample(prompt=[{"role": "user", "content": "What is it?"}], label=["5"])
    samples = await single_turn(context, template, Sampling(temperature=1.0, top_p=1.0))
    assert len(samples) == 1 and (await reward(context, samples)).metrics["strict"] == 1.0


async def test_each_sample_is_trained_by_its_own_reward_with_equal_weight_of_the_rollouts():
    good = {"solver": [right(), right(4)], "rewriter": [right(), right(4)], "selector": ["</think>Judgment: 1"]}
    bad = {"solver": [right(4), right(4)], "rewriter": [right(), right(4)], "selector": ["</think>Judgment: 2"]}
    rollouts = []
    for number, replies in enumerate((good, bad)):
        samples, _ = await play(replies)
        earned = [sample.reward or 0.0 for sample in samples]
        rollout = Rollout(rollout_id=number, group_index=0, samples=samples, reward=sum(earned) / len(earned))
        rollout.status, rollout.stop_reason = Status.COMPLETED, StopReason.ANSWERED
        rollouts.append(rollout)
    prompt = Prompt(index=0, row=0, messages=[{"role": "user", "content": "What is it?"}], ground_truth=["5"])
    group = Group(index=0, prompt=prompt, rollouts=rollouts)
    [update], _ = build_updates(algorithm_of(config_of()), [group])
    assert len(update) == 10
    advantages = [sample.columns["advantage"] for sample in update]
    assert [advantage > 0 for advantage in advantages] == [(sample.reward or 0.0) > 0.4 for r in rollouts for sample in r.samples]


def problems(*words: str) -> dict[str, tuple[Any, str]]:
    composed = compose_run(["+method=multi_agent", "mode=plan", *words]).config
    return {problem.key: (problem.value, problem.remedy) for problem in composed.method.problems(composed)}


def test_two_trained_models_are_refused_with_key_value_and_remedy():
    found = problems("method.rewriter_model=other", "+serving.models.other={checkpoint: elsewhere, trained: true}")
    value, remedy = found["method.rewriter_model"]
    assert value == "other" and remedy.startswith(
        "is trained, and so is actor in another role; a run trains one model: use actor"
    )
    assert "serving.models.other.trained=false" in remedy


def test_a_refused_run_says_so_before_anything_starts():
    words = ["+method=multi_agent", "mode=plan", "method.rewriter_model=nobody"]
    with pytest.raises(ConfigError, match=r"method\.rewriter_model"):
        validate(compose_run(words).config)


def test_roles_need_served_models_of_which_exactly_one_is_trained():
    assert problems() == {}
    assert problems("method.rewriter_model=other", EXTRA) == {}
    assert "no model has this name" in problems("method.selector_model=nobody")["method.selector_model"][1]
    frozen = [f"method.{role.value}_model=other" for role in Role]
    assert "no role is played by the trained model" in problems(*frozen, EXTRA)["method.solver_model"][1]
    assert problems("method.selector_model=nobody", "method.num_solvers=1", "method.num_rewriters=0") == {}


def test_replies_need_room_beside_their_prompts():
    assert "need 513 tokens" in problems("method.max_response_tokens=512")["serving.models.actor.max_model_len"][1]


def test_a_solution_follows_the_thinking_of_a_model_that_thinks():
    def thinks(*words: str) -> bool:
        return compose_run(["+method=multi_agent", "mode=plan", *words]).config.model.thinks

    assert thinks("model=qwen3-4b", "model.chat_template_args.enable_thinking=true")
    assert not thinks("model=qwen3-4b")  # whose template has thinking off unless asked
    assert not thinks("model=qwen2.5-7b")


def test_the_plan_counts_the_calls_of_the_trained_model():
    config = compose_run(["+method=multi_agent", "mode=plan", "method.rewriter_model=other", EXTRA]).config
    assert config.method.calls_per_rollout(config) == 4 + 1


def test_an_evaluation_tells_the_roles_apart():
    roles = ["solver", "solver", "rewriter", "selector"]
    samples = [{"metadata": {"role": role, "tokens": 10, "cut": role == "solver"}} for role in roles]
    metrics = {"strict": 1.0, "first_solver": 0.0, "solvers": 0.5, "majority": 0.0, "rewriters": 1.0}
    solved = {"strict": 1.0, "stop_reason": "answered", "metrics": metrics, "samples": samples}
    failed = {"strict": 0.0, "stop_reason": "worker_lost", "metrics": {}, "samples": []}
    log = eval_log(None, [solved, failed])
    expected = {
        "selector": 0.5,
        "solvers": 0.25,
        "majority": 0.0,
        "calls_mean": 2.0,
        "solver_tokens_mean": 10.0,
        "cut_share": 0.5,
    }
    assert {name: log.metrics[name] for name in expected} == expected
    assert log.metrics["no_choice_share"] == 0.5
    assert log.figures["solved_by_right_solvers"] == {"x": [0.0, 0.5], "series": {"solved, share": [0.0, 1.0]}}


@pytest.mark.parametrize("row", CAPTURED)
async def test_a_captured_rollout_is_made_again_token_by_token_with_the_reply_alone_in_the_mask(row: dict[str, Any]):
    model = Scripted({}, name="actor")
    replies = [one["tokens"][len(one["tokens"]) - one["response_length"] :] for one in row["samples"]]
    model.sampled = list(replies)
    context = context_with({"actor": model}, config=tiny_config())
    template = Sample(prompt=[{"role": "user", "content": row["question"]}], label=[row["label"]])
    samples = check_samples(await generate(context, template, Sampling(temperature=1.0, top_p=1.0)), template)
    assert [list(sample.tokens) for sample in samples] == [one["tokens"] for one in row["samples"]]
    assert [sample.metadata["role"] for sample in samples] == [one["role"] for one in row["samples"]]
    for sample, reply in zip(samples, replies, strict=True):
        trained = [token for token, mask in zip(sample.tokens[-sample.response_length :], sample.loss_mask) if mask]
        assert trained == reply
    found = await reward(context, samples)
    assert found.samples == pytest.approx([one["reward"] for one in row["samples"]])
