"""Sends the output of a Ray process to a file of the run folder: its stdout, its stderr and its log records.

Ray keeps them in a temporary folder that is removed with the run. The file has a size limit: when it is exceeded, the last part
of the file is moved to a second file.
"""

import logging
import os
import stat
import sys
import threading
import time
from pathlib import Path

from vime.surroundings import PatientStream

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MAX_BYTES = 32 * 2**20
"""Size limit of a file in bytes. A longer file is emptied, after its last `MAX_BYTES` are copied to the second file."""
LOOK_SECONDS = 5.0
"""Interval at which the size is looked at; output in between may exceed the limit."""
COPY_BYTES = 2**20
logger = logging.getLogger(__name__)
_paths: list[Path] = []
"""Files to which the output of this process went; the last is the one to which it goes now."""


def send_output_to(path: Path) -> None:
    """Redirects this process's output to the end of a file, including the output of C libraries and of programs that it starts.

    `worker-0.log` and `worker-0.earlier.log`, which takes its place once it is full, hold at most `MAX_BYTES` each.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:  # a node that does not see the run folder
        logger.warning("the output of this process is not kept: %s", error)
        return
    for number in (1, 2):
        os.dup2(file, number)
    os.close(file)
    sys.stdout, sys.stderr = (PatientStream(number, encoding="utf-8", errors="backslashreplace") for number in (1, 2))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(min(root.level or logging.INFO, logging.INFO))
    _paths.append(path)
    threading.Thread(target=_keep_short, args=(path,), name="log size", daemon=True).start()


def shorten(path: Path, *, max_bytes: int) -> None:
    """Empties a file of more than `max_bytes`, after its last lines, up to `max_bytes`, are copied to `….earlier.log`.

    The file itself stays, because programs that the process has started hold it open; all of them write at its end. A line that
    is written between the look at its size and the emptying is lost. Raises OSError, with the file emptied, if the disk has no
    room for the copy.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) or found.st_size <= max_bytes:
        return
    try:
        with path.open("rb") as file, path.with_suffix(".earlier.log").open("wb") as earlier:
            file.seek(-max_bytes - 1, os.SEEK_END)
            room = max_bytes + 1 - len(file.readline())  # without the rest of a line whose beginning is left out
            while part := file.read(min(COPY_BYTES, room)):
                room -= earlier.write(part)
    finally:
        os.truncate(path, 0)


def _keep_short(path: Path) -> None:
    while path is _paths[-1]:
        time.sleep(LOOK_SECONDS)
        try:
            shorten(path, max_bytes=MAX_BYTES)
        except OSError as error:  # the disk is full, or the folder is gone
            logger.warning("%s could not be shortened: %s", path, error)
