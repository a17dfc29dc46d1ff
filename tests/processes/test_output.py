"""All output of a process is in its file of the run folder, no matter which part of it writes."""

import subprocess
import sys
from pathlib import Path

import pytest

from vime.processes.output import shorten

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

ENDLESS = """
import subprocess, sys, time
from pathlib import Path
from vime.processes import output
output.MAX_BYTES, output.LOOK_SECONDS = 10_000, 0.01
path = Path(sys.argv[1])
output.send_output_to(path)
program = subprocess.Popen(["sh", "-c", "while echo by a program; do sleep 0.001; done"])
number = 0
while not path.with_suffix(".earlier.log").exists():
    print(number, "by the process")
    number += 1
while path.stat().st_size > output.MAX_BYTES // 2 or "by a program" not in path.read_text():
    time.sleep(0.001)
program.kill()
program.wait()
while path.stat().st_size > output.MAX_BYTES:
    time.sleep(0.001)
print("last")
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


@pytest.mark.parametrize("num_lines", [1, 9, 10, 11, 1000])
def test_a_log_that_is_full_is_emptied_and_its_last_lines_are_kept(tmp_path: Path, num_lines: int) -> None:
    path, earlier = tmp_path / "worker-0.log", tmp_path / "worker-0.earlier.log"
    lines = [f"line {number:04d}\n" for number in range(num_lines)]
    with path.open("a") as writer:
        writer.writelines(lines)
        writer.flush()
        shorten(path, max_bytes=105)
        is_full = num_lines > 10
        assert earlier.exists() == is_full
        assert (earlier if is_full else path).read_text() == "".join(lines[-10:])
        writer.write("after\n")
        writer.flush()
    assert path.read_text() == ("after\n" if is_full else "".join([*lines, "after\n"])), "who has it open writes at its end"


def test_a_log_that_grows_while_it_is_copied_leaves_no_longer_copy(tmp_path: Path) -> None:
    path, earlier = tmp_path / "worker-0.log", tmp_path / "worker-0.earlier.log"
    with subprocess.Popen(["sh", "-c", f"while echo written meanwhile; do :; done >> {path}"]) as writer:
        try:
            for _ in range(200):
                while not path.exists() or path.stat().st_size <= 1000:
                    assert writer.poll() is None, "the writer has ended"
                shorten(path, max_bytes=1000)
                assert 0 < earlier.stat().st_size <= 1000
        finally:
            writer.kill()


def test_a_process_and_its_programs_write_on_after_their_log_was_emptied(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"
    subprocess.run([sys.executable, "-c", ENDLESS, str(path)], check=True, timeout=60)
    assert "last\n" in path.read_text() and path.read_bytes()[:1] != b"\0"
    assert 0 < path.with_suffix(".earlier.log").stat().st_size <= 10_000
