"""Credit for turns: advantages of single replies from the rewards of steps (`step_reward`) and of the rollout.

The return of turn k of a seat is G_k, the sum over j >= k of discount^(j-k) r_j. r_j are the rewards of steps; what the reward of
the rollout has beside their sum stands at the last turn. G_k is compared with the returns of other turns of the group:

- `returns`: with those of all turns, A_k = (G_k - mean) / deviation;
- `states`: with those of turns in the same state, added to the advantage of the rollout: A + weight · (G_k - mean) / deviation
  (GiGPO, arXiv 2505.10978, section 4). A state is what stands in the sequence between the reply before and this one, the whole
  prompt for a first reply; a state that occurred once compares nothing.

Rewards of steps are not compared with those of the same turn number before they are summed: where the policy decides how many
turns there are, a rollout would be charged for each turn that it goes on, and that is biased.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np

from vime.algorithm.advantage import EPSILON, shaped_reward
from vime.config import AlgorithmConfig, Normalization, TurnCredit
from vime.types import STEP_REWARD, Group, Rollout, Sample


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnReturn:
    """A turn: `TurnReturn(rollout_id=7, order=0, num_tokens=12, seat="", state=b"…", value=0.9)`."""

    rollout_id: int
    order: int
    """Place of its sequence in the rollout."""
    num_tokens: int
    seat: str
    state: bytes
    value: float
    """The discounted return from this turn on."""


def turn_advantages(config: AlgorithmConfig, groups: list[Group], found: Mapping[int, Any]) -> dict[tuple[int, int], np.ndarray]:
    """Advantages of the trained tokens of each sequence, by rollout id and order, float64.

    `found` are the advantages of rollouts, or lists of those of their samples.
    """
    advantages: dict[tuple[int, int], list[np.ndarray]] = {}
    by_state = config.turn_credit is TurnCredit.states
    for group in groups:
        turns = [turn for rollout in group.rollouts if rollout.rollout_id in found for turn in returns_of(config, rollout)]
        compared: dict[Any, list[float]] = {}
        for turn in turns:
            compared.setdefault((turn.seat, turn.state if by_state else b""), []).append(turn.value)
        for turn in turns:
            own = _compared(config, turn.value, compared[turn.seat, turn.state if by_state else b""])
            if by_state:
                whole = found[turn.rollout_id]
                own = (whole[turn.order] if isinstance(whole, list) else whole) + config.turn_weight * own
            advantages.setdefault((turn.rollout_id, turn.order), []).append(np.full(turn.num_tokens, own))
    return {key: np.concatenate(parts) for key, parts in advantages.items()}


def returns_of(config: AlgorithmConfig, rollout: Rollout) -> list[TurnReturn]:
    """The turns of a rollout with their returns, each seat's in their order."""
    sequences: dict[str, list[tuple[int, Sample]]] = {}
    for order, sample in enumerate(rollout.samples):
        if not sample.remove_sample and sample.num_trained_tokens:
            sequences.setdefault(sample.seat, []).append((order, sample))
    found: list[TurnReturn] = []
    for seat, own in sequences.items():
        rewards = [rollout.reward if sample.reward is None else sample.reward for _, sample in own]
        total = shaped_reward(config, rollout) + fmean(rewards) - rollout.reward
        turns = [(order, *turn) for order, sample in own for turn in _turns(sample)]
        steps = [reward for _, _, _, reward in turns]
        steps[-1] += total - sum(steps)
        value, of_seat = 0.0, list[TurnReturn]()
        for (order, num_tokens, state, _), reward in zip(reversed(turns), reversed(steps)):
            value = reward + config.turn_discount * value
            of_seat.append(
                TurnReturn(rollout_id=rollout.rollout_id, order=order, num_tokens=num_tokens, seat=seat, state=state, value=value)
            )
        found += reversed(of_seat)
    return found


def _turns(sample: Sample) -> list[tuple[int, bytes, float]]:
    """Each reply of a sequence: its trained tokens, a digest of the tokens between it and the reply before, and its reward."""
    trained, tokens = sample.trained, np.asarray(sample.tokens, np.int32)
    offset = len(tokens) - len(trained)
    edges = np.diff(np.concatenate([[0], trained.astype(np.int8), [0]]))
    rewards = np.broadcast_to(np.asarray(sample.values(STEP_REWARD), np.float64), trained.shape)
    found, before = [], 0
    for start, end in zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist()):
        state = hashlib.sha256(tokens[before : offset + start].tobytes()).digest()
        found.append((end - start, state, float(rewards[start:end].sum())))
        before = offset + end
    return found


def _compared(config: AlgorithmConfig, value: float, others: list[float]) -> float:
    """The difference of a return to the mean of those that it is compared with, itself included; 0 if all are equal."""
    if len(set(others)) <= 1:
        return 0.0
    scale = stdev(others) + EPSILON if config.normalization is Normalization.std else 1.0
    return (value - fmean(others)) / scale
