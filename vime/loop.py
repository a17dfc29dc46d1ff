"""The training loop: prompts, generate, score, advantages, update, sync, log. One loop, synchronous or not.

Evaluation before and after uses the same servers and sampling, so that the table's rows can be compared.
"""

import asyncio
import logging
import time
from typing import Any

from vime.algorithm.advantage import group_advantages
from vime.algorithm.batch import build_updates
from vime.compose import Composed
from vime.config import AlgorithmName
from vime.data.buffer import Buffer
from vime.errors import CheckpointError
from vime.hooks import load_hook
from vime.rollout.metrics import batch_metrics
from vime.rollout.producer import Producer
from vime.session import Session
from vime.system import System

logger = logging.getLogger(__name__)


def train(composed: Composed) -> None:
    """Trains, with evaluation before and after; `algorithm=sft` learns from demonstrations instead."""
    supervised = composed.config.algorithm.name is AlgorithmName.sft
    run(composed, _train_supervised if supervised else _train)


def evaluate(composed: Composed) -> None:
    """Scores the checkpoint that the configuration names: in a single turn and in the scaffold."""
    run(composed, _evaluate)


def run(composed: Composed, body: Any) -> None:
    """Opens the run folder and runs one of the bodies below in an event loop."""
    with Session.open(composed) as session:
        asyncio.run(body(session))


async def _evaluate(session: Session) -> None:
    config = session.config
    async with session.system(with_trainer=False, with_servers=True) as system:
        evaluator = session.evaluator(system)
        for row in ("single_turn", "scaffold"):
            if row in config.evaluation.rows:
                await session.evaluate(evaluator, row, version=0)
    session.finish()


async def _train(session: Session) -> None:
    config = session.config
    async with session.system(with_trainer=True, with_servers=True) as system:
        assert system.trainer and system.workers
        source = load_hook(config.data.source)(config)
        buffer = Buffer()
        keep = load_hook(config.rollout.filter) if config.rollout.filter else None
        producer = Producer(config.rollout, source=source, runner=system.workers, buffer=buffer, keep=keep)
        first_step = await _resume(session, system, source, buffer)
        session.console.warn_faults(await system.sync_weights(first_step))
        evaluator = session.evaluator(system)
        if first_step == 0:
            await session.evaluate_before(evaluator)
        try:
            producer.set_version(first_step)
            for step in range(first_step, config.trainer.num_steps):
                await _train_step(session, system, producer, step)
                producer_state = {"source": source.state(), "buffer": buffer.state()}
                await _after_step(session, system, evaluator, step + 1, producer_state)
                producer.set_version(step + 1)
        finally:
            await producer.stop()
        if "trained" in config.evaluation.rows:
            await session.evaluate(evaluator, "trained", version=config.trainer.num_steps)
        async with system.trainer_awake() as trainer:
            await trainer.save_hugging_face(session.directory.path / "model")
    session.finish()


async def _train_step(session: Session, system: System, producer: Producer, step: int) -> None:
    """One batch: wait for its groups, build the updates, train, bring the weights to the servers."""
    config = session.config
    assert system.trainer and system.serving
    clock = StepClock()
    with session.console.rollouts(step, config.rollout.num_prompts) as bar:
        producer.on_group = lambda group: bar.advance()
        groups, counts = await producer.batch()
    clock.mark("generation")
    updates, metrics = build_updates(
        config.algorithm,
        groups,
        credit=config.method.credit,
        num_updates=config.trainer.num_updates_per_batch,
        seed=config.seed + step,
        advantage=load_hook(config.algorithm.advantage) if config.algorithm.advantage else group_advantages,
    )
    metrics |= counts | batch_metrics(groups, version=step)
    metrics |= await system.train(updates, step)
    clock.mark("training")
    metrics |= await system.sync_weights(step + 1)
    metrics |= await system.serving_metrics()
    clock.mark("sync")
    session.log_step(step, metrics | clock.metrics(), groups, await system.serving.events())


async def _after_step(session: Session, system: System, evaluator: Any, step: int, state: dict[str, Any]) -> None:
    """Checkpoint and evaluation where they are due after `step` batches."""
    trainer = session.config.trainer
    assert system.checkpoints
    await system.checkpoints.check()
    if step % trainer.save_every == 0 or step == trainer.num_steps:
        async with system.trainer_awake():
            await system.checkpoints.save(step=step, driver={**state, **session.state()})
    if trainer.evaluate_every and step % trainer.evaluate_every == 0 and step < trainer.num_steps:
        scores = await session.evaluate(evaluator, "trained", version=step, label=f"step{step}", num_runs=1)
        await system.checkpoints.note_scores(step=step, scores=scores)


async def _resume(session: Session, system: System, source: Any, buffer: Buffer) -> int:
    """The step to go on with; restores trainer, prompt stream and buffer from the last checkpoint."""
    if not session.config.resume:
        return 0
    assert system.checkpoints
    path = system.checkpoints.newest()
    if path is None:
        session.restore(step=0, state={})
        return 0
    driver = await system.checkpoints.load(path)
    if driver["step"] > session.config.trainer.num_steps:
        raise CheckpointError(f"{path} is after step {driver['step']}, beyond trainer.num_steps")
    source.load(driver["source"])
    buffer.load(driver["buffer"])
    session.restore(step=driver["step"], state=driver)
    return driver["step"]


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
            clock.mark("generation")
            metrics = await system.train([samples], step)
            clock.mark("training")
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
    trainer = session.config.trainer
    assert system.checkpoints
    await system.checkpoints.check()
    if step % trainer.save_every == 0 or step == trainer.num_steps:
        await system.checkpoints.save(step=step, driver=session.state())


class StepClock:
    """Splits the time of a step into named parts, in seconds and as shares."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()
        self._parts: dict[str, float] = {}

    def mark(self, name: str) -> None:
        """Books the time since the last mark under `name`."""
        now = time.monotonic()
        self._parts[name] = self._parts.get(name, 0.0) + now - self._last
        self._last = now

    def metrics(self) -> dict[str, float]:
        """`time/<name>_seconds` and `time/<name>_share` for each part, and `time/step_seconds`."""
        total = max(time.monotonic() - self._started, 1e-9)
        metrics = {"time/step_seconds": total, "time/waiting_share": 1 - sum(self._parts.values()) / total}
        for name, seconds in self._parts.items():
            metrics[f"time/{name}_seconds"], metrics[f"time/{name}_share"] = seconds, seconds / total
        return metrics
