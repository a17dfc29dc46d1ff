"""The batch that a training step learns from: rollouts, or demonstrations. The loop is the same for both."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from vime.algorithm.algorithm import Algorithm, Columns
from vime.algorithm.batch import build_updates, sequences_of, shown, unknown
from vime.algorithm.choice import is_paired
from vime.config import RunConfig
from vime.data.preferences import PreferenceRows
from vime.data.source import REMEDY
from vime.errors import ConfigError, Problem, written
from vime.evaluation.repeatable import check_repeatable
from vime.hooks import Named, load_hook
from vime.model.load_tokenizer import load_tokenizer
from vime.orchestration.batch_metrics import batch_metrics
from vime.orchestration.buffer import Buffer
from vime.orchestration.journal import Journal
from vime.orchestration.own_producer import OwnProducer
from vime.orchestration.producer import Producer, PromptStream, Runner
from vime.report.console import Bar
from vime.threads import raising
from vime.types import Group, Sample

Ask = Callable[[list[Sample]], Awaitable[list[dict[str, Any]]]]
"""Asks the trainer for the columns of `Algorithm.needs_before` of the sequences of an update."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The batch that one step learns from: groups of rollouts, or demonstrations."""

    groups: list[Group] = field(default_factory=list)
    demonstrations: list[Sample] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lesson:
    """The trainer's part of a batch: the sequences of each optimizer update, with the columns of the algorithm."""

    updates: list[list[Sample]]
    advantages: dict[int, Any] = field(default_factory=dict)
    """The advantage of each trained rollout by its `rollout_id`, or of each of its samples, for records."""
    metrics: dict[str, float] = field(default_factory=dict)

    def by_tokens(self, logprobs: list[list[dict[str, Any]]]) -> dict[int, Any]:
        """The trainer's logprobs of trained tokens by the `id()` of a sequence's tokens, from those of the updates."""
        pairs = (pair for update, found in zip(self.updates, logprobs) for pair in zip(update, found))
        return {id(sequence.tokens): columns["trained"] for sequence, columns in pairs}


async def lesson_of(config: RunConfig, algorithm: Algorithm, batch: Batch, step: int, ask: Ask) -> Lesson:
    """Has the algorithm compute its columns for a batch, such as advantages, and splits the batch into updates.

    If the algorithm first needs columns of the trainer, the batch is split twice, and the trainer is asked in between; the
    sequences of an update are then in the same rows in both passes. Raises `HookError` if the algorithm's values do not fit the
    batch.
    """
    if batch.demonstrations:
        return await _demonstrated(algorithm, batch.demonstrations, ask)
    if not batch.groups:
        return Lesson(updates=[])
    split = {"num_updates": config.trainer.num_updates_per_batch, "seed": config.seed + step}
    if not algorithm.needs_before:
        known = await asyncio.to_thread(sequences_of, batch.groups)
        columns = await _advantages(algorithm, batch.groups, known)
        updates, metrics = await asyncio.to_thread(raising, build_updates, algorithm, batch.groups, columns, **split)
        return Lesson(updates=updates, advantages=shown(columns, batch.groups), metrics=metrics)
    blank, _ = await asyncio.to_thread(raising, build_updates, algorithm, batch.groups, unknown(batch.groups), **split)
    answers = {(s.rollout_id, s.order): found for update in blank for s, found in zip(update, await ask(update))}
    known = [sequence.with_columns(**answers[sequence.rollout_id, sequence.order]) for update in blank for sequence in update]
    columns = await _advantages(algorithm, batch.groups, known)
    updates, metrics = await asyncio.to_thread(raising, build_updates, algorithm, batch.groups, columns, **split)
    updates = [[s.with_columns(**answers[s.rollout_id, s.order]) for s in update] for update in updates]
    return Lesson(updates=updates, advantages=shown(columns, batch.groups), metrics=metrics)


async def _advantages(algorithm: Algorithm, groups: list[Group], known: list[Sample]) -> Columns:
    with algorithm.named():
        return await asyncio.to_thread(raising, algorithm.advantages, groups, known)


async def _demonstrated(algorithm: Algorithm, samples: list[Sample], ask: Ask) -> Lesson:
    """Demonstrations as one update; with the advantages of an algorithm that first needs columns of the trainer for them."""
    if not algorithm.needs_before:
        return Lesson(updates=[samples])
    known = [sample.with_columns(**found) for sample, found in zip(samples, await ask(samples), strict=True)]
    columns = await _advantages(algorithm, [], known)
    given = columns.values["advantage"]
    taught = [sample.with_columns(advantage=given[sample.rollout_id, sample.order]) for sample in known]
    return Lesson(updates=[taught], metrics=columns.metrics)


class Batches(Protocol):
    """One batch after the other; `state` and `load` carry over to a run that is resumed."""

    async def next(self, step: int) -> Batch: ...
    async def state(self, step: int, *, oldest_step: int | None) -> dict[str, Any]: ...


class RolloutBatches:
    """Batches of rollouts: groups from the producer."""

    def __init__(
        self,
        config: RunConfig,
        source: Any,
        runner: Runner,
        *,
        journal: Journal | None,
        state: dict[str, Any] | None,
        version: int,
        bar: Callable[[int, int], AbstractContextManager[Bar]],
    ) -> None:
        """`source` yields prompts (`data.source`); `state` is that of a run which goes on, else None; `version` is that
        of the servers' weights; `bar` shows a batch's progress."""
        self._config, self._journal, self._bar = config, journal, bar
        self._source: Any = Named("data.source", config.data.source, source)
        self._producer = make_producer(config, self._source, runner, journal=journal, version=version)
        self._taken: list[Group] = []
        if state is not None:
            self._producer.load(state)

    def begin(self, step: int, *, num_left: int) -> None:
        """Starts the groups that the weights of `step` admit and that the `num_left` next batches, this one included, can use."""
        self._taken = []
        self._producer.set_version(step, num_batches_left=num_left)

    async def next(self, step: int) -> Batch:
        """Waits for the groups of a batch."""
        config = self._config
        with self._bar(step, config.rollout.num_prompts) as bar:
            self._producer.on_group = lambda group: bar.advance()
            groups, counts = await self._producer.batch()
        self._taken = groups
        if config.deterministic:
            check_repeatable(rollout for group in groups for rollout in group.rollouts)
        of_source = self._source.metrics() if hasattr(self._source, "metrics") else {}
        metrics = counts | of_source | await asyncio.to_thread(batch_metrics, groups, version=step)
        return Batch(groups=groups, metrics=metrics)

    async def state(self, step: int, *, oldest_step: int | None) -> dict[str, Any]:
        """The state from which a run is resumed after `step`; groups before the oldest checkpoint's step leave the journal."""
        if self._journal is not None:
            self._journal.begin(step, oldest_step=oldest_step)
        buffer = await self._producer.state()  # nothing may be awaited between buffer and source
        return {"buffer": buffer, "source": deepcopy(self._source.state())}  # which is written while the source goes on

    def give_back(self) -> None:
        """Puts back the groups of a batch that was not trained, so that `state` has them; a `rollout.producer` cannot."""
        self._producer.give_back(self._taken)
        self._taken = []

    async def stop(self) -> None:
        """Ends the groups at work; those that have finished are in the journal."""
        await self._producer.stop()


class DemonstrationBatches:
    """Batches of demonstrations, for `algorithm=sft`: the method's (`data.demonstrations`), or pairs (`data.train`)."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._tokenizer = load_tokenizer(config.model.checkpoint)
        self._order: dict[str, Any] = {"seed": config.seed}
        """Settings on which the order of the demonstrations depends."""
        self._rows = ""
        """A digest of the rows of pairs."""
        if is_paired(config):
            pairs = PreferenceRows(config, self._tokenizer)
            self._demonstrations: Any = pairs
            self._rows, self._order = pairs.digest, {} if not config.data.shuffle else self._order
            self._order |= {"data.shuffle": config.data.shuffle, "rollout.num_prompts": config.rollout.num_prompts}
        else:
            assert config.data.demonstrations is not None, "algorithm=sft needs data.demonstrations"
            self._order["data.demonstrations"] = config.data.demonstrations
            self._demonstrations = load_hook(config.data.demonstrations)

    async def next(self, step: int) -> Batch:
        """About `trainer.sft_tokens_per_step` tokens, for one update."""
        trainer, seed = self._config.trainer, self._config.seed
        samples = self._demonstrations(self._tokenizer, step, trainer.num_steps, trainer.sft_tokens_per_step, seed)
        return Batch(demonstrations=samples)

    async def state(self, step: int, *, oldest_step: int | None) -> dict[str, Any]:
        """The order of the demonstrations, in which the step is a place."""
        return {"demonstrations": {**self._order, "rows": self._rows}}

    def check(self, state: dict[str, Any]) -> None:
        """Raises `ConfigError` if a checkpoint's `state` is of other demonstrations, or of another order."""
        before, train = state.get("demonstrations", {}), self._config.data.train
        found = [
            Problem(key=key, value=value, remedy=f"the checkpoint has {written(before[key])}")
            for key, value in self._order.items()
            if before.get(key, value) != value
        ]
        if before.get("rows", self._rows) != self._rows:
            key, value = ("generator", train.generator) if train.generator is not None else ("path", train.path)
            found.append(Problem(key=f"data.train.{key}", value=value, remedy="its rows are not those of the checkpoint"))
        if found:
            raise ConfigError([replace(problem, remedy=f"{problem.remedy}; {REMEDY}") for problem in found])


def make_producer(
    config: RunConfig, source: PromptStream, runner: Runner, *, journal: Journal | None = None, version: int = 0
) -> Producer | OwnProducer:
    """The producer that keeps groups running: the built-in one, or the user's (`rollout.producer`)."""
    rollout = config.rollout
    if rollout.producer is not None:
        return OwnProducer(config, path=rollout.producer, source=source, runner=runner, version=version)
    keep = load_hook(rollout.filter) if rollout.filter else None
    return Producer(rollout, source=source, runner=runner, buffer=Buffer(), keep=keep, journal=journal)
