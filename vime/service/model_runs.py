"""The models of a service as runs: each has a run folder below the service's, which `vime.view` shows and compares.

outputs/service_tiny/<time>/                 the service: config.yaml, service.json (its models, queues and places), logs/
outputs/service_tiny/<time>/runs/<model>/    a model: config.yaml, and metrics.jsonl with a line for each optimizer step
"""

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vime.config import LoraTarget, RunConfig
from vime.files.jsonl import write_text
from vime.report.ending import INTERRUPTED, RunEnding, forget_ending, write_ending
from vime.report.metrics_file import MetricsWriter
from vime.report.run_directory import CONFIG, LOCK, METRICS, STATUS, write_config

RUNS = "runs"


def run_name(model: str) -> str:
    """The name of a model's run folder."""
    return model.replace(":", "_")


class ModelRuns:
    """The run folders of the models of one service."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        """`folder` is the service's, which becomes a run folder if it is none."""
        self._config, self._folder = replace(config, trainer=replace(config.trainer, num_steps=0)), folder
        self._writers: dict[str, MetricsWriter] = {}
        self._status = ""
        if not (folder / CONFIG).exists():
            write_config(folder, self._config)

    def begin(self, model: str, *, seed: int, rank: int, targets: Sequence[LoraTarget]) -> None:
        """Opens the run of a model, also one that comes back after a restart."""
        folder, trainer = self._folder_of(model), self._config.trainer
        trainer = replace(trainer, lora=replace(trainer.lora, rank=rank, targets=list(targets)))
        write_config(folder, replace(self._config, name=model, seed=seed, trainer=trainer, output_dir=str(folder)))
        write_text(folder / LOCK, f"process {os.getpid()} of {socket.gethostname()}\n")
        forget_ending(folder)
        self._writers.pop(model, None)

    def note(self, model: str, step: int, metrics: Mapping[str, float]) -> None:
        """Writes the metrics of an optimizer step; lines of this step and of later ones, before a restart, are replaced."""
        if model not in self._writers:
            self._writers[model] = MetricsWriter(self._folder_of(model) / METRICS)
            self._writers[model].truncate_after(step - 1)
        self._writers[model].log(step, metrics)

    def end(self, model: str, *, step: int) -> None:
        """Closes the run of a model that its client has ended."""
        folder = self._folder_of(model)
        text = "its client has ended the model, or its session"
        write_ending(folder, RunEnding(error=INTERRUPTED, text=text, step=step, num_steps=0, checkpoint=None, go_on=""))
        (folder / LOCK).unlink(missing_ok=True)
        self._writers.pop(model, None)

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Writes `service.json` if it has changed."""
        if (text := json.dumps(status, indent=1) + "\n") != self._status:
            write_text(self._folder / STATUS, text)
            self._status = text

    def _folder_of(self, model: str) -> Path:
        return self._folder / RUNS / run_name(model)
