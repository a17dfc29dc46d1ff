"""The training loop: prompts, generate, score, advantages, update, sync, log. One loop, synchronous or not.

Evaluation before and after uses the same servers and sampling, so that the table's rows can be compared.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager, nullcontext, suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

from vime.algorithm.algorithm import Algorithm
from vime.algorithm.critic import Critic
from vime.batches import Batch, Batches, DemonstrationBatches, Lesson, RolloutBatches, lesson_of
from vime.cluster.placement import takes_turns
from vime.config import CRITIC, AlgorithmName, Before, RolloutDetail, RunConfig
from vime.data.overlap import check_overlap
from vime.data.source import RowSource
from vime.errors import OF_A_POLICY, AdapterError, CheckpointError, HookError, RankLostError, TrainingError
from vime.evaluation.conditions import SCAFFOLD, TRAINED, needs_trained_model, rows_of
from vime.evaluation.evaluator import Evaluator
from vime.hooks import load_hook
from vime.orchestration.journal import Journal
from vime.preflight.compose import Composed
from vime.run_checkpoints import newest_driver
from vime.run_output import RunOutput
from vime.step_clock import StepClock
from vime.system import Training, evaluation, supervised, training, training_adapters
from vime.tasks import together
from vime.threads import raising
from vime.trainer.group import TrainerGroup, Update
from vime.trainer.learner import Learner
from vime.trainer.metrics import COUNTS, SKIPPED, of_batch, of_critic, of_update
from vime.trainer.schedule import learning_rate
from vime.types import Sample

logger = logging.getLogger(__name__)

MAX_EMPTY_STEPS = 2
"""Number of steps in a row without a trained token after which the run ends."""


def train(composed: Composed) -> None:
    """Trains, with evaluation before and after; `algorithm=sft` learns from demonstrations instead.

    Several adapters (`adapters`) train side by side, each as in a run of its own, in a folder of its own.
    """
    if composed.config.adapters:
        run(composed, partial(_train_adapters, composed))
        return
    if composed.config.algorithm.name is AlgorithmName.sft:
        run(composed, _train_supervised)
        return
    source = load_hook(composed.config.data.source)(composed.config)  # before there is a folder, which a bad row would leave
    run(composed, partial(_train, source))


def evaluate(composed: Composed) -> None:
    """Scores the checkpoint that the configuration names, and baselines; without a row for it, it is not served."""
    if not needs_trained_model(composed.config):
        others = {name: model for name, model in composed.config.serving.models.items() if not model.trained}
        serving = replace(composed.config.serving, models=others)
        composed = replace(composed, config=replace(composed.config, serving=serving))
    run(composed, _evaluate)


def run(composed: Composed, body: Any) -> None:
    """Opens the run folder and runs one of the bodies below in an event loop."""
    with RunOutput.open(composed) as output:
        asyncio.run(body(output))


async def _evaluate(output: RunOutput) -> None:
    async with evaluation(output.config, output.directory.path, say=output.console.say) as agents:
        evaluator = output.evaluator(agents.workers)
        for row in rows_of(output.config):
            await output.evaluate(evaluator, row, version=0)
    output.finish()


async def _train(source: Any, output: RunOutput) -> None:
    _check_source(source, output)
    console = output.console
    async with training(output.config, output.directory.path, say=console.say, warn=console.warn) as system:
        await _learn(source, output, system)
    output.finish()


async def _train_adapters(composed: Composed, output: RunOutput) -> None:
    """Trains adapters side by side; the `output` of the whole run says what starts and how it ends.

    Raises `AdapterError` in the end if some have stopped before their last step.
    """
    sources = {name: load_hook(config.data.source)(config) for name, config in composed.config.adapters.items()}
    with ExitStack() as stack:
        outputs: dict[str, RunOutput] = {}
        for name, config in composed.config.adapters.items():
            own = RunOutput.open(replace(composed, config=config), label=name)
            outputs[name] = stack.enter_context(own)
            _check_source(sources[name], outputs[name])
        say, warn = output.console.say, output.console.warn
        async with training_adapters(composed.config, output.directory.path, say=say, warn=warn) as systems:
            await together(_learn_or_stop(sources[name], outputs[name], systems, name) for name in systems)
        for each in outputs.values():
            if each.ending is None:
                each.finish()
    endings = {name: each.ending for name, each in outputs.items()}
    output.console.adapters(endings)
    if said := [f"{name} {ending.reached}: {ending.cause}" for name, ending in endings.items() if ending is not None]:
        raise AdapterError(f"{len(said)} of {len(endings)} adapters stopped before their last step: {'; '.join(said)}")


async def _learn_or_stop(source: Any, output: RunOutput, systems: Mapping[str, Training], name: str) -> None:
    """Trains one of several adapters; an error of its own stops it alone, and its `output` says so."""
    try:
        await _learn(source, output, systems[name])
    except RankLostError:
        raise
    except OF_A_POLICY as error:
        for system in systems.values():
            system.agents.watches.check()  # it may have failed because a part is lost that all of them need
        output.stopped(error)


def _check_source(source: Any, output: RunOutput) -> None:
    """Raises `ConfigError` if the prompts are not those of the run that is resumed, or are those of its evaluation."""
    if isinstance(source, RowSource) and (state := _saved(output)) is not None:
        source.check(state["source"])
    if hasattr(source, "prompts"):  # a stream without an end has none
        check_overlap(output.config, source.prompts(), output.prompts)


async def _learn(source: Any, output: RunOutput, system: Training) -> None:
    """All steps of a policy, with evaluations, checkpoints and the trained model."""
    config, console = output.config, output.console
    first_step, state = await resume(output, system)
    if state is not None:
        source.load(state["source"])
    journal = _open_journal(output, first_step)
    await system.sync(first_step)
    console.first_sync(await system.compared())
    evaluator = output.evaluator(system.agents.workers)
    if first_step == 0 and config.evaluation.before is Before.full:
        await output.evaluate_before(evaluator)
    buffer = state["buffer"] if state is not None else None
    batches = RolloutBatches(
        config, source, system.agents.workers, journal=journal, state=buffer, version=first_step, bar=console.rollouts
    )
    try:
        for step in range(first_step, config.trainer.num_steps):
            async with _kept(output, system, batches, step):
                batches.begin(step, num_left=config.trainer.num_steps - step)
                _evaluate_during(output, system, evaluator, step)
                await train_step(output, system, batches, step)
                await save_if_due(output, system, batches, step + 1)
    finally:
        await system.pin.cancel()
        await batches.stop()
    await system.compared()
    if TRAINED in config.evaluation.rows:
        await output.evaluate(evaluator, TRAINED, version=config.trainer.num_steps)
    async with system.trainer_awake() as trainer:
        await _save_model(output, trainer)


async def _train_supervised(output: RunOutput) -> None:
    config, console = output.config, output.console
    batches = DemonstrationBatches(config)
    if (state := _saved(output)) is not None:
        batches.check(state)
    async with supervised(config, output.directory.path, say=console.say, warn=console.warn) as learner:
        first_step, _ = await resume(output, learner)
        for step in range(first_step, config.trainer.num_steps):
            await train_step(output, learner, batches, step)
            await save_if_due(output, learner, batches, step + 1)
        await _save_model(output, learner.trainer)
    output.finish()


async def _save_model(output: RunOutput, trainer: TrainerGroup) -> None:
    """Writes the trained model into the run's folder, and its adapters by themselves."""
    await trainer.save_hugging_face(output.directory.path / "model")
    if output.config.trainer.lora.rank:
        await trainer.save_adapter(output.directory.path / "adapter")


async def train_step(output: RunOutput, system: Learner, batches: Batches, step: int) -> None:
    """Waits for a batch, trains on it, and sends the new weights to the servers as soon as no evaluation pins the old ones.

    The probe of the last sync runs at the same time as generation and gradient. The optimizer step waits for its result.
    """
    clock = StepClock(system.usage)
    await clock.start()
    batch = await batches.next(step)
    await clock.mark("generation")
    if takes_turns(output.config):
        await system.released()  # the servers sleep while the trainer works
    config, algorithm, keep = output.config, system.algorithm, _records(output.config)
    async with system.training() as trainer:
        await answer(algorithm, trainer, batch, step)
        lesson = await lesson_of(config, algorithm, batch, step, partial(_known, algorithm, trainer, step))
        updates = await hand_over(config, algorithm, trainer, lesson, step)
        taught, updates = await train_critic(config, system.critic, trainer, updates, step)
        first = await trainer.forward_backward(updates[0], algorithm, keep=keep) if updates else None
    await clock.mark("training")
    metrics = batch.metrics | lesson.metrics | await system.compared()  # this batch began with the weights of that sync
    await clock.mark("sync")
    async with system.training() as trainer:
        trained, logprobs = await make_steps(config, algorithm, trainer, updates, first, step, keep=keep)
        system.trained(step + 1)
        metrics |= trained | taught | {"machine/trainer_peak_bytes": await trainer.peak_bytes()}
    if takes_turns(output.config) and is_saved_after(output.config, step + 1):
        await system.checkpoints.begin(step=step + 1)  # later the servers would have to sleep once more for it
    await clock.mark("training")
    await system.released()
    await clock.mark("evaluation")
    metrics |= await system.sync(step + 1)
    await clock.mark("sync")
    metrics |= await system.metrics()
    output.trace.phases(clock.spans, step=step + 1)
    output.log_step(step, metrics | clock.metrics(), batch.groups, await system.events())
    await output.save_rollouts(step, batch.groups, lesson.advantages, lesson.by_tokens(logprobs))
    check_trained(output, step, metrics)
    output.check_alarms()


async def answer(algorithm: Algorithm, trainer: TrainerGroup, batch: Batch, step: int) -> None:
    """Adds the trainer's answers to the algorithm's questions about a batch to the columns of its samples."""
    for question in await asyncio.to_thread(raising, algorithm.questions, batch.groups):
        found = await trainer.answer(question, version=step)
        for sample, columns in zip(question.samples, found, strict=True):
            sample.columns = {**sample.columns, **columns}


async def _known(algorithm: Algorithm, trainer: TrainerGroup, step: int, samples: list[Sample]) -> list[dict[str, Any]]:
    """The trainer's columns that the algorithm needs before it computes advantages of these sequences."""
    update = await trainer.hand_over(algorithm, samples, version=step, has_advantages=False)
    return await trainer.read(update, await trainer.forward(update, algorithm.needs_before))


async def hand_over(config: RunConfig, algorithm: Algorithm, trainer: TrainerGroup, lesson: Lesson, step: int) -> list[Update]:
    """Hands the updates of a batch to the trainer, with the logprobs under other weights that the loss needs.

    For the first update of a single pass no old logprobs are computed: the weights have not changed since the batch began.
    """
    updates = [await trainer.hand_over(algorithm, samples, version=step) for samples in lesson.updates]
    for number, update in enumerate(updates):
        is_present = number == 0 and config.trainer.num_epochs_per_batch == 1
        if needs := algorithm.needs_of_loss(is_present=is_present):
            updates[number] = update.with_known(await trainer.forward(update, needs))
    return updates


async def train_critic(
    config: RunConfig, critic: Critic | None, trainer: TrainerGroup, updates: list[Update], step: int
) -> tuple[dict[str, float], list[Update]]:
    """Makes the critic's optimizer steps of a batch, which no server waits for.

    Returns its metrics, and the updates that the policy is to make: none while the critic warms up.
    """
    if critic is None:
        return {}, updates
    own, weights = replace(config, trainer=critic.trainer()), trainer.of(CRITIC)
    first = await weights.forward_backward(updates[0], critic) if updates else None
    found, _ = await make_steps(own, critic, weights, updates, first, step, keep=False)
    if critic.warms_up(step):
        return of_critic(found) | {name: found[name] for name in COUNTS if name in found}, []
    return of_critic(found), updates


async def make_steps(
    config: RunConfig, algorithm: Algorithm, trainer: TrainerGroup, updates: list[Update], first: Any, step: int, *, keep: bool
) -> tuple[dict[str, float], list[list[dict[str, Any]]]]:
    """Makes the optimizer steps of a batch; the trainer already holds the `first` gradient.

    Returns metrics, and with `keep` the trainer's logprobs by update and sequence.
    """
    results, logprobs, rate = [], [], learning_rate(config.trainer, step)
    for place, update in enumerate(updates * config.trainer.num_epochs_per_batch):
        keep = keep and place < len(updates)
        sums, columns = first if place == 0 else await trainer.forward_backward(update, algorithm, keep=keep)
        stepped = sums if SKIPPED in sums else await trainer.step(optimizer={"lr": rate}, step=step)
        results.append(of_update(sums, stepped, update.shards[0]))
        if keep:
            logprobs.append(await trainer.read(update, columns) if columns else [])
    return of_batch(results, [update.shards[0] for update in updates], config.trainer), logprobs


def _records(config: RunConfig) -> bool:
    """True if the trainer's logprobs are recorded in addition to the sampler's."""
    return config.logger.rollouts is RolloutDetail.tokens and config.algorithm.name is not AlgorithmName.sft


def check_trained(output: RunOutput, step: int, metrics: dict[str, float]) -> None:
    """Warns of a step that has trained no token. Raises TrainingError for the second in a row: the run learns nothing."""
    if metrics.get("train/num_tokens") != 0 or metrics.get("train/num_skipped_updates"):
        output.num_empty_steps = 0
        return
    output.num_empty_steps += 1
    why = (
        "none of its sequences has a teacher: do algorithm.distillation.teachers.*.datasets and seats name those of its rollouts?"
        if metrics.get("train/taught_share") == 0 and metrics.get("train/num_samples_left_out")
        else "its sequences are masked everywhere, or removed: does generate set the loss mask of what the model sampled to 0?"
        if metrics.get("train/num_samples") or metrics.get("rollout/sequences_mean")
        else "nothing was sampled in it: look at the stop reasons and errors of its rollouts"
    )
    if output.num_empty_steps >= MAX_EMPTY_STEPS:
        raise TrainingError(f"{output.num_empty_steps} steps without a trained token, the last is step {step + 1}; {why}")
    output.console.warn(f"step {step + 1} without a trained token, the weights stay as they are; {why}")


async def save_if_due(output: RunOutput, system: Learner, batches: Batches, step: int) -> None:
    """A checkpoint where one is due after `step` batches."""
    await system.checkpoints.check()
    if is_saved_after(output.config, step):
        await system.compared()  # a resumed run uses what the servers sample from now on
        await _save(output, system, batches, step, system.algorithm.state())


async def _save(output: RunOutput, system: Learner, batches: Batches, step: int, of_algorithm: dict[str, Any]) -> None:
    driver = {**await batches.state(step, oldest_step=system.checkpoints.oldest_step()), **output.state()}
    driver |= {"algorithm": of_algorithm} if of_algorithm else {}
    async with nullcontext() if takes_turns(output.config) else system.trainer_awake():
        await system.checkpoints.save(step=step, driver=driver)


@asynccontextmanager
async def _kept(output: RunOutput, system: Training, batches: RolloutBatches, step: int) -> AsyncIterator[None]:
    """Saves one of several adapters as it was before `step`, if an error of its own ends the block without having moved it.

    Otherwise its last checkpoint is what stays, as in a run of its own.
    """
    num_moves, of_algorithm = system.trainer.num_moves, deepcopy(system.algorithm.state())
    try:
        yield
    except RankLostError:
        raise
    except OF_A_POLICY:
        await system.checkpoints.settle()
        is_whole = output.num_steps == step and system.trainer.num_moves == num_moves
        if output.is_adapter and is_whole and step and not system.checkpoints.has(step):
            batches.give_back()
            with suppress(HookError):  # a user's object that does not say its state
                await _save(output, system, batches, step, of_algorithm)
            await system.checkpoints.settle()
        raise


def is_saved_after(config: RunConfig, step: int) -> bool:
    """True if a checkpoint is due after `step` batches."""
    return step % config.trainer.save_every == 0 or step == config.trainer.num_steps


def _evaluate_during(output: RunOutput, system: Training, evaluator: Evaluator, step: int) -> None:
    """Starts the evaluation that is due after `step` batches; it runs beside the next one and pins the servers' weights."""
    config = output.config
    every, settings = config.trainer.evaluate_every, config.evaluation
    before = settings.before is Before.one_run and SCAFFOLD in settings.rows
    is_due = every and step % every == 0 if step else before
    if is_due and not output.has_evaluated(step):
        system.pin.start(_evaluate_and_note(output, system, evaluator, step))


async def _evaluate_and_note(output: RunOutput, system: Training, evaluator: Evaluator, step: int) -> None:
    """Reports the scores, by which `trainer.keep_best` chooses the checkpoint to keep."""
    await system.compared()
    scores = await output.evaluate(evaluator, TRAINED, version=step, label=f"step{step}", num_runs=1)
    await system.checkpoints.note_scores(step=step, scores=scores)


async def resume(output: RunOutput, system: Learner) -> tuple[int, dict[str, Any] | None]:
    """Restores the trainer and the totals of the run from the last checkpoint, with `resume=true`.

    Returns the step to go on with and the state of the batches there; step 0 and None without a checkpoint.
    """
    if not output.config.resume:
        return 0, None
    path = system.checkpoints.newest()
    if path is None:
        output.restore(step=0, state={})
        return 0, None
    driver = await system.checkpoints.load(path)
    if driver["step"] > output.config.trainer.num_steps:
        raise CheckpointError(f"{path} is after step {driver['step']}, beyond trainer.num_steps")
    output.restore(step=driver["step"], state=driver)
    system.algorithm.load(driver.get("algorithm", {}))
    return driver["step"], driver


def _saved(output: RunOutput) -> dict[str, Any] | None:
    """The driver's state in the checkpoint from which this run goes on, to be checked before anything starts."""
    return newest_driver(output.directory.checkpoints) if output.config.resume else None


def _open_journal(output: RunOutput, step: int) -> Journal | None:
    """The journal of a run that begins at `step`, with the groups that finished after it before an interruption."""
    config = output.config
    if not config.rollout.journal or config.rollout.producer:
        return None
    journal = Journal(output.directory.journal)
    if config.resume and (num_recalled := journal.recall(step)):
        output.console.say(f"{num_recalled} groups that had finished after step {step} are used again")
    journal.begin(step)
    return journal
