"""Generalized advantages, returns and the loss of values against closed forms and plain loops, over a rollout."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from vime.algorithm.algorithm import Tokens
from vime.algorithm.batch import build_updates, sequences_of
from vime.algorithm.critic import ActorCritic, Critic
from vime.algorithm.value import (
    advantages_and_returns,
    chains,
    decay_of,
    discounted,
    explained_variance,
    rewards_of_chain,
    value_loss,
)
from vime.config import (
    AlgorithmConfig,
    Baseline,
    Credit,
    CriticConfig,
    CriticPlace,
    KLEstimator,
    KLPlace,
    Normalization,
    RunConfig,
)
from vime.types import Group, Prompt, Rollout, Sample, StopReason

MASKS = ([1, 1, 0, 0, 1], [0, 1], [1, 0, 1, 1])
"""Three sequences: tokens of the environment stand between and before what was sampled."""


def algorithm(**options: Any) -> ActorCritic:
    critic = CriticConfig(**{"place": CriticPlace.model, **options.pop("critic", {})})
    own = {"baseline": Baseline.none, "normalization": Normalization.none, "critic": critic, **options}
    return ActorCritic(RunConfig(algorithm=AlgorithmConfig(**own)))


def group(
    reward: float = 1.0, *, parents: tuple[int, ...] = (-1, -1, -1), rewards: tuple[float | None, ...] = (None,) * 3
) -> Group:
    """One rollout of one group, whose sequences are `MASKS`."""
    samples = [
        Sample(
            tokens=[5, *range(len(mask))],
            loss_mask=mask,
            rollout_log_probs=[-0.5 - 0.1 * place for place in range(len(mask))],
            weight_versions=[0] * len(mask),
            parent=parent,
            reward=own,
        )
        for mask, parent, own in zip(MASKS, parents, rewards)
    ]
    rollout = Rollout(rollout_id=7, group_index=0, samples=samples, reward=reward, stop_reason=StopReason.ANSWERED)
    return Group(prompt=Prompt(index=0, row=0, messages=[], ground_truth=[]), rollouts=[rollout])


def known(of: Group, *, seed: int = 0, **columns: Any) -> list[Sample]:
    """The sequences with random values of their sampled tokens, as the trainer answers."""
    draw = np.random.default_rng(seed)
    found = sequences_of([of])
    return [s.with_columns(value=draw.normal(size=s.num_trained_tokens).astype(np.float32), **columns) for s in found]


def by_definition(rewards: list[float], values: list[float], *, discount: float, decay: float) -> list[float]:
    """Equation 16 of arXiv 1506.02438, term by term."""
    following = [*values[1:], 0.0]
    deltas = [r + discount * after - value for r, value, after in zip(rewards, values, following)]
    return [sum((discount * decay) ** k * delta for k, delta in enumerate(deltas[t:])) for t in range(len(deltas))]


@pytest.mark.parametrize("discount", [1.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.7, 1.0])
def test_advantages_are_the_sums_of_the_definition(discount: float, decay: float):
    draw = random.Random(1)
    rewards, values = ([draw.gauss(0, 1) for _ in range(9)] for _ in range(2))
    found = discounted(np.array(rewards), np.array(values), discount=discount, decay=decay)
    assert found.tolist() == pytest.approx(by_definition(rewards, values, discount=discount, decay=decay))


def test_lambda_one_is_the_return_minus_the_value_and_lambda_zero_the_difference_to_the_next_value():
    rewards, values = np.array([0.0, 0.0, 2.0]), np.array([0.5, 1.0, 1.5])
    one, returns = advantages_and_returns(CriticConfig(gae_lambda=1.0), rewards, values)
    assert one.tolist() == [1.5, 1.0, 0.5] and returns.tolist() == [2.0, 2.0, 2.0]
    zero, returns = advantages_and_returns(CriticConfig(gae_lambda=0.0), rewards, values)
    assert zero.tolist() == [0.5, 0.5, 0.5] and returns.tolist() == [1.0, 1.5, 2.0]
    decoupled, returns = advantages_and_returns(CriticConfig(gae_lambda=0.0, return_lambda=1.0), rewards, values)
    assert decoupled.tolist() == zero.tolist() and returns.tolist() == [2.0, 2.0, 2.0]


def test_lambda_grows_with_the_length():
    config = CriticConfig(adaptive_alpha=0.05)
    assert decay_of(config, 1000) == pytest.approx(1 - 1 / 50)
    assert decay_of(config, 40) == pytest.approx(0.5)
    assert decay_of(config, 20) == decay_of(config, 3) == 0.0, "it is no negative number in a short rollout"
    assert decay_of(CriticConfig(gae_lambda=0.9), 3) == 0.9


def test_a_chain_skips_what_the_model_did_not_sample_and_ends_with_the_reward():
    of, ppo = group(reward=1.0), algorithm(critic={"gae_lambda": 0.8, "discount": 0.9})
    sequences = known(of)
    columns = ppo.advantages([of], sequences)
    values = [float(value) for sequence in sequences for value in sequence.columns["value"]]
    assert len(values) == sum(map(sum, MASKS)) == 7
    expected = by_definition([0.0] * 6 + [1.0], values, discount=0.9, decay=0.8)
    found = [float(value) for order in range(3) for value in columns.values["advantage"][7, order]]
    assert found == pytest.approx(expected, abs=1e-6)
    returns = [float(value) for order in range(3) for value in columns.values["returns"][7, order]]
    assert returns == pytest.approx([a + value for a, value in zip(expected, values)], abs=1e-6)


def test_a_branch_is_a_chain_of_its_own_with_the_reward_at_its_end():
    of, ppo = group(reward=2.0, parents=(-1, 0, -1)), algorithm()
    assert [[s.order for s in chain] for chain in chains(sequences_of([of]))] == [[0, 2], [1]]
    sequences = known(of)
    columns = ppo.advantages([of], sequences)
    for sequence in sequences:
        expected = 2.0 - sequence.columns["value"]
        assert columns.values["advantage"][7, sequence.order].tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    local = algorithm(critic={"gae_lambda": 0.0}).advantages([of], sequences).values["advantage"]
    main, branch, last = (sequence.columns["value"] for sequence in sequences)
    assert local[7, 0].tolist() == pytest.approx([*(main[1:] - main[:-1]), last[0] - main[-1]], abs=1e-6)
    assert local[7, 1].tolist() == pytest.approx([2.0 - branch[-1]], abs=1e-6)


def test_sequences_with_rewards_of_their_own_have_these_as_returns():
    of = group(reward=0.5, rewards=(0.0, 1.0, None))
    rewards = rewards_of_chain(of.rollouts[0], sequences_of([of]), reward=0.5)
    to_go = rewards[::-1].cumsum()[::-1]
    assert to_go.tolist() == [0.0] * 3 + [1.0] + [0.5] * 3
    assert rewards[[2, 3, 6]].tolist() == [-1.0, 0.5, 0.5] and np.count_nonzero(rewards) == 3


def test_a_kl_penalty_is_a_reward_of_its_token():
    of = group()
    white = {"kl_coefficient": 0.1, "kl_estimator": KLEstimator.k1, "kl_place": KLPlace.reward}
    sequences = known(of, reference=-1.0)
    sequences = [s.with_columns(reference=np.full(s.num_trained_tokens, -1.0)) for s in sequences]
    found = algorithm(**white).advantages([of], sequences).values["returns"]
    kls = [np.asarray(s.rollout_log_probs)[s.trained] + 1.0 for s in sequences]
    charges = np.concatenate(kls) * -0.1
    charges[-1] += 1.0
    expected = charges[::-1].cumsum()[::-1]
    assert np.concatenate([found[7, order] for order in range(3)]).tolist() == pytest.approx(expected.tolist(), abs=1e-5)


def test_split_credit_divides_advantages_and_not_returns():
    of, ppo = group(), algorithm()
    whole = ppo.advantages([of], known(of)).values
    ppo.run.method.credit = Credit.split
    split = ppo.advantages([of], known(of)).values
    for order in range(3):
        assert split["advantage"][7, order].tolist() == pytest.approx((whole["advantage"][7, order] / 3).tolist())
        assert split["returns"][7, order].tolist() == whole["returns"][7, order].tolist()


def test_whitening_leaves_the_returns_as_they_are():
    of = group()
    plain = algorithm().advantages([of], known(of))
    white = algorithm(whitening=True).advantages([of], known(of))
    every = np.concatenate([white.values["advantage"][7, order] for order in range(3)])
    assert every.mean() == pytest.approx(0, abs=1e-6) and every.std() == pytest.approx(1, abs=1e-5)
    for order in range(3):
        assert white.values["returns"][7, order].tolist() == plain.values["returns"][7, order].tolist()


def test_an_update_has_advantages_returns_and_all_sequences_even_where_advantages_are_zero():
    of, ppo = group(reward=0.0), algorithm()
    zeros = [s.with_columns(value=np.zeros(s.num_trained_tokens)) for s in sequences_of([of])]
    columns = ppo.advantages([of], zeros)
    (update,), metrics = build_updates(ppo, [of], columns)
    assert [s.order for s in update] == [0, 1, 2] and all(not np.any(s.columns["returns"]) for s in update)
    assert "train/groups_without_signal_share" not in metrics, "a group of one teaches a critic"
    assert (
        metrics["train/gae_lambda_mean"] == 1.0
        and metrics["train/value_explained_variance"] == 0.0
        and metrics["train/return_mean"] == 0.0
    )


def test_explained_variance_is_one_for_perfect_values_and_zero_for_a_constant():
    returns = np.array([0.0, 1.0, 1.0, 3.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(np.full(4, 0.7), returns) == pytest.approx(0.0)
    assert explained_variance(-returns, returns) == pytest.approx(-3.0)
    assert explained_variance(returns, np.ones(4)) == 0.0


def test_a_clipped_value_has_no_gradient_beyond_its_range_in_the_direction_of_the_return():
    values = torch.tensor([0.1, 0.5, 0.5, -0.5], dtype=torch.float64, requires_grad=True)
    old, returns = torch.zeros(4, dtype=torch.float64), torch.tensor([1.0, 1.0, -1.0, 1.0], dtype=torch.float64)
    plain, none = value_loss(values, old, returns, clip=None)
    assert plain.tolist() == pytest.approx([0.405, 0.125, 1.125, 1.125]) and not none.any()
    loss, clipped = value_loss(values, old, returns, clip=0.2)
    assert loss.tolist() == pytest.approx([0.405, 0.32, 1.125, 1.125]) and clipped.tolist() == [False, True, False, False]
    (gradient,) = torch.autograd.grad(loss.sum(), values)
    assert gradient.tolist() == pytest.approx([-0.9, 0.0, 1.5, -1.5])


def test_the_critics_loss_reads_values_and_a_head_on_the_policy_adds_a_term():
    values, nothing = torch.tensor([0.5, 0.0], requires_grad=True), torch.zeros(2)
    columns = {"value": nothing, "returns": torch.tensor([1.0, -1.0]), "weight": torch.tensor([0.5, 0.25])}
    columns |= {"advantage": torch.tensor([1.0, -1.0]), "logprob": nothing}
    tokens = Tokens(
        logprobs=torch.zeros(2, requires_grad=True), entropy=nothing, sequences=nothing.long(), staleness=nothing, columns=columns
    )
    tokens.values = values
    own = algorithm(critic={"coefficient": 0.5, "place": CriticPlace.trunk})
    found, alone = own.loss(tokens), Critic(own.run).loss(tokens)
    assert found.terms["value"].tolist() == alone.terms["value"].tolist() == [0.125, 0.5]
    assert found.weights["value"].tolist() == [0.25, 0.125] and set(found.terms) == {"policy", "value"}
    assert not alone.weights and set(alone.terms) == {"value"}
    tokens.values = None
    assert set(own.loss(tokens).terms) == {"policy"}, "a critic with a model of its own is none of the policy's terms"
