"""`ActorCritic` and `Critic` (`algorithm.critic`): advantages from the values of a critic, and the critic's own objective.

`ActorCritic` is a policy gradient that compares a rollout with the values of its own tokens, in place of the other rollouts of
its group, so that a single rollout per prompt suffices. `Critic` is an algorithm like any other, with a loss on the critic's
weights.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np

from vime.algorithm.advantage import shaped_reward
from vime.algorithm.algorithm import VALUE, Algorithm, Columns, Forward, Loss, Tokens
from vime.algorithm.policy_gradient import PolicyGradient, mean_and_deviation, whitened
from vime.algorithm.value import advantages_and_returns, chains, decay_of, explained_variance, rewards_of_chain, value_loss
from vime.config import Credit, CriticConfig, TrainerConfig
from vime.types import ColumnType, Group, Sample

RETURNS = ColumnType(name="returns")
"""The sum of rewards that the value of a token is to predict."""


class ActorCritic(PolicyGradient):
    """A policy gradient with generalized advantages (GAE) from the values of a critic."""

    columns = (RETURNS,)
    compares_groups = False  # type: ignore[assignment]

    @property
    def source(self) -> str:
        """The setting that gives the advantages, for messages."""
        return f"algorithm.critic.place={self.config.critic.place.value}"

    @property
    def needs(self) -> Sequence[Forward]:  # type: ignore[override]
        """The values, beside what the policy's loss needs."""
        return (*super().needs, VALUE)

    @property
    def needs_before(self) -> Sequence[Forward]:  # type: ignore[override]
        """The values, and what a KL penalty on the reward needs."""
        return (*(super().needs if self._penalizes else ()), VALUE)

    def advantages(self, groups: list[Group], known: Sequence[Sample]) -> Columns:
        """Generalized advantages of all sampled tokens, and the returns that the critic learns; see `vime.algorithm.value`."""
        rollouts = {rollout.rollout_id: rollout for group in groups for rollout in group.rollouts}
        sequences: dict[int, list[Sample]] = {}
        for sequence in known:
            sequences.setdefault(sequence.rollout_id, []).append(sequence)
        advantages: dict[tuple[int, int], Any] = {}
        returns: dict[tuple[int, int], Any] = {}
        decays: list[float] = []
        for rollout_id, own in sequences.items():
            rollout = rollouts[rollout_id]
            reward = shaped_reward(self.config, rollout)
            share = 1.0 / len(own) if self.run.method.credit is Credit.split else 1.0
            for chain in chains(own):
                rewards_N = rewards_of_chain(rollout, chain, reward=reward) + self._charges(chain)
                values_N = np.concatenate([np.asarray(sequence.columns["value"], np.float64) for sequence in chain])
                found = advantages_and_returns(self.config.critic, rewards_N, values_N)
                decays.append(decay_of(self.config.critic, len(values_N)))
                ends = np.cumsum([sequence.num_trained_tokens for sequence in chain])[:-1]
                for sequence, advantage, target in zip(chain, *(np.split(each, ends) for each in found)):
                    advantages[rollout_id, sequence.order] = (share * advantage).astype(np.float32)
                    returns[rollout_id, sequence.order] = target.astype(np.float32)
        metrics = _metrics(known, returns) | ({"train/gae_lambda_mean": fmean(decays)} if decays else {})
        if self.config.whitening:
            ordered = [s.with_columns(advantage=advantages[s.rollout_id, s.order]) for s in known]
            scaled, more = self.finished(ordered)
            advantages = {(s.rollout_id, s.order): value for s, value in zip(known, scaled)}
            metrics |= more
        return Columns({"advantage": advantages, "returns": returns}, metrics=metrics)

    def finished(self, sequences: Sequence[Sample]) -> tuple[list[Any], dict[str, float]]:
        """The advantages of sequences after the whitening over all their trained tokens, and metrics.

        A KL penalty is part of the rewards.
        """
        values = [np.asarray(sequence.columns["advantage"], np.float32) for sequence in sequences]
        if not self.config.whitening:
            return values, {}
        mean, deviation = mean_and_deviation(values, [sequence.num_trained_tokens for sequence in sequences])
        metrics = {"train/advantage_mean": mean, "train/advantage_deviation": deviation}
        return [whitened(value, mean=mean, deviation=deviation) for value in values], metrics

    def _charges(self, chain: Sequence[Sample]) -> np.ndarray | float:
        """The KL penalty of each token of a chain, as a reward; 0 without one."""
        if not self._penalizes:
            return 0.0
        from_here = [self._penalized(sequence, 0.0) for sequence in chain]  # the sum over later tokens of the sequence as well
        return np.concatenate([sums - np.append(sums[1:], 0.0) for sums in from_here])

    def loss(self, tokens: Tokens) -> Loss:
        """The policy's loss; where the values are the policy's own, also theirs as a second term, `value`."""
        found = super().loss(tokens)
        if tokens.values is None:
            return found
        loss_N, metrics = critic_loss(self.config.critic, tokens)
        weight_N = self.config.critic.coefficient * tokens["weight"]
        return Loss(
            terms={**found.terms, "value": loss_N},
            weights={**found.weights, "value": weight_N},
            metrics=found.metrics | metrics,
        )

    def has_gradient(self, sequence: Sample) -> bool:
        """True: a value is learned from every token, whatever its advantage."""
        return True


class Critic(Algorithm):
    """The squared error of values to returns; its weights are those of the critic."""

    is_critic = True
    columns = (RETURNS, VALUE.type)

    def trainer(self) -> TrainerConfig:
        """The settings of its steps: the trainer's, with a rate and a number of passes of its own."""
        own = self.config.critic
        return replace(self.run.trainer, lr=own.lr, num_epochs_per_batch=own.num_epochs_per_batch)

    def warms_up(self, step: int) -> bool:
        """True in the first steps of a run, in which the policy stays as it is."""
        return step < self.config.critic.warmup_steps

    def loss(self, tokens: Tokens) -> Loss:
        """The clipped squared error of each value."""
        loss_N, metrics = critic_loss(self.config.critic, tokens)
        return Loss(terms={"value": loss_N}, metrics=metrics)


def critic_loss(config: CriticConfig, tokens: Tokens) -> tuple[Any, dict[str, Any]]:
    """The loss of each token's value, [N], and the number of those that clipping has stopped."""
    assert tokens.values is not None, "no value head"
    loss_N, clipped_N = value_loss(tokens.values, tokens["value"], tokens["returns"], clip=config.value_clip)
    return loss_N, {"train/value_clip_fraction": clipped_N.sum()}


def _metrics(known: Sequence[Sample], returns: dict[tuple[int, int], Any]) -> dict[str, float]:
    """The values before the first update of a batch, compared with their returns, over all sampled tokens."""
    if not known:
        return {}
    values_N = np.concatenate([np.asarray(s.columns["value"], np.float64) for s in known])
    returns_N = np.concatenate([returns[s.rollout_id, s.order] for s in known]).astype(np.float64)
    return {
        "train/value_mean": float(values_N.mean()),
        "train/return_mean": float(returns_N.mean()),
        "train/value_explained_variance": explained_variance(values_N, returns_N),
    }
