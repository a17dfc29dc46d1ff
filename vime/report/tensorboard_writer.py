"""One run in TensorBoard's files, `tensorboard/` in its folder: metrics, evaluations, and figures and conversations as texts.

tensorboard --logdir outputs
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from vime.config import RunConfig
from vime.files.provenance import plain, without_secrets
from vime.report.conversations import COLUMNS, Table

FOLDER = "tensorboard"
FLUSH_SECONDS = 10


class TensorBoardWriter:
    """TensorBoard's files of one start of a run; a run that is resumed has several, which are shown as one."""

    def __init__(self, config: RunConfig, path: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(path / FOLDER), flush_secs=FLUSH_SECONDS)
        resolved = yaml.safe_dump(without_secrets(plain(config)), sort_keys=False, allow_unicode=True)
        self._writer.add_text("configuration", _code(resolved), 0)

    def log(
        self,
        step: int,
        metrics: Mapping[str, float],
        figures: Mapping[str, Mapping[str, Any]],
        tables: Mapping[str, Table],
    ) -> None:
        """Writes the values of one step."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        for name, figure in figures.items():
            rows = zip(figure["x"], *figure["series"].values())
            self._writer.add_text(name, _markdown(["x", *figure["series"]], [list(row) for row in rows]), step)
        for name, table in tables.items():
            self._writer.add_text(name, _markdown(COLUMNS, table.rows), step)

    def finish(self, *, failed: bool) -> None:
        """Ends the files."""
        self._writer.close()


def _markdown(columns: list[str], rows: list[list[Any]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    for character, instead in (("&", "&amp;"), ("<", "&lt;"), ("|", "&#124;"), ("\n", "<br>")):
        text = text.replace(character, instead)
    return text


def _code(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
