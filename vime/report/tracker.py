"""Metrics to Weights & Biases besides the run folder, where `logger.tracker` asks for it.

The key comes from the environment (`WANDB_API_KEY`); without one the run is tracked offline, for `wandb sync` later.
"""

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, SupportsFloat

from vime.config import RunConfig, TrackerName
from vime.files.provenance import plain, without_secrets

logger = logging.getLogger(__name__)

INIT_TIMEOUT_SECONDS = 60.0
AXIS = "step"
"""The metric on the x axis of all others; wandb's own step can only grow, and would drop metrics that come late or again."""


class Tracker:
    """Sends the metrics of one run, or does nothing without a tracker; after a failure it warns once and sends no more."""

    def __init__(self, config: RunConfig, path: Path) -> None:
        self._config = config
        self._path = path
        self._run: Any = None

    def __enter__(self) -> "Tracker":
        if self._config.logger.tracker is TrackerName.wandb:
            self._isolated(self._start)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._run is not None:
            self._isolated(lambda: self._run.finish(exit_code=0 if kind is None else 1))

    def log(
        self, step: int, metrics: Mapping[str, SupportsFloat], *, figures: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """Sends metrics and figures (as in `EvalLog`) that belong to one step.

        Steps may come in any order, and more than once: an evaluation of version 10 may end after step 11 does.
        """
        if self._run is not None:
            values = {name: float(value) for name, value in metrics.items()}
            self._isolated(lambda: self._run.log({**values, **_charts(figures or {}), AXIS: step}))

    def _start(self) -> None:
        import wandb

        settings = self._config.logger
        offline = settings.offline or not os.environ.get("WANDB_API_KEY")
        if offline and not settings.offline:
            logger.warning("WANDB_API_KEY is not set: tracking offline in %s", self._path / "wandb")
        self._run = wandb.init(
            project=settings.project,
            name=f"{self._config.name}/{self._path.name}",
            id=f"{self._config.name}-{self._path.name}".replace("/", "-"),
            resume="allow",
            dir=str(self._path),
            mode="offline" if offline else "online",
            config=without_secrets(plain(self._config)),
            settings=wandb.Settings(silent=True, console="off", init_timeout=INIT_TIMEOUT_SECONDS),
        )
        self._run.define_metric(AXIS)
        self._run.define_metric("*", step_metric=AXIS)

    def _isolated(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception as error:  # isolation boundary: a tracking service must not end a run, whatever it raises
            self._run = None
            logger.warning("wandb failed and is switched off for this run: %s: %s", type(error).__name__, error)


def _charts(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Figures as wandb draws them: lines over numbers, tables over names."""
    if not figures:
        return {}
    import wandb

    charts: dict[str, Any] = {}
    for name, figure in figures.items():
        x, series = list(figure["x"]), {label: list(values) for label, values in figure["series"].items()}
        if all(isinstance(value, (int, float)) for value in x):
            charts[name] = wandb.plot.line_series(xs=x, ys=list(series.values()), keys=list(series), title=name)
        else:
            rows: list[Any] = [list(row) for row in zip(x, *series.values())]
            charts[name] = wandb.Table(columns=["x", *series], data=rows)
    return charts
