"""One run in Trackio: metrics by step, figures and conversations as tables, in a database on this machine.

`trackio show --project vime` shows it; `TRACKIO_DIR` is the folder of the database. With `TRACKIO_SPACE_ID` the run goes to that
Space of the Hugging Face Hub. A run that is resumed goes on under its name.
"""

import contextlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vime.config import RunConfig
from vime.files.provenance import plain, without_secrets
from vime.report.conversations import COLUMNS, Table

SPACE = "TRACKIO_SPACE_ID"


class TrackioWriter:
    """A run of Trackio, from its start to its end. What Trackio prints is not shown."""

    def __init__(self, config: RunConfig, path: Path) -> None:
        import trackio  # pyright: ignore[reportMissingImports]  # an extra

        with contextlib.redirect_stdout(io.StringIO()):
            self._run = trackio.init(
                project=config.logger.project,
                name=f"{config.name}/{path.name}",
                group=config.logger.group,
                space_id=os.environ.get(SPACE),
                config=without_secrets(plain(config)),
                resume="allow",
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )

    def log(
        self,
        step: int,
        metrics: Mapping[str, float],
        figures: Mapping[str, Mapping[str, Any]],
        tables: Mapping[str, Table],
    ) -> None:
        """Sends what belongs to one step."""
        import trackio  # pyright: ignore[reportMissingImports]  # an extra

        shown: dict[str, Any] = dict(metrics)
        for name, figure in figures.items():
            rows = [list(row) for row in zip(figure["x"], *figure["series"].values())]
            shown[name] = trackio.Table(columns=["x", *figure["series"]], data=rows)
        for name, table in tables.items():
            shown[name] = trackio.Table(columns=list(COLUMNS), data=[list(row) for row in table.rows])
        self._run.log(shown, step=step)

    def finish(self, *, failed: bool) -> None:
        """Ends the run, which may go on later; Trackio does not distinguish one that failed."""
        with contextlib.redirect_stdout(io.StringIO()):
            self._run.finish()
