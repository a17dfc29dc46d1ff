"""Seeds of model calls: the same whenever a rollout is run, and different for all calls that must differ."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from vime.chat.served_model import ServedModel
from vime.config import RunConfig
from vime.errors import RepeatabilityError
from vime.evaluation.repeatable import BY_CHANCE, COUNTS, check_repeatable
from vime.trajectory.trajectory import Trajectory
from vime.types import Prompt, Rollout, StopReason, Turn
from vime.workers.worker import Seeds

SEEDS = Seeds(run_seed=0, dataset="train", prompt=17, member="3")


class Server:
    """Samples the seed of each request, some time after it came."""

    def __init__(self) -> None:
        self.seeds: list[Any] = []

    async def generate(self, token_ids: Any, *, sampling: dict[str, Any], **_: Any) -> Turn:
        self.seeds.append(sampling.get("seed"))
        await asyncio.sleep(0.002 / (1 + len(token_ids)))
        return Turn(output_ids=[token_of(sampling.get("seed", 0))], logprobs=[-0.5], weight_versions=[0], finish_reason="stop")


class Tokenizer:
    def decode(self, ids: list[int], **_: Any) -> str:
        return ""


def model_with(server: Server, turns: Trajectory, name: str = "actor") -> ServedModel:
    return ServedModel(
        client=server,
        tokenizer=Tokenizer(),
        max_model_len=64,
        temperature=1.0,
        top_p=1.0,
        session="s",
        sampling={"seed": 5},
        name=name,
        trajectory=turns,
    )


def token_of(seed: int) -> int:
    """A token by which a seed is known again."""
    return seed % (2**31 - 1)


def log_of(seeds: Seeds | None) -> Trajectory:
    return Trajectory(seed_of=seeds)


async def drawn(model: ServedModel, *prompts: list[int]) -> list[int]:
    """The tokens that are sampled for these prompts, asked side by side."""
    turns = await asyncio.gather(*[model.complete(list(prompt), max_tokens=4) for prompt in prompts])
    return [turn.output_ids[0] for turn in turns]


async def test_seeds_follow_from_what_is_asked_whatever_the_order_of_calls():
    server = Server()
    first = await drawn(model_with(server, log_of(SEEDS)), [1], [1, 2], [1, 2, 3], [1])
    again = await drawn(model_with(Server(), log_of(SEEDS)), [1, 2, 3], [1], [1, 2], [1])
    assert len(set(first)) == 4, "equal calls of one rollout draw anew"
    assert again == [first[2], first[0], first[1], first[3]]
    assert all(0 <= seed < 2**63 for seed in server.seeds)


@pytest.mark.parametrize("change", [{"run_seed": 1}, {"dataset": "dev"}, {"prompt": 18}, {"member": "4"}], ids=str)
async def test_another_seed_data_set_prompt_or_member_draws_otherwise(change: dict[str, Any]):
    one, other = [await drawn(model_with(Server(), log_of(seeds)), [1]) for seeds in (SEEDS, replace(SEEDS, **change))]
    assert one != other


def test_a_rollout_has_the_seed_of_its_run_and_none_without_deterministic():
    prompt = Prompt(index=17, row=4, messages=[], ground_truth=[], dataset="train")
    assert Seeds.of_member(RunConfig(seed=9, deterministic=True), prompt, "3") == replace(SEEDS, run_seed=9)
    assert Seeds.of_member(RunConfig(seed=9), prompt, "3") is None


async def test_another_model_or_limit_draws_otherwise():
    turns = log_of(SEEDS)
    (actor,), (judge,) = await drawn(model_with(Server(), turns), [1]), await drawn(model_with(Server(), turns, "judge"), [1])
    longer = await model_with(Server(), turns).complete([1], max_tokens=5)
    assert len({actor, judge, longer.output_ids[0]}) == 3


@pytest.mark.parametrize("keep_turns", [True, False])
async def test_a_second_attempt_draws_the_same_and_does_not_sample_what_was_kept(keep_turns: bool):
    server, turns = Server(), log_of(SEEDS)
    first = await drawn(model_with(server, turns), [1], [1], [2])
    turns.start_again(keeps_replies=keep_turns)
    assert await drawn(model_with(server, turns), [1], [1], [2], [1]) == [*first, token_of(server.seeds[-1])]
    assert len(server.seeds) == (4 if keep_turns else 7) and token_of(server.seeds[-1]) not in first


async def test_without_deterministic_nothing_is_seeded_but_by_the_models_own_sampling():
    server = Server()
    await drawn(model_with(server, log_of(None)), [1])
    assert server.seeds == [5]


@pytest.mark.parametrize("reason", list(StopReason))
def test_what_a_clock_or_a_fault_decided_ends_a_run_that_must_repeat(reason: StopReason):
    rollout = Rollout(rollout_id=7, group_index=0, stop_reason=reason, error="600 s are over")
    if reason in BY_CHANCE:
        with pytest.raises(RepeatabilityError, match=rf"rollout 7 has {reason.value} \(600 s are over\)"):
            check_repeatable([rollout])
    else:
        check_repeatable([rollout])


@pytest.mark.parametrize("count", COUNTS)
def test_a_tool_or_judge_that_ran_out_of_time_ends_it_too(count: str):
    with pytest.raises(RepeatabilityError, match=count):
        check_repeatable([Rollout(rollout_id=7, group_index=0, stop_reason=StopReason.ANSWERED, counts={count: 1})])
