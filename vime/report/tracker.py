"""The part of a run that a tracker gets besides its folder: metrics, evaluations, and the conversations of some rollouts.

`logger.tracker` chooses Weights & Biases, TensorBoard, MLflow or Trackio, each with a writer of its own.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Any, Protocol, SupportsFloat

from vime.config import RunConfig, TrackerName
from vime.evaluation.conditions import SCAFFOLD, TRAINED, Job
from vime.files.record import Recorder
from vime.report.conversations import Table, of_items, of_rollouts
from vime.report.mlflow_writer import MlflowWriter
from vime.report.tensorboard_writer import TensorBoardWriter
from vime.report.trackio_writer import TrackioWriter
from vime.report.wandb_writer import WandbWriter
from vime.types import Group, Prompt

logger = logging.getLogger(__name__)

CONVERSATIONS = "conversations/"
Figure = Mapping[str, Any]
"""A figure as in `EvalLog`: `{"x": […], "series": {label: […]}}`."""


class Writer(Protocol):
    """One tracking service, for one run."""

    def log(
        self, step: int, metrics: Mapping[str, float], figures: Mapping[str, Figure], tables: Mapping[str, Table]
    ) -> None: ...

    def finish(self, *, failed: bool) -> None: ...


WRITERS: dict[TrackerName, Callable[[RunConfig, Path], Writer]] = {
    TrackerName.wandb: WandbWriter,
    TrackerName.tensorboard: TensorBoardWriter,
    TrackerName.mlflow: MlflowWriter,
    TrackerName.trackio: TrackioWriter,
}


class Tracker:
    """Sends the data of one run, or does nothing without a tracker; after a failure it warns once and sends no more."""

    def __init__(self, config: RunConfig, path: Path) -> None:
        self._config, self._path = config, path
        self._writer: Writer | None = None

    def __enter__(self) -> "Tracker":
        if self._config.logger.tracker is not TrackerName.none:
            self._isolated(self._start)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if (writer := self._writer) is not None:
            self._isolated(lambda: writer.finish(failed=kind is not None))

    def step(self, step: int, metrics: Mapping[str, SupportsFloat], groups: list[Group], recorder: Recorder) -> None:
        """Sends a step that was trained, with the conversations of some of its rollouts."""
        most = self._num_tracked
        tables = {CONVERSATIONS + "training": of_rollouts(step, groups, recorder, num_rollouts=most)} if most and groups else {}
        self.log(step, metrics, tables=tables)

    def evaluation(
        self,
        row: str,
        version: int,
        results: Mapping[Job, list[dict[str, Any]]],
        prompts: Mapping[str, list[Prompt]],
        *,
        logs: Mapping[str, float],
        figures: Mapping[str, Figure],
    ) -> None:
        """Sends an evaluation beside the step of its weights: means over its runs, and conversations of the first.

        The agent that is trained has names without its row, before and after training alike, so that they make one curve.
        """
        of_row = "" if row in (SCAFFOLD, TRAINED) else f"{row}/"
        found: dict[str, list[float]] = {}
        tables = {}
        for job, items in results.items():
            if job.temperature != self._config.evaluation.temperature:
                continue
            solved = 100 * sum(item["strict"] for item in items) / len(items)
            found.setdefault(f"evaluation/{of_row}{job.dataset}", []).append(solved)
            if self._num_tracked and job.run == 0:
                asked, name = prompts[job.dataset], f"{CONVERSATIONS}{of_row}{job.dataset}"
                tables[name] = of_items(version, items, asked, num_items=self._num_tracked)
        scores = {name: fmean(values) for name, values in found.items()}
        named = {name.replace("/", f"/{of_row}", 1): value for name, value in logs.items()}
        shown = {name.replace("/", f"/{of_row}", 1): figure for name, figure in figures.items()}
        self.log(version, scores | named, figures=shown, tables=tables)

    @property
    def _num_tracked(self) -> int:
        """The number of rollouts of a step, or items of an evaluation, whose conversations the writer gets."""
        return self._config.logger.num_tracked_rollouts if self._writer is not None else 0

    def log(
        self,
        step: int,
        metrics: Mapping[str, SupportsFloat],
        *,
        figures: Mapping[str, Figure] | None = None,
        tables: Mapping[str, Table] | None = None,
    ) -> None:
        """Sends metrics, figures and tables that belong to one step.

        Steps may come in any order, and more than once: an evaluation of version 10 may end after step 11 does.
        """
        if (writer := self._writer) is not None:
            values = {name: float(value) for name, value in metrics.items()}
            self._isolated(lambda: writer.log(step, values, figures or {}, tables or {}))

    def _start(self) -> None:
        self._writer = WRITERS[self._config.logger.tracker](self._config, self._path)

    def _isolated(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception as error:  # isolation boundary: a tracking service must not end a run, whatever it raises
            self._writer = None
            name = self._config.logger.tracker.value
            logger.warning("%s failed and is switched off for this run: %s: %s", name, type(error).__name__, error)
