"""One run in MLflow: metrics by step, the configuration, and figures and conversations as files.

The server is that of `MLFLOW_TRACKING_URI`, by default MLflow's own: the database `mlflow.db` in the folder of the command, which
`mlflow ui` shows. A run that is resumed goes on under the id that `tracker.json` in its folder keeps.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vime.config import RunConfig
from vime.files.provenance import plain, without_secrets
from vime.report.conversations import COLUMNS, Table
from vime.report.tracked_run import kept_id

NAME = "mlflow"


class MlflowWriter:
    """A run of MLflow, from its start to its end."""

    def __init__(self, config: RunConfig, path: Path) -> None:
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]  # an extra

        self._client = MlflowClient()
        self._id = kept_id(path, NAME, lambda: self._create(config, path))
        self._client.update_run(self._id, status="RUNNING")
        self._client.log_dict(self._id, without_secrets(plain(config)), "configuration.yaml")

    def log(
        self,
        step: int,
        metrics: Mapping[str, float],
        figures: Mapping[str, Mapping[str, Any]],
        tables: Mapping[str, Table],
    ) -> None:
        """Sends what belongs to one step."""
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        now = int(1000 * time.time())
        self._client.log_batch(self._id, metrics=[Metric(name, value, now, step) for name, value in metrics.items()])
        for name, figure in figures.items():
            self._client.log_dict(self._id, {"x": list(figure["x"]), "series": dict(figure["series"])}, _file(name, step))
        for name, table in tables.items():
            rows = [dict(zip(COLUMNS, row, strict=True)) for row in table.rows]
            self._client.log_dict(self._id, {"rows": rows}, _file(name, step))

    def finish(self, *, failed: bool) -> None:
        """Ends the run, which may go on later."""
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")

    def _create(self, config: RunConfig, path: Path) -> str:
        project = config.logger.project
        found = self._client.get_experiment_by_name(project)
        experiment = found.experiment_id if found is not None else self._client.create_experiment(project)
        tags = {"method": config.method.name, "model": config.model.name, "algorithm": config.algorithm.name.value}
        tags |= {"group": config.logger.group} if config.logger.group else {}
        tags = {name: value for name, value in tags.items() if value}
        return self._client.create_run(experiment, tags=tags, run_name=f"{config.name}/{path.name}").info.run_id


def _file(name: str, step: int) -> str:
    return f"{name}/step_{step:06}.json"
