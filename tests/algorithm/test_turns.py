"""Credit for turns: discounted returns of steps, compared over all turns of a group or over those in the same state."""

from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest

from vime.algorithm.batch import build_updates
from vime.algorithm.policy_gradient import PolicyGradient
from vime.algorithm.turns import returns_of, turn_advantages
from vime.config import AlgorithmConfig, Comparison, Credit, MethodConfig, Normalization, RunConfig, TurnCredit
from vime.preflight.compose import compose_run
from vime.types import Group, Prompt, Rollout, Sample, StopReason

PLAIN = AlgorithmConfig(turn_credit=TurnCredit.states, turn_discount=0.5, normalization=Normalization.none)
PROMPT = [1, 2]


def sequence(*turns: tuple[list[int], int, float], **about: Any) -> Sample:
    """A sequence of turns: what the environment says before the reply, the number of its tokens, and the reward of its step."""
    tokens, mask, rewards = list(PROMPT), list[int](), list[float]()
    for number, (said, size, reward) in enumerate(turns):
        tokens += [*(said if number else []), *([9] * size)]
        mask += [*([0] * len(said) if number else []), *([1] * size)]
        rewards += [*([0.0] * len(said) if number else []), *([0.0] * (size - 1)), reward]
    numbers = {"rollout_log_probs": [-0.5] * len(mask), "weight_versions": [0] * len(mask)}
    return Sample(tokens=tokens, loss_mask=mask, columns={"step_reward": rewards}, **numbers, **about)


def rollout(number: int, *samples: Sample, reward: float) -> Rollout:
    return Rollout(rollout_id=number, group_index=0, samples=list(samples), reward=reward, stop_reason=StopReason.ANSWERED)


def group(*rollouts: Rollout) -> Group:
    return Group(prompt=Prompt(index=0, row=0, messages=[], ground_truth=[]), rollouts=list(rollouts))


ROOM, HALL = [5, 6], [7]


def two_games() -> Group:
    """Both begin alike; the second visits the hall, and the room twice."""
    first = rollout(0, sequence(([], 2, 0.0), (ROOM, 1, 0.0)), reward=1.0)
    second = rollout(1, sequence(([], 1, 0.0), (HALL, 3, 0.0), (ROOM, 1, 0.0), (ROOM, 2, 0.0)), reward=0.0)
    return group(first, second)


def test_returns_are_discounted_and_hold_what_the_reward_has_beside_the_steps():
    played = rollout(3, sequence(([], 2, 0.25), (HALL, 1, 0.0), (ROOM, 1, 0.5)), reward=1.0)
    turns = returns_of(PLAIN, played)
    assert [turn.value for turn in turns] == [0.25 + 0.25 * 0.75, 0.5 * 0.75, 0.75], "the outcome of 0.25 is at the last turn"
    assert [turn.num_tokens for turn in turns] == [2, 1, 1] and len({turn.state for turn in turns}) == 3


def test_turns_in_equal_states_are_compared_and_lone_ones_are_not():
    found = turn_advantages(PLAIN, [two_games()], {0: 0.5, 1: -0.5})
    # at the beginning the returns are 0.5 and 0; in the room 1, 0 and 0; in the hall there is one
    assert found[0, 0].tolist() == pytest.approx([0.5 + 0.25] * 2 + [0.5 + 2 / 3])
    assert found[1, 0].tolist() == pytest.approx([-0.75] + [-0.5] * 3 + [-0.5 - 1 / 3] * 3)


def test_all_turns_of_a_group_share_a_mean_without_states():
    config = AlgorithmConfig(turn_credit=TurnCredit.returns, turn_discount=0.5)
    found = turn_advantages(config, [two_games()], {0: 9.0, 1: 9.0})
    returns = [0.5, 1.0, 0.0, 0.0, 0.0, 0.0]
    scaled = [(value - fmean(returns)) / (stdev(returns) + 1e-6) for value in returns]
    assert found[0, 0].tolist() == pytest.approx([scaled[0]] * 2 + [scaled[1]])
    assert found[1, 0].tolist() == pytest.approx([scaled[2]] * 7)


def test_seats_are_chains_of_their_own_and_a_chain_goes_through_its_sequences():
    played = rollout(
        0,
        sequence(([], 1, 0.0), seat="white", reward=1.0),
        sequence(([], 1, 0.0), (ROOM, 1, 0.0), seat="black", reward=-1.0),
        sequence((HALL, 1, 0.0), seat="white", reward=1.0),
        reward=0.0,
    )
    values = {(turn.seat, turn.order): turn.value for turn in returns_of(PLAIN, played)}
    assert values == {("white", 0): 0.5, ("white", 2): 1.0, ("black", 1): -1.0}
    assert [turn.value for turn in returns_of(PLAIN, played) if turn.seat == "black"] == [-0.5, -1.0]


@pytest.mark.parametrize("whitening", [False, True])
def test_they_reach_the_tokens_of_their_sequences(whitening: bool):
    config = compose_run(["algorithm=gigpo", "mode=plan"]).config.algorithm
    config.whitening = whitening
    run = RunConfig(algorithm=config, method=MethodConfig(credit=Credit.share))
    (update,), _ = build_updates(PolicyGradient(run), [two_games()])
    values = [np.asarray(each.columns["advantage"]) for each in update]
    assert [len(value) for value in values] == [3, 7]
    assert values[0][2] > values[0][0] > 0 > values[1][1] > values[1][6] > values[1][0]
    if whitening:
        assert abs(float(np.concatenate(values).mean())) < 1e-6


def test_a_rollout_without_steps_of_its_own_has_the_advantage_of_its_group():
    """One turn from one prompt: the only state is the prompt's, so the two comparisons are the same."""
    rollouts = [rollout(number, sequence(([], 2, 0.0)), reward=float(number % 2)) for number in range(4)]
    config = AlgorithmConfig(turn_credit=TurnCredit.states, comparison=Comparison.rollout)
    algorithm = PolicyGradient(RunConfig(algorithm=config))
    found = algorithm.advantages([group(*rollouts)], []).values["advantage"]
    plain = PolicyGradient(RunConfig(algorithm=AlgorithmConfig())).advantages([group(*rollouts)], []).values["advantage"]
    for number in range(4):
        assert found[number, 0].tolist() == pytest.approx([2 * plain[number]] * 2)


def test_rewards_compared_turn_by_turn_before_they_are_summed_would_be_biased():
    """The reason that there is no such baseline, by exact expectations.

    Every turn gives 1, and a policy goes on after the first one with the chance p, so going on is worth 1. The mean of the
    rewards of each turn number is 1 as well: a rollout that went on is charged for one more turn, and the gradient is lost. A
    baseline that does not depend on the decision changes nothing.
    """
    p = 0.3

    def gradient(*charges: float) -> float:
        """The expected gradient of log-odds of going on, if the j-th turn is charged `charges[j]`."""
        stopped, went_on = 1.0 - charges[0], 2.0 - sum(charges)
        return (1 - p) * -p * stopped + p * (1 - p) * went_on

    exact = p * (1 - p)
    assert gradient(0.0, 0.0) == pytest.approx(exact)
    assert gradient(0.7, 0.0) == pytest.approx(exact)
    assert gradient(1.0, 1.0) == pytest.approx(0.0)
