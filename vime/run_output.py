"""The output of a run, shown or left behind: its folder, console, metrics, evaluations and summary."""

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from vime.algorithm.advantage import Advantages
from vime.blame import users_traceback
from vime.config import AlgorithmName, Mode, OnCollapse, RolloutDetail, RunConfig
from vime.errors import ConfigError, InfrastructureError, TrainingError
from vime.evaluation.conditions import AT, SCAFFOLD, SINGLE_TURN, Job, rows_of
from vime.evaluation.evaluator import Evaluator, ItemRunner, forget_items_after
from vime.evaluation.protocol import check_same, load_prompts, protocol_of
from vime.files.record import Recorder
from vime.hooks import load_hook
from vime.model.pieces import TokenPieces
from vime.preflight.compose import Composed
from vime.preflight.plan.risks import risks
from vime.report.alarms import Alarm, Watch
from vime.report.console import Console
from vime.report.ending import RunEnding, ending_of, forget_ending, write_ending
from vime.report.html import write_report
from vime.report.items import score_of
from vime.report.metrics_file import MetricsWriter, read_metrics
from vime.report.run_directory import RunDirectory, held
from vime.report.summary import RunScore, append_scores, build_summary, read_scores, write_summary
from vime.report.trace_file import TraceWriter
from vime.report.tracker import Tracker
from vime.rollout.context import Context
from vime.types import EvalLog, Group, Prompt

logger = logging.getLogger(__name__)


class RunOutput:
    """The side of a run that people see: its folder, display, report and scores."""

    def __init__(self, composed: Composed, directory: RunDirectory, prompts: dict[str, list[Prompt]], *, label: str = "") -> None:
        self.config = composed.config
        self._overrides = composed.overrides
        self.directory = directory
        self.is_adapter = bool(label)
        """True of one of several adapters, whose run goes on if it stops."""
        self.ending: RunEnding | None = None
        """The way in which it ended before its time."""
        self.prompts = prompts
        """The items of the evaluation, by the name of their set."""
        self._recorder = Recorder(composed.config.logger.rollouts)
        self.console = Console(num_steps=composed.config.trainer.num_steps, label=label)
        self._metrics = MetricsWriter(directory.path / "metrics.jsonl")
        settings = composed.config.logger
        trace = directory.path / "trace.json" if settings.trace_share else None
        self.trace = TraceWriter(trace, max_bytes=settings.max_trace_bytes)
        self._tracker = Tracker(composed.config, directory.path)
        self._watch = Watch()
        self._alarms: list[Alarm] = []
        """Alarms that the last step has raised."""
        self._started = composed.started
        self._evaluation_seconds = 0.0
        self.num_empty_steps = 0
        """Number of the last steps in a row that have trained no token."""
        self._totals: dict[str, Any] = {
            "num_rollouts": 0,
            "num_failed_rollouts": 0,
            "first_step_seconds": None,
            "num_steps": 0,
        }
        self._earlier_seconds = 0.0

    @classmethod
    @contextmanager
    def open(cls, composed: Composed, *, label: str = "") -> Iterator["RunOutput"]:
        """Creates the run folder, or opens it again for `resume=true`; the `label` stands before its lines on the screen.

        Raises `ConfigError` if another run writes there, or if the evaluation that would go on was begun under other settings.
        """
        prompts = _load_prompts(composed.config) if not composed.config.adapters else {}  # each adapter has its own
        with held(Path(str(composed.config.output_dir)).absolute()), cls._opened(composed, prompts, label) as output:
            yield output

    @classmethod
    @contextmanager
    def _opened(cls, composed: Composed, prompts: dict[str, list[Prompt]], label: str) -> Iterator["RunOutput"]:
        if composed.config.resume and prompts:
            folder = RunDirectory(str(composed.config.output_dir)).evaluation
            check_same(folder, protocol_of(composed.config, prompts))
        directory = RunDirectory.create(composed.config, composed.overrides)
        forget_ending(directory.path)
        output = cls(composed, directory, prompts, label=label)
        output._recorder = _recorder(composed.config, directory)
        output.console.header(composed.config, directory.path)
        for text in risks(composed.config) if composed.config.mode is Mode.train else ():
            output.console.warn(text)
        with output._tracker, output.console:
            try:
                yield output
            except BaseException as error:  # raised again: whatever ends the run, its folder says so
                if isinstance(error, ConfigError) and not composed.config.resume and not output.num_steps:
                    directory.withdraw()
                elif output.ending is None:
                    output.stopped(error)
                raise

    def evaluator(self, runner: ItemRunner) -> Evaluator:
        """An evaluator that writes into the run folder."""
        return Evaluator(
            self.config, runner=runner, folder=self.directory.evaluation, prompts=self.prompts, recorder=self._recorder
        )

    async def evaluate_before(self, evaluator: Evaluator) -> None:
        """The rows that need the untrained model, and the baselines."""
        for row in rows_of(self.config):
            if row in (SINGLE_TURN, SCAFFOLD) or AT in row:
                await self.evaluate(evaluator, row, version=0)

    async def evaluate(
        self, evaluator: Evaluator, row: str, *, version: int, label: str = "", num_runs: int | None = None
    ) -> dict[str, float]:
        """Scores one row on all data sets; `label` marks evaluations in the middle of training, which enter no table.

        Returns the strict scores by data set (of the last run, if there are several), `{"evaluation/docs_20": 41.0, …}`, 0-100.
        """
        started = time.monotonic()
        evaluation = self.config.evaluation
        datasets = [dataset.name for dataset in self.config.data.evaluation]
        jobs = [
            Job(dataset=name, row=row, run=number, temperature=evaluation.temperature, label=label)
            for name in datasets
            for number in range(evaluation.num_runs if num_runs is None else num_runs)
        ]
        if row == SCAFFOLD:
            jobs += [
                Job(dataset=name, row=row, run=0, temperature=temperature, label="temperature")
                for name in datasets
                for temperature in evaluation.extra_temperatures
            ]
        total = sum(evaluator.num_items(job.dataset) for job in jobs)
        with self.console.progress(f"evaluating {row.replace('_', ' ')}", total=total) as bar:
            results = await evaluator.run(jobs, version=version, on_item=bar.advance)
        scores = [score_of(items, dataset=job.dataset, row=job.row, run=job.run) for job, items in results.items()]
        metrics = {f"evaluation/{s.dataset}": 100 * sum(s.strict) / s.num_items for s in scores}
        logs, figures = self._write_eval_logs(row, label, results)
        if label:
            self._metrics.log(version, metrics | logs)
            for alarm in self._watch.step(version, metrics):
                self.console.warn(f"{alarm.name}: {alarm.seen}. {alarm.meaning}")
        else:
            append_scores(self.directory.path, scores)
        self._tracker.evaluation(row, version, results, self.prompts, logs=logs, figures=figures)
        found = [score for score in scores if score.temperature == evaluation.temperature]
        self.console.scores(row, version, {name: percent(found, name) for name in datasets})
        self._evaluation_seconds += time.monotonic() - started
        return metrics

    def log_step(self, step: int, metrics: dict[str, float], groups: list[Group], events: list[dict[str, Any]]) -> None:
        """Writes and shows one finished step."""
        if self._totals["first_step_seconds"] is None:
            self._totals["first_step_seconds"] = time.time() - self._started - self._evaluation_seconds
        self._totals["num_steps"] = step + 1
        self._totals["num_rollouts"] += int(metrics.get("rollout/num_rollouts", 0))
        self._totals["num_failed_rollouts"] += int(metrics.get("rollout/num_failed", 0))
        metrics["server/num_faults"] = float(len(events))
        for event in events:
            self.directory.write_fault(step + 1, event)
            self.console.fault(event)
        self._metrics.log(step + 1, metrics)
        self._alarms = self._watch.step(step + 1, metrics)
        self._tracker.step(step + 1, metrics, groups, self._recorder)
        self.trace.groups(groups)
        self.console.step(step + 1, metrics)
        for alarm in self._alarms:
            self.console.warn(f"{alarm.name}: {alarm.seen}. {alarm.meaning}")

    def check_alarms(self) -> None:
        """Raises `TrainingError` with `rollout.on_collapse=stop` if the last step has raised an alarm that the policy is lost."""
        lost = [alarm for alarm in self._alarms if alarm.is_collapse]
        if lost and self.config.rollout.on_collapse is OnCollapse.stop:
            raise TrainingError(f"{lost[0].name} (rollout.on_collapse=stop): {lost[0].seen}. {lost[0].meaning}")

    async def save_rollouts(
        self, step: int, groups: list[Group], advantages: Mapping[int, Advantages], logprobs: Mapping[int, np.ndarray]
    ) -> None:
        """Writes the rollouts of a finished step in a thread, if they are to be kept; see `RunDirectory.write_rollouts`."""
        if self.config.logger.rollouts is not RolloutDetail.none and groups:
            most = self.config.logger.max_rollouts_bytes
            write = self.directory.write_rollouts
            known = {"advantages": advantages, "logprobs": logprobs}
            await asyncio.to_thread(write, step + 1, groups, recorder=self._recorder, max_bytes=most, **known)

    def has_evaluated(self, step: int) -> bool:
        """True if an evaluation after `step` is in the metrics already."""
        rows = read_metrics(self.directory.path / "metrics.jsonl")
        return any(row["step"] == step and any(name.startswith("evaluation/") for name in row) for row in rows)

    def state(self) -> dict[str, Any]:
        """Totals for the checkpoint."""
        return {"totals": {**self._totals, "wall_seconds": self._earlier_seconds + time.time() - self._started}}

    def restore(self, *, step: int, state: dict[str, Any]) -> None:
        """Goes on after `step`: later rows of the metrics are dropped, totals and finished scores come back."""
        self._metrics.truncate_after(step)
        self._watch.load(read_metrics(self.directory.path / "metrics.jsonl"))
        forget_items_after(self.directory.evaluation, step)
        if "totals" in state:
            self._earlier_seconds = state["totals"].pop("wall_seconds")
            self._totals = state["totals"]

    @property
    def num_steps(self) -> int:
        """Steps that have been trained."""
        return self._totals["num_steps"]

    def stopped(self, error: BaseException) -> None:
        """Says how far the run has come and how to continue it, on the screen, in `ended.json` and on top of the report."""
        path, step = self.directory.path, self.num_steps
        of_the_run = {"resumed": path.parents[1]} if self.is_adapter else {}
        ending = self.ending = ending_of(error, self.config, path, overrides=self._overrides, step=step, **of_the_run)
        logger.info("the run ends: %s %s", ending.error, ending.text)
        try:
            write_ending(path, ending)
            if isinstance(error, InfrastructureError) and self.config.logger.rollouts is not RolloutDetail.none and error.groups:
                self.directory.write_rollouts(step + 1, error.groups, recorder=self._recorder)
            self.console.ended(ending, write_report(path))
        except OSError as broken:  # a full disk, perhaps what ended the run
            logger.warning("the end of the run is not written down: %s", broken)

    def finish(self) -> None:
        """Writes `summary.json` and the report, and shows the table."""
        wall_seconds = self._earlier_seconds + time.time() - self._started
        summary = build_summary(self.config, read_scores(self.directory.path), wall_seconds=wall_seconds, **self._totals)
        write_summary(self.directory.path, summary)
        report = write_report(self.directory.path)
        self.console.table(summary, report)

    def _write_eval_logs(
        self, row: str, label: str, results: dict[Job, list[dict[str, Any]]]
    ) -> tuple[dict[str, float], dict[str, dict[str, Any]]]:
        """Writes the method's `eval_log` into a file per data set.

        Returns its metrics as `eval_log/<data set>/<metric>`, and its figures likewise.
        """
        metrics: dict[str, float] = {}
        figures: dict[str, dict[str, Any]] = {}
        for dataset, (name, log) in eval_logs(self.config, row, label, results).items():
            self.directory.write_eval_log(name, log)
            metrics |= {f"eval_log/{dataset}/{metric}": value for metric, value in log.metrics.items()}
            figures |= {f"eval_log/{dataset}/{figure}": drawn for figure, drawn in log.figures.items()}
        return metrics, figures


def _recorder(config: RunConfig, directory: RunDirectory) -> Recorder:
    """The recorder of samples; if their tokens are kept, the bytes of each token are in the run folder as well."""
    detail = config.logger.rollouts
    supervised = config.mode is Mode.train and config.algorithm.name is AlgorithmName.sft
    if supervised or detail in (RolloutDetail.none, RolloutDetail.texts):
        return Recorder(detail)
    pieces = TokenPieces.of(config.model.checkpoint)
    if pieces is not None and detail is RolloutDetail.tokens:
        directory.write_vocabulary(pieces)
    return Recorder(detail, pieces.text if pieces is not None else None)


def _load_prompts(config: RunConfig) -> dict[str, list[Prompt]]:
    """The items of the evaluation; supervised training has none."""
    supervised = config.mode is Mode.train and config.algorithm.name is AlgorithmName.sft
    scores = rows_of(config) or config.trainer.evaluate_every
    return load_prompts(config) if scores and not supervised else {}


def percent(scores: list[RunScore], dataset: str) -> float:
    """The mean strict score of the runs over one data set, 0 to 100."""
    return 100 * fmean(sum(score.strict) / score.num_items for score in scores if score.dataset == dataset)


def eval_logs(
    config: RunConfig, row: str, label: str, results: dict[Job, list[dict[str, Any]]]
) -> dict[str, tuple[str, EvalLog]]:
    """The method's log of each data set, with the name of its file; empty for a model that is asked without the agent.

    `results` are the items of all jobs of one row; those at other temperatures than the table's are left out. If `eval_log`
    raises, the scores are kept without its metrics.
    """
    if config.method.eval_log is None or row.startswith(SINGLE_TURN):
        return {}
    hook = load_hook(config.method.eval_log)
    by_dataset: dict[str, list[dict[str, Any]]] = {}
    for job, items in results.items():
        if job.temperature == config.evaluation.temperature:
            by_dataset.setdefault(job.dataset, []).extend(items)
    found: dict[str, tuple[str, EvalLog]] = {}
    for dataset, items in by_dataset.items():
        name = f"{dataset}-{row}" + (f"-{label}" if label else "")
        try:
            found[dataset] = name, hook(Context(config=config, evaluation=True, session_id=name), items)
        except Exception as error:  # the boundary of a user's function
            logger.warning("method.eval_log raised on %s\n%s", name, users_traceback(error))
    return found
