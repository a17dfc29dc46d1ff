"""Generalized advantages and returns from values, and the loss of values: pure functions, arrays on the driver, tensors on the
trainer.

GAE (arXiv 1506.02438, equations 11 to 16) over the sampled tokens of a rollout: delta_t = r_t + gamma V_{t+1} - V_t and
A_t = sum over k of (gamma lambda)^k delta_{t+k}. V_t is the value where token t was sampled, and t + 1 is the next token that the
model sampled: from the end of an action to the start of the next one, tokens of the environment are skipped (SAO, arXiv
2607.07508). A chain of such tokens goes through the sequences of a rollout in their order, and ends with the reward. A sequence
with a `parent` is a chain of its own, which ends with the reward too: what follows it in time has another context, whose values
say nothing about it.

Lambda is fixed, or adapted to the length of a chain: 1 - 1 / (alpha · length) (VAPO, arXiv 2504.05118, equation 4). Returns may
have a lambda of their own (VC-PPO, arXiv 2503.01491, section 4.2).

Shape suffix: N sampled tokens, of a chain or of a micro-batch.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vime.config import CriticConfig
from vime.types import Rollout, Sample

if TYPE_CHECKING:
    import torch


def chains(sequences: Sequence[Sample]) -> list[list[Sample]]:
    """The sequences of one rollout whose tokens follow each other: those without a parent together, every branch by itself.

    Example of the parents `[-1, -1, 0, -1]` by order: `[[0, 1, 3], [2]]`.
    """
    ordered = sorted(sequences, key=lambda sequence: sequence.order)
    main = [sequence for sequence in ordered if sequence.parent < 0]
    return [part for part in (main, *([sequence] for sequence in ordered if sequence.parent >= 0)) if part]


def rewards_of_chain(rollout: Rollout, chain: Sequence[Sample], *, reward: float) -> np.ndarray:
    """The reward at each sampled token of a chain, [N], 0 but at the last one of a sequence; they add up to that of the last.

    `reward` is the rollout's. Where a sequence has a reward of its own, the undiscounted sum from any of its tokens on is that
    reward; at the end of the next one it has changed to the next one's.
    """
    own = [reward if s.reward is None else reward + (s.reward - rollout.reward) for s in chain]
    rewards = [np.zeros(sequence.num_trained_tokens) for sequence in chain]
    for number, part in enumerate(rewards):
        part[-1] = own[number] - (own[number + 1] if number + 1 < len(chain) else 0.0)
    return np.concatenate(rewards)


def discounted(rewards_N: np.ndarray, values_N: np.ndarray, *, discount: float, decay: float) -> np.ndarray:
    """The generalized advantage of each token of a chain, [N], float64, with `decay` as lambda; nothing follows the last token.

    Example without values, with discount and lambda 1: all tokens have the sum of the rewards from there on.
    """
    following_N = np.append(values_N[1:], 0.0)
    delta_N = rewards_N + discount * following_N - values_N
    advantages_N, running = np.zeros(len(delta_N)), 0.0
    for place in range(len(delta_N) - 1, -1, -1):
        running = delta_N[place] + discount * decay * running
        advantages_N[place] = running
    return advantages_N


def decay_of(config: CriticConfig, num_tokens: int) -> float:
    """Lambda for the advantages of a chain of this length: fixed, or with `adaptive_alpha` between 0 and 1 by the length."""
    if config.adaptive_alpha is None:
        return config.gae_lambda
    return max(0.0, 1.0 - 1.0 / (config.adaptive_alpha * num_tokens))


def advantages_and_returns(config: CriticConfig, rewards_N: np.ndarray, values_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and the returns that the values are to predict, [N] each, float64."""
    values_N = np.asarray(values_N, np.float64)
    decay = decay_of(config, len(values_N))
    advantages_N = discounted(rewards_N, values_N, discount=config.discount, decay=decay)
    own = decay if config.return_lambda is None else config.return_lambda
    of_returns_N = advantages_N if own == decay else discounted(rewards_N, values_N, discount=config.discount, decay=own)
    return advantages_N, of_returns_N + values_N


def explained_variance(values_N: np.ndarray, returns_N: np.ndarray) -> float:
    """1 - variance of (returns - values) / variance of returns: 1 for perfect values, 0 for constants, 0 if returns are equal."""
    variance = float(np.var(returns_N))
    return 1.0 - float(np.var(returns_N - values_N)) / variance if variance > 0 else 0.0


def value_loss(
    values_N: "torch.Tensor", old_values_N: "torch.Tensor", returns_N: "torch.Tensor", *, clip: float | None
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Half of the squared error of each value, [N], and where clipping stopped its gradient, [N].

    With `clip` the larger of the errors of V and of V kept within `clip` of the old value (arXiv 2005.12729, section 3).
    """
    import torch

    error_N = (values_N - returns_N).square()
    if clip is None:
        return 0.5 * error_N, torch.zeros_like(error_N, dtype=torch.bool)
    near_N = old_values_N + (values_N - old_values_N).clamp(-clip, clip)
    clipped_N = (near_N - returns_N).square()
    return 0.5 * torch.maximum(error_N, clipped_N), (clipped_N > error_N).detach()
