"""Matches of both games: what is legal, how they end, program opponents, and the advantages of what was played."""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from agentic.games.nim import Nim
from agentic.games.tictactoe import TicTacToe
from agentic.games.two_players import MOST_ILLEGAL, OPPONENTS, SEATS, Match, TwoPlayerGame
from vime.algorithm.advantage import group_advantages
from vime.algorithm.policy_gradient import PolicyGradient
from vime.config import AlgorithmConfig, Comparison, RunConfig
from vime.environments.environment import IllegalMove, Reply, in_split, load_environment, rows
from vime.environments.play import reward
from vime.errors import ConfigError
from vime.preflight.compose import compose_run
from vime.types import Group, Prompt, Rollout, Sample, StopReason

GAMES: list[type[Any]] = [Nim, TicTacToe]
EXPERIMENTS = ("nim_tiny", "tictactoe_tiny")


def played(game: TwoPlayerGame, row: dict[str, Any], choose: Any) -> tuple[Match, list[str]]:
    """A match in which `choose(match)` moves for every seat that is asked, and its moves."""
    match, moves = game.open(row), []
    while (seen := match.observe()) is not None:
        moves.append(choose(match))
        match.act(Reply(seat=seen.seat, text=moves[-1]))
    return match, moves


def rewards_of(match: Match) -> dict[str, float]:
    found = match.outcome().rewards
    assert isinstance(found, Mapping)
    return dict(found)


def anyhow(seed: int) -> Any:
    chance = random.Random(seed)
    return lambda match: chance.choice(match.moves)


@pytest.mark.parametrize("make", GAMES)
def test_seats_take_turns_and_rewards_add_up_to_zero(make: Any):
    for row in make().rows(split="train", num_items=100, seed=3):
        match, moves = make().open(row), 0
        while (seen := match.observe()) is not None:
            assert seen.seat == SEATS[moves % 2] and match.observe() == seen
            match.act(Reply(seat=seen.seat, text=f" {random.Random(moves).choice(match.moves)}\n"))
            moves += 1
        outcome, rewards = match.outcome(), rewards_of(match)
        assert sum(rewards.values()) == 0 and match.moves == []
        last = SEATS[(moves - 1) % 2]
        assert rewards[last] == (0 if outcome.metrics["draw"] else 1), "who moves last has won, or no one has"


@pytest.mark.parametrize("make", GAMES)
@pytest.mark.parametrize("text", ["", "z", "a b", "aaaaa", "I pass.", "aab"])
def test_other_texts_are_illegal_and_the_second_of_a_seat_loses(make: Any, text: str):
    match = make().open({"key": "match", "position": "aaa bb" if make is Nim else ""})
    first = match.observe()
    assert first is not None and first.seat == "first"
    for number in range(MOST_ILLEGAL):
        with pytest.raises(IllegalMove):
            match.act(Reply(seat="first", text=text))
        assert match.outcome().metrics["illegal"] == (number == MOST_ILLEGAL - 1)
        again = match.observe()
        if number < MOST_ILLEGAL - 1:
            assert again is not None and again.seat == "first" and "Illegal." in again.content[0]["content"]
    assert match.observe() is None
    assert match.outcome().rewards == {"first": -1.0, "second": 1.0}


@pytest.mark.parametrize("make", GAMES)
def test_a_match_that_was_left_is_no_ones(make: Any):
    match = make().open({"key": "match", "position": "a b" if make is Nim else ""})
    match.observe()
    assert match.outcome().rewards == {"first": 0.0, "second": 0.0} and match.outcome().metrics["draw"] == 0


@pytest.mark.parametrize("make", GAMES)
@pytest.mark.parametrize("opponent", OPPONENTS)
def test_a_program_plays_the_other_seat_and_does_the_same_in_the_same_row(make: Any, opponent: str):
    game, seats = make(opponent=opponent), set[str]()
    for number, row in enumerate(game.rows(split="eval", num_items=40, seed=0)):
        first, again = (played(make(), row, anyhow(number)) for _ in range(2))
        assert first[1] == again[1] and first[0].outcome() == again[0].outcome()
        outcome = first[0].outcome()
        assert outcome.metrics["strict"] == (1 + rewards_of(first[0])[row["seat"]]) / 2
        seats.add(row["seat"])
    assert seats == set(SEATS)


@pytest.mark.parametrize("make", GAMES)
def test_the_model_always_moves_in_a_match_against_a_program(make: Any):
    for opponent in OPPONENTS:
        for row in make(opponent=opponent).rows(split="train", num_items=200, seed=1):
            seen = make().open(row).observe()
            assert seen is not None and seen.seat == row["seat"]


def test_an_opponent_that_there_is_not_is_refused_with_those_that_there_are():
    with pytest.raises(ConfigError, match=r"method.settings.opponent.*random, perfect"):
        load_environment("agentic.games.nim.Nim", {"opponent": "alice"})


@pytest.mark.parametrize("settings", [{"opponent": "random", "seat": "third"}, {"seat": "first"}])
def test_a_seat_that_there_is_not_or_without_a_program_is_refused(settings: dict[str, str]):
    with pytest.raises(ConfigError, match=r"method.settings.seat.*first or second beside an opponent"):
        load_environment("agentic.games.tictactoe.TicTacToe", settings)


@pytest.mark.parametrize("name", ["agentic.games.nim.Nim", "agentic.games.tictactoe.TicTacToe"])
def test_no_match_is_trained_and_evaluated(name: str):
    made = [rows(500, 0, environment=name, settings={"opponent": each}, split="eval") for each in OPPONENTS]
    trained = rows(500, 0, environment=name, split="train")
    keys = [{row["key"] for row in found} for found in (*made, trained)]
    assert all(map(len, keys)) and not keys[2] & (keys[0] | keys[1])
    assert all(row["prompt"] == [] for found in made for row in found)


def group_of(game: TwoPlayerGame, choose: Any, *, num_matches: int = 8) -> Group:
    """Matches of one row as the rollouts of a group, with the rewards that `+method=environment` gives their samples."""
    row = next(iter(game.rows(split="train", num_items=1, seed=0)))
    prompt = Prompt(index=0, row=0, messages=[], ground_truth=[], dataset="train")
    rollouts: list[Rollout] = []
    for number in range(num_matches):
        match, _ = played(game, row, choose(number))
        outcome = match.outcome()
        result = {"rewards": rewards_of(match), "metrics": dict(outcome.metrics)}
        samples = [
            Sample(
                tokens=[1, 2, 3],
                loss_mask=[1, 1],
                rollout_log_probs=[-0.5] * 2,
                weight_versions=[0] * 2,
                seat=seat,
                order=place,
                rollout_id=number,
                metadata={"outcome": result},
            )
            for place, seat in enumerate(SEATS)
        ]
        rollouts.append(Rollout(rollout_id=number, group_index=0, samples=samples, stop_reason=StopReason.ANSWERED))
    return Group(prompt=prompt, rollouts=rollouts)


async def rewarded(group: Group) -> Group:
    """The group with the rewards of its matches, as the reward hook of environments gives them."""
    for rollout in group.rollouts:
        found = await reward(Any, rollout.samples)  # type: ignore[arg-type]  # it reads nothing of the context
        rollout.reward = found.score
        for sample, own in zip(rollout.samples, found.samples or []):
            sample.reward = own
    return group


async def test_a_seat_that_always_wins_has_advantages_of_zero_with_a_baseline_for_each_seat_and_not_without():
    def perfect_against_random(number: int) -> Any:
        chance = random.Random(number)
        return lambda match: chance.choice(Nim().best(match.position) if match.mover == "first" else match.moves)

    group = await rewarded(group_of(Nim(), perfect_against_random))
    assert [[sample.reward for sample in rollout.samples] for rollout in group.rollouts] == [[1.0, -1.0]] * 8
    by_seat = compose_run(["+experiment=nim_tiny", "algorithm.baseline=mean", "mode=plan"]).config.algorithm
    assert by_seat.comparison is Comparison.seat
    assert group_advantages(by_seat, [group]) == {number: [0.0, 0.0] for number in range(8)}
    without = group_advantages(replace(by_seat, comparison=Comparison.rollout), [group])
    assert without == {number: [1.0, -1.0] for number in range(8)}


async def test_the_running_baseline_of_the_recipe_goes_to_the_result_of_a_seat_that_always_wins():
    group = await rewarded(group_of(Nim(), lambda number: lambda match: Nim().best(match.position)[0]))
    config = compose_run(["+experiment=nim_tiny", "mode=plan"]).config
    algorithm, sizes = PolicyGradient(config), []
    for step in range(60):
        again = [replace(rollout, rollout_id=step * 8 + rollout.rollout_id) for rollout in group.rollouts]
        found = algorithm.advantages([Group(prompt=group.prompt, rollouts=again)], []).values["advantage"]
        sizes.append(max(abs(value) for values in found.values() for value in values))
    assert sizes[0] == 1.0 and sizes[-1] < 0.01
    without = RunConfig(algorithm=replace(config.algorithm, comparison=Comparison.rollout))
    found = PolicyGradient(without).advantages([group], []).values["advantage"]
    assert found == {rollout.rollout_id: [1.0, -1.0] for rollout in group.rollouts}


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_a_recipe_trains_both_seats_and_is_scored_in_each_against_both_programs(experiment: str):
    config = compose_run([f"+experiment={experiment}", "mode=plan"]).config
    assert [dataset.name for dataset in config.data.evaluation] == [f"{each}_{seat}" for each in OPPONENTS for seat in SEATS]
    for dataset in config.data.evaluation:
        assert {row["seat"] for row in rows(100, 0, **dataset.generator_args)} == {dataset.name.rpartition("_")[2]}
    assert "opponent" not in config.data.train.generator_args["settings"]
    assert isinstance(config.algorithm, AlgorithmConfig) and config.algorithm.comparison is Comparison.seat
    assert in_split([{"key": "nim, match 0"}], split="train", num_items=1)
