"""Signs of progress of a program that is starting: its log grows, or the checkpoint that it downloads does.

How long a start takes depends on the network, the disk, the compiler and the size of the model, so the time limit is on silence.
"""

import os
import time
from pathlib import Path

DOWNLOAD_LOOK_SECONDS = 5.0
LAST_LINE_BYTES = 2000
LAST_LINE_CHARACTERS = 300
GIB = 2**30


class StartSigns:
    """The signs of one program from now on; `hub_id` is the checkpoint that it may have to download."""

    def __init__(self, log: str, *, hub_id: str | None) -> None:
        self._log, self._downloads = Path(log), _hub_folder(hub_id)
        self._seen = (_size(self._log), _total(self._downloads))
        self._first_total = self._seen[1]
        self._looked = self._moved = time.monotonic()

    def silent_seconds(self) -> float:
        """Seconds since the last sign."""
        now, (log_bytes, downloaded) = time.monotonic(), self._seen
        if now - self._looked > DOWNLOAD_LOOK_SECONDS:  # going through a folder on a shared disk takes a while
            self._looked, downloaded = now, _total(self._downloads)
        seen = (_size(self._log), downloaded)
        if seen != (log_bytes, self._seen[1]):
            self._seen, self._moved = seen, now
        return now - self._moved

    def describe(self) -> str:
        """The amount that was downloaded, and the last line of the log."""
        fetched = _total(self._downloads) - self._first_total
        words = [f"it has fetched {fetched / GIB:.1f} GiB of its checkpoint"] if fetched > 0 else []
        return "; ".join([*words, f"its log ends with: {_last_line(self._log)}"])


def _hub_folder(hub_id: str | None) -> Path | None:
    if hub_id is None:
        return None
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=hub_id, repo_type="model") / "blobs"


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _total(folder: Path | None) -> int:
    """Bytes of the files in a folder, with those that are being written."""
    return sum(_size(file) for file in folder.glob("*")) if folder is not None else 0


def _last_line(log: Path) -> str:
    """The last line that is not empty; progress bars rewrite theirs by carriage returns."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.path.getsize(log) - LAST_LINE_BYTES))
            text = file.read(LAST_LINE_BYTES).decode(errors="replace")
    except OSError:
        return "(there is no log)"
    lines = [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return lines[-1][-LAST_LINE_CHARACTERS:] if lines else "(nothing yet)"
