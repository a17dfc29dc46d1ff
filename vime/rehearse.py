"""`rehearse=true`: runs any experiment on this machine with a random small model, and shows what of its method occurred.

    python -m vime.run +experiment=memagent_paper_7b rehearse=true

The run is that of the experiment, from preflight to the table (`vime.rehearsal.shrink` says what is small). It has a folder of
its own below `outputs/rehearsals/`, with `rehearsal.md` and `rehearsal.json`: what was replaced, what occurred and what never
did, the table in the paper's layout, seconds and memory.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from vime import loop, trial
from vime.config import TRY, Mode, RunConfig
from vime.errors import ConfigError
from vime.files.jsonl import write_lines, write_text
from vime.preflight.compose import Composed
from vime.preflight.validation import problems_here
from vime.rehearsal.findings import RehearsalFindings, write_findings
from vime.rehearsal.local_data import Shrunk, data_folder
from vime.rehearsal.peak_memory import PeakMemory
from vime.rehearsal.random_model import write_model
from vime.rehearsal.scripted_client import rehearsal_of
from vime.rehearsal.shrink import model_folder, shrink
from vime.report.summary import read_summary


def rehearse(composed: Composed) -> int:
    """Rehearses a run that its checks have accepted, or shows the plan of its rehearsal; returns the exit code.

    Raises `ConfigError` if this machine cannot rehearse it.
    """
    started, shrunk = time.monotonic(), shrink(composed.config)
    config = shrunk.config
    if config.mode is Mode.plan:
        from vime.preflight.plan import show_plan

        show_plan(config)
        sys.stdout.write(_said(shrunk))
        return 0
    furnish(composed, shrunk)
    if problems := problems_here(config):
        raise ConfigError(problems)
    small = replace(composed, config=config)
    if config.mode is TRY:
        return 0 if trial.try_once(small) else 1
    sys.stdout.write(_said(shrunk))
    sys.stdout.flush()
    with PeakMemory() as memory:
        (loop.train if config.mode is Mode.train else loop.evaluate)(small)
    folder = Path(str(config.output_dir))
    seconds = max(time.monotonic() - started, (read_summary(folder) or {}).get("wall_seconds", 0.0))  # with those before a resume
    findings = RehearsalFindings.of(config, shrunk.replaced, seconds=seconds, peak_bytes=memory.peak_bytes)
    sys.stdout.write(write_findings(folder, findings))
    return 0


def furnish(composed: Composed, shrunk: Shrunk) -> None:
    """Makes the random model, and the data files that are not on this machine."""
    config = shrunk.config
    if config.model.checkpoint == str(model_folder(config)):
        shrunk.replaced.append(write_model(model_folder(config), config.model))
    if number := write_files(composed.config, shrunk):
        shrunk.replaced.append(f"data: {number} files of two rows in the published layouts, below {data_folder(config)}")


def write_files(config: RunConfig, shrunk: Shrunk) -> int:
    """Writes the files of the method's rehearsal, if a data set or the retrieval service needs one; returns how many."""
    folder = data_folder(shrunk.config)
    if not (shrunk.files or str(folder) in str(shrunk.config.data)):
        return 0
    files = rehearsal_of(config).files(config)
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        if name.endswith(".json"):
            write_text(folder / name, json.dumps(rows, ensure_ascii=False))
        else:
            write_lines(folder / name, rows)
    return len(files)


def _said(shrunk: Shrunk) -> str:
    return "".join(f"rehearsal: {words}\n" for words in shrunk.replaced)
