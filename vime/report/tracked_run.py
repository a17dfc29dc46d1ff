"""`tracker.json` in a run folder: the id under which a tracking service knows the run, also after a resume."""

import json
from collections.abc import Callable
from pathlib import Path

from vime.files.jsonl import write_text

FILE = "tracker.json"


def kept_id(path: Path, service: str, make: Callable[[], str]) -> str:
    """The run's id in a service, which is made once and kept."""
    file = path / FILE
    ids: dict[str, str] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if service not in ids:
        ids[service] = make()
        write_text(file, json.dumps(ids) + "\n")
    return ids[service]
