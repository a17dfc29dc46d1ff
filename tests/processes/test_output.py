"""What a process writes is in its file of the run folder, whoever in it writes."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import contextlib, logging, os, subprocess, sys
from pathlib import Path
from vime.processes.output import send_output_to
send_output_to(Path(sys.argv[1]))
print("printed \\udcff")
print("to stderr", file=sys.stderr)
logging.getLogger("my.agent").info("logged")
logging.getLogger("my.agent").debug("too much")
with contextlib.suppress(OSError):  # a full disk
    os.write(1, b"by a library in C\\n")
subprocess.run(["echo", "by a program"])
"""


def run(path: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-c", PROGRAM, path], capture_output=True, check=True, timeout=60)


def test_everything_that_a_process_writes_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "worker-0.log"
    assert run(str(path)).stdout == b""
    written = path.read_text()
    for text in ("printed", "to stderr", "INFO my.agent: logged", "by a library in C", "by a program"):
        assert text in written
    assert "too much" not in written
    run(str(path))
    assert path.read_text().count("by a program") == 2, "a second process of that name writes behind the first"


def test_a_full_disk_costs_lines_and_not_the_agent() -> None:
    assert run("/dev/full").returncode == 0


def test_a_folder_that_cannot_be_made_costs_the_file_and_not_the_process(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be")
    assert b"printed" in run(str(tmp_path / "logs" / "worker-0.log")).stdout
