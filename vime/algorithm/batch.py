"""From groups to optimizer updates: sequences with the columns that an algorithm gives them, and the weight of each token.

All averages are decided here, so the trainer only sums: loss = sum of weight * mask * loss. The order, packing and sharding of
sequences cannot change the loss.
"""

import random
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np

from vime.algorithm.advantage import has_signal
from vime.algorithm.algorithm import Algorithm, Columns
from vime.config import Aggregation, AlgorithmConfig
from vime.errors import HookError
from vime.types import ColumnType, Group, Rollout, Sample
from vime.types.column import ADVANTAGE, WEIGHT


def sequences_of(groups: list[Group]) -> list[Sample]:
    """The samples of a batch that can be trained: not removed, with a trained token, of rollouts that count for training."""
    rollouts = [rollout for group in groups for rollout in group.rollouts if _counts(rollout)]
    return [sequence for rollout in rollouts for sequence in _sequences(rollout)]


def build_updates(
    algorithm: Algorithm,
    groups: list[Group],
    columns: Columns | None = None,
    *,
    num_updates: int = 1,
    seed: int = 0,
) -> tuple[list[list[Sample]], dict[str, float]]:
    """Splits a batch into `num_updates` parts by rollouts, and turns each part into sequences with columns and weights.

    `columns` are the algorithm's columns for the batch. Rollouts without an advantage and samples marked `remove_sample` are left
    out; the latter are still part of the baseline. Returns the updates and metrics of the advantages. Raises `HookError` if the
    algorithm's values do not fit the rollouts.
    """
    columns = columns or algorithm.advantages(groups, sequences_of(groups))
    spread = _Spread(algorithm, columns, groups)
    rollouts = [r for group in groups for r in group.rollouts if r.rollout_id in spread.rollouts and r.samples]
    rollouts.sort(key=lambda rollout: rollout.rollout_id)
    if num_updates > 1:
        random.Random(seed).shuffle(rollouts)
    parts = [rollouts[start::num_updates] for start in range(num_updates)]
    weighed = [_weighed(algorithm, [_sequences(rollout) for rollout in part]) for part in parts if part]
    filled = [[spread.filled(sequence, weights) for sequence, weights in update] for update in weighed if update]
    updates = [[each for each in update if columns.is_blank or algorithm.has_gradient(each)] or update[:1] for update in filled]
    absolute = [_absolute(value) for value in shown(columns, groups).values() if value != []]
    num_samples = sum(len(rollout.samples) for rollout in rollouts)
    metrics = {
        "train/advantage_mean_absolute": fmean(absolute) if absolute else 0.0,
        "train/num_rollouts": float(len(rollouts)),
        "train/num_samples_masked": float(num_samples - sum(map(len, weighed))),
        "train/num_samples_left_out": float(sum(map(len, weighed)) - sum(map(len, updates))),
    }
    if algorithm.compares_groups:
        metrics["train/groups_without_signal_share"] = sum(not has_signal(g) for g in groups) / len(groups) if groups else 0.0
    return updates, metrics | columns.metrics


def unknown(groups: list[Group]) -> Columns:
    """Columns before an algorithm has said anything: every rollout that counts is trained."""
    return Columns({"advantage": {r.rollout_id: 0.0 for g in groups for r in g.rollouts if _counts(r)}}, is_blank=True)


def shown(columns: Columns, groups: list[Group]) -> dict[int, Any]:
    """Advantages by rollout for records and metrics: a number, or a list with one for each of its samples."""
    given = columns.values["advantage"] if columns.shown is None else columns.shown
    num_samples = {rollout.rollout_id: len(rollout.samples) for group in groups for rollout in group.rollouts}
    found: dict[int, Any] = {}
    for key, value in given.items():
        if isinstance(key, tuple):
            found.setdefault(key[0], [0.0] * num_samples[key[0]])[key[1]] = _mean(value)
        else:
            found[key] = [_mean(each) for each in value] if isinstance(value, list) else value
    return found


def _counts(rollout: Rollout) -> bool:
    return rollout.counting.trained and rollout.counting.in_baseline


def _sequences(rollout: Rollout) -> list[Sample]:
    """The samples of a rollout that have a trained token, with their places in it."""
    found = []
    for order, sample in enumerate(rollout.samples):
        if not sample.remove_sample and sample.num_trained_tokens:
            is_placed = sample.rollout_id == rollout.rollout_id and sample.order == order
            found.append(sample if is_placed else replace(sample, rollout_id=rollout.rollout_id, order=order))
    return found


def _weighed(algorithm: Algorithm, rollouts: list[list[Sample]]) -> list[tuple[Sample, dict[str, float]]]:
    """The sequences of the rollouts of an update, each with the columns of weights of its tokens (`Algorithm.weights`)."""
    found = [(sequence, {WEIGHT.name: weight}) for sequence, weight in _averaged(algorithm.config, rollouts)]
    for name, holds in algorithm.weights.items():
        own = _averaged(algorithm.config, [[each for each in rollout if holds(each)] for rollout in rollouts])
        by_place = {(sequence.rollout_id, sequence.order): weight for sequence, weight in own}
        for sequence, weights in found:
            weights[name] = by_place.get((sequence.rollout_id, sequence.order), 0.0)
    return found


def _averaged(config: AlgorithmConfig, rollouts: list[list[Sample]]) -> list[tuple[Sample, float]]:
    """Sequences, each with the weight of its tokens in an average over all of them; see `Aggregation`."""
    counted = [[(sequence, _num_sampled(sequence)) for sequence in sequences] for sequences in rollouts if sequences]
    num_sequences = sum(map(len, counted))
    num_tokens = sum(trained for pairs in counted for _, trained in pairs)
    result = []
    for pairs in counted:
        rollout_tokens = sum(trained for _, trained in pairs)
        for sequence, trained in pairs:
            if config.aggregation is Aggregation.token:
                weight = 1.0 / num_tokens
            elif config.aggregation is Aggregation.sample:
                weight = 1.0 / (num_sequences * trained)
            elif config.aggregation is Aggregation.rollout:
                weight = 1.0 / (len(counted) * rollout_tokens)
            elif config.aggregation is Aggregation.nested:
                weight = 1.0 / (len(counted) * len(pairs) * trained)
            else:
                weight = 1.0 / (len(counted) * config.constant_tokens)
            result.append((sequence, weight))
    return result


def _num_sampled(sequence: Sample) -> int:
    return int(np.count_nonzero(np.asarray(sequence.loss_mask)))


class _Spread:
    """An algorithm's columns, spread over sequences and checked."""

    def __init__(self, algorithm: Algorithm, columns: Columns, groups: list[Group]) -> None:
        self._source, self._values = algorithm.source, columns.values
        declared = {kind.name: kind for kind in (ADVANTAGE, *algorithm.columns)}
        if ADVANTAGE.name not in self._values:
            raise HookError(f"{self._source} returned no column {ADVANTAGE.name!r}")
        if undeclared := sorted(set(self._values) - set(declared)):
            raise HookError(f"{self._source} returned the column {undeclared[0]!r}, which its `columns` do not declare")
        self._types = [declared[name] for name in self._values]
        self._wanted = [name for name, kind in declared.items() if kind.fill is None and not columns.is_blank]
        self._num_samples = {rollout.rollout_id: len(rollout.samples) for group in groups for rollout in group.rollouts}
        keys = [*self._values["advantage"], *(columns.shown or ())]
        self.rollouts = {key[0] if isinstance(key, tuple) else key for key in keys}
        for values in self._values.values():
            self._check(values)

    def filled(self, sequence: Sample, weights: dict[str, float]) -> Sample:
        """The sequence with the algorithm's columns and the weights of its tokens."""
        found = {kind.name: self._of(sequence, kind) for kind in self._types}
        found = {name: value for name, value in found.items() if value is not None}
        filled = sequence.with_columns(**weights, **found)
        for name in self._wanted:
            if name not in filled.columns:
                place = f"sequence {sequence.order} of rollout {sequence.rollout_id}"
                raise HookError(f"{self._source} returned no column {name!r} for {place}, which has none of its own")
        return filled

    def _check(self, values: Mapping[Any, Any]) -> None:
        """Raises HookError if a value belongs to no rollout, is not one for each sample, or is not finite."""
        for key, value in values.items():
            rollout_id = key[0] if isinstance(key, tuple) else key
            if rollout_id not in self._num_samples:
                raise HookError(f"{self._source} returned an advantage of rollout {rollout_id!r}, which is not in the batch")
            if isinstance(value, list) and key == rollout_id and len(value) != self._num_samples[rollout_id]:
                wanted = f"{len(value)} advantages for the {self._num_samples[rollout_id]} samples of rollout {rollout_id}"
                raise HookError(f"{self._source} returned {wanted}")
            parts = value if isinstance(value, list) else [value]
            if not all(np.isfinite(np.asarray(part, np.float64)).all() for part in parts):
                raise HookError(f"{self._source} returned the advantage {value} for rollout {rollout_id}: it must be finite")

    def _of(self, sequence: Sample, kind: ColumnType) -> Any:
        values, rollout_id = self._values[kind.name], sequence.rollout_id
        value = values.get((rollout_id, sequence.order))
        if value is None:
            value = values.get(rollout_id)
            value = value[sequence.order] if isinstance(value, list) else value
        if value is None or (array := np.asarray(value)).ndim == len(kind.shape):
            return value
        trained = sequence.trained
        turns = np.flatnonzero(trained & ~np.concatenate([[False], trained[:-1]]))
        num_tokens = int(np.count_nonzero(trained))
        if len(array) == num_tokens:
            return array
        if len(array) == len(turns):
            return np.repeat(array, np.add.reduceat(trained, turns, dtype=np.int64), axis=0)
        place = f"sequence {sequence.order} of rollout {rollout_id}"
        counts = f"{len(array)} values of {kind.name} for the {len(turns)} turns and {num_tokens} trained tokens of {place}"
        raise HookError(f"{self._source} returned {counts}")


def _mean(value: Any) -> float:
    return float(np.mean(np.asarray(value)))


def _absolute(value: Any) -> float:
    return fmean(map(abs, value)) if isinstance(value, list) else abs(float(value))
