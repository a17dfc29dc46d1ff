"""One run in Weights & Biases: metrics by group with their units, evaluations, figures, and tables of conversations.

The key comes from the environment (`WANDB_API_KEY`); without one, or with `WANDB_MODE=offline`, the run is tracked in its
folder, for `wandb sync` later. A run that is resumed goes on under the id that `tracker.json` in its folder keeps.
"""

import logging
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vime.config import RunConfig
from vime.files.provenance import plain, without_secrets
from vime.report.conversations import COLUMNS, Table
from vime.report.metric_units import unit_of
from vime.report.tracked_run import kept_id

logger = logging.getLogger(__name__)

INIT_TIMEOUT_SECONDS = 60.0
AXIS = "step"
"""The metric on the x axis of all others; wandb's own step can only grow, and would drop metrics that come late or again."""
BEST = {"reward/*": "max", "evaluation/*": "max"}
"""Groups of metrics whose best value a table of runs shows beside the last one."""
UNITS = "metric_units"
"""The key in a run's configuration in wandb that has the units, for which wandb has no field."""


class WandbWriter:
    """A run of wandb, from its start to its end."""

    def __init__(self, config: RunConfig, path: Path) -> None:
        import wandb

        settings = config.logger
        mode: Any = tracking_mode(config)
        if mode == "offline" and not settings.offline and "WANDB_MODE" not in os.environ:
            logger.warning("WANDB_API_KEY is not set: tracking offline in %s", path / "wandb")
        self._units: dict[str, str] = {}
        self._run = wandb.init(
            project=settings.project,
            name=f"{config.name}/{path.name}",
            id=kept_id(path, "wandb", lambda: uuid.uuid4().hex[:12]),
            group=settings.group,
            job_type=config.mode.name,
            tags=[text for text in (config.method.name, config.model.name, config.algorithm.name.value) if text],
            resume="allow",
            dir=str(path),
            mode=mode,
            config=without_secrets(plain(config)),
            settings=wandb.Settings(silent=True, console="off", init_timeout=INIT_TIMEOUT_SECONDS),
        )
        self._run.define_metric(AXIS)
        self._run.define_metric("*", step_metric=AXIS)
        for group, summary in BEST.items():
            self._run.define_metric(group, step_metric=AXIS, summary=f"{summary},last")

    def log(
        self,
        step: int,
        metrics: Mapping[str, float],
        figures: Mapping[str, Mapping[str, Any]],
        tables: Mapping[str, Table],
    ) -> None:
        """Sends the values of one step."""
        import wandb

        columns: list[Any] = list(COLUMNS)
        shown = {name: wandb.Table(columns=columns, data=[*table.rows]) for name, table in tables.items()}
        self._run.log({**metrics, **_charts(figures), **shown, AXIS: step})
        new = {name: unit for name in metrics if name not in self._units and (unit := unit_of(name))}
        if new:
            self._units |= new
            self._run.config.update({UNITS: self._units}, allow_val_change=True)

    def finish(self, *, failed: bool) -> None:
        """Ends the run, which may go on later, and wandb's own process: it holds the terminal, or the pipe, of this run."""
        import wandb

        self._run.finish(exit_code=int(failed))
        wandb.teardown()


def tracking_mode(config: RunConfig) -> str:
    """wandb's mode: as `WANDB_MODE` says, and offline where the configuration says so or there is no key."""
    if config.logger.offline:
        return "offline"
    return os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")


def _charts(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Figures as wandb draws them: lines over numbers, tables over names."""
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
