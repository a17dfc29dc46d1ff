"""The training loop: prompts, generate, score, advantages, update, sync, log. One loop, synchronous or not.

Evaluation before and after uses the same servers and sampling, so that the table's rows can be compared.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from typing import Any

from vime.algorithm.advantage import group_advantages
from vime.algorithm.batch import build_updates
from vime.algorithm.own_advantage import own_advantage
from vime.cluster.placement import takes_turns
from vime.config import AlgorithmName, Before, RunConfig
from vime.errors import CheckpointError
from vime.evaluation.conditions import SCAFFOLD, TRAINED, needs_trained_model, rows_of
from vime.evaluation.evaluator import Evaluator
from vime.evaluation.pin import Pin
from vime.evaluation.repeatable import check_repeatable
from vime.hooks import load_hook
from vime.preflight.compose import Composed
from vime.rollout.buffer import Buffer
from vime.rollout.journal import Journal
from vime.rollout.metrics import batch_metrics
from vime.rollout.own_producer import OwnProducer
from vime.rollout.pool import WorkerPool
from vime.rollout.producer import Producer
from vime.session import Session
from vime.step_clock import StepClock
from vime.system import System

logger = logging.getLogger(__name__)


def train(composed: Composed) -> None:
    """Trains, with evaluation before and after; `algorithm=sft` learns from demonstrations instead."""
    supervised = composed.config.algorithm.name is AlgorithmName.sft
    run(composed, _train_supervised if supervised else _train)


def evaluate(composed: Composed) -> None:
    """Scores the checkpoint that the configuration names, and baselines; without a row for it, it is not served."""
    if not needs_trained_model(composed.config):
        others = {name: model for name, model in composed.config.serving.models.items() if not model.trained}
        serving = replace(composed.config.serving, models=others)
        composed = replace(composed, config=replace(composed.config, serving=serving))
    run(composed, _evaluate)


def run(composed: Composed, body: Any) -> None:
    """Opens the run folder and runs one of the bodies below in an event loop."""
    with Session.open(composed) as session:
        asyncio.run(body(session))


async def _evaluate(session: Session) -> None:
    async with session.system(with_trainer=False, with_servers=True) as system:
        evaluator = session.evaluator(system)
        for row in rows_of(session.config):
            await session.evaluate(evaluator, row, version=0)
    session.finish()


async def _train(session: Session) -> None:
    config = session.config
    source = load_hook(config.data.source)(config)
    async with session.system(with_trainer=True, with_servers=True) as system:
        assert system.trainer and system.workers
        pin = Pin()
        journal = Journal(session.directory.journal) if config.rollout.journal and not config.rollout.producer else None

        async def state(step: int) -> dict[str, Any]:
            if journal is not None:
                journal.begin(step, oldest_step=system.checkpoints.oldest_step() if system.checkpoints else None)
            held = await producer.state()  # nothing may be awaited between buffer and source
            return {"buffer": held, "source": deepcopy(source.state())}  # which is written while the source goes on

        first_step, waiting = await _resume(session, system, source)
        if journal is not None:
            if config.resume and (num_recalled := journal.recall(first_step)):
                session.console.say(f"{num_recalled} groups that had finished after step {first_step} are used again")
            journal.begin(first_step)
        session.console.first_sync(await system.sync_weights(first_step))
        evaluator = session.evaluator(system)
        if first_step == 0 and config.evaluation.before is Before.full:
            await session.evaluate_before(evaluator)
        producer = _producer(config, system.workers, source=source, journal=journal, version=first_step)
        if waiting is not None:
            producer.load(waiting)
        try:
            for step in range(first_step, config.trainer.num_steps):
                producer.set_version(step, num_batches_left=config.trainer.num_steps - step)
                _evaluate_during(session, system, evaluator, pin, step)
                await train_step(session, system, producer, pin, step)
                await _after_step(session, system, step + 1, state)
        finally:
            await pin.cancel()
            await producer.stop()
        if TRAINED in config.evaluation.rows:
            await session.evaluate(evaluator, TRAINED, version=config.trainer.num_steps)
        async with system.trainer_awake() as trainer:
            await trainer.save_hugging_face(session.directory.path / "model")
    session.finish()


def _producer(
    config: RunConfig, workers: WorkerPool, *, source: Any, journal: Journal | None, version: int
) -> Producer | OwnProducer:
    """What keeps groups running: the built-in producer, or the user's."""
    rollout = config.rollout
    if rollout.producer is not None:
        return OwnProducer(config, path=rollout.producer, source=source, runner=workers, version=version)
    keep = load_hook(rollout.filter) if rollout.filter else None
    return Producer(rollout, source=source, runner=workers, buffer=Buffer(), keep=keep, journal=journal)


async def train_step(session: Session, system: System, producer: Producer | OwnProducer, pin: Pin, step: int) -> None:
    """One batch: wait for its groups, build the updates, train, bring the weights to the servers once nothing pins them."""
    config = session.config
    assert system.trainer and system.serving and system.workers
    clock = StepClock(system.workers.usage)
    await clock.start()
    with session.console.rollouts(step, config.rollout.num_prompts) as bar:
        producer.on_group = lambda group: bar.advance()
        groups, counts = await producer.batch()
    await clock.mark("generation")
    if config.deterministic:
        check_repeatable(rollout for group in groups for rollout in group.rollouts)
    updates, metrics = await asyncio.to_thread(
        build_updates,
        config.algorithm,
        groups,
        credit=config.method.credit,
        num_updates=config.trainer.num_updates_per_batch,
        seed=config.seed + step,
        version=step,
        advantage=own_advantage(config.algorithm.advantage) if config.algorithm.advantage else group_advantages,
    )
    metrics |= counts | await asyncio.to_thread(batch_metrics, groups, version=step)
    if takes_turns(config):
        await pin.released()  # the servers sleep while the trainer works
    metrics |= await system.train(updates, step)
    if takes_turns(config) and is_saved_after(config, step + 1):
        assert system.checkpoints
        await system.checkpoints.begin(step=step + 1)  # later the servers would have to sleep once more for it
    await clock.mark("training")
    await pin.released()
    await clock.mark("evaluation")
    async with system.workers.expecting_weights() if config.rollout.in_flight_updates else system.workers.held():
        metrics |= await system.sync_weights(step + 1)
    await clock.mark("sync")
    metrics |= await system.serving_metrics()
    session.trace.phases(clock.spans, step=step + 1)
    session.log_step(step, metrics | clock.metrics(), groups, await system.events())
    await session.save_rollouts(step, groups)


async def _after_step(session: Session, system: System, step: int, state: Callable[[int], Awaitable[dict[str, Any]]]) -> None:
    """A checkpoint where one is due after `step` batches."""
    assert system.checkpoints
    await system.checkpoints.check()
    if is_saved_after(session.config, step):
        driver = {**await state(step), **session.state()}
        async with nullcontext() if takes_turns(session.config) else system.trainer_awake():
            await system.checkpoints.save(step=step, driver=driver)


def is_saved_after(config: RunConfig, step: int) -> bool:
    """Whether a checkpoint is due after so many batches."""
    return step % config.trainer.save_every == 0 or step == config.trainer.num_steps


def _evaluate_during(session: Session, system: System, evaluator: Evaluator, pin: Pin, step: int) -> None:
    """Starts the evaluation that is due after `step` batches; it runs beside the next one and pins the servers' weights."""
    config = session.config
    every, evaluation = config.trainer.evaluate_every, config.evaluation
    before = evaluation.before is Before.one_run and SCAFFOLD in evaluation.rows
    is_due = every and step % every == 0 if step else before
    if is_due and not session.has_evaluated(step):
        pin.start(_evaluate_and_note(session, system, evaluator, step))


async def _evaluate_and_note(session: Session, system: System, evaluator: Evaluator, step: int) -> None:
    """The scores decide, with `trainer.keep_best`, which checkpoint stays."""
    assert system.checkpoints
    scores = await session.evaluate(evaluator, TRAINED, version=step, label=f"step{step}", num_runs=1)
    await system.checkpoints.note_scores(step=step, scores=scores)


async def _resume(session: Session, system: System, source: Any) -> tuple[int, dict[str, Any] | None]:
    """The step to go on with and the producer's state there; restores trainer and prompt stream from the last checkpoint."""
    if not session.config.resume:
        return 0, None
    assert system.checkpoints
    path = system.checkpoints.newest()
    if path is None:
        session.restore(step=0, state={})
        return 0, None
    driver = await system.checkpoints.load(path)
    if driver["step"] > session.config.trainer.num_steps:
        raise CheckpointError(f"{path} is after step {driver['step']}, beyond trainer.num_steps")
    source.load(driver["source"])
    session.restore(step=driver["step"], state=driver)
    return driver["step"], driver["buffer"]


async def _train_supervised(session: Session) -> None:
    """Supervised training on demonstrations; needs no server."""
    config = session.config
    assert config.data.demonstrations is not None, "algorithm=sft needs data.demonstrations"
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(config.model.checkpoint)
    demonstrations = load_hook(config.data.demonstrations)
    trainer_config = config.trainer
    async with session.system(with_trainer=True, with_servers=False) as system:
        assert system.trainer
        first_step = await _resume_supervised(session, system)
        for step in range(first_step, trainer_config.num_steps):
            clock = StepClock()
            samples = demonstrations(tokenizer, step, trainer_config.num_steps, trainer_config.sft_tokens_per_step, config.seed)
            await clock.mark("generation")
            metrics = await system.train([samples], step)
            await clock.mark("training")
            session.log_step(step, metrics | clock.metrics(), [], [])
            await _after_supervised_step(session, system, step + 1)
        await system.trainer.save_hugging_face(session.directory.path / "model")
    session.finish()


async def _resume_supervised(session: Session, system: System) -> int:
    assert system.checkpoints
    path = system.checkpoints.newest() if session.config.resume else None
    if path is None:
        return 0
    driver = await system.checkpoints.load(path)
    session.restore(step=driver["step"], state=driver)
    return driver["step"]


async def _after_supervised_step(session: Session, system: System, step: int) -> None:
    assert system.checkpoints
    await system.checkpoints.check()
    if is_saved_after(session.config, step):
        await system.checkpoints.save(step=step, driver=session.state())
