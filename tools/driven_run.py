"""A run of the whole program under the control of another: started, watched by its metrics, broken, and seen to leave nothing."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
POLL_SECONDS = 0.1
CLEAN_UP_SECONDS = 90.0


class DrivenRun:
    """One start of `python -m vime.run` or another program in `start_folder`, with its output in a file of `folder`'s parent."""

    def __init__(
        self,
        folder: Path,
        words: list[str],
        *,
        environment: Mapping[str, str | None],
        watch: Callable[[Path], None] = lambda folder: None,
        python: str = sys.executable,
        start_folder: Path = ROOT,
        log: Path | None = None,
        shell: str = "",
        names_folder: bool = True,
        module: str = "vime.run",
    ) -> None:
        """`shell` is done first, by a shell that becomes the program; without `names_folder` the run chooses its own.

        `module` is the program.
        """
        self.folder = folder
        self._watch, self._watched = watch, 0.0
        self._log = log or folder.with_suffix(".log")
        command = [python, "-m", module, *words, *[f"output_dir={folder}"] * names_folder]
        if shell:
            script = f'{shell}\nexec "$@"'
            command = ["sh", "-c", script, script, *command]
        variables = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=start_folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=variables,
            )
        self._seen: dict[int, psutil.Process] = {}
        self._run_ids: set[str] = set()

    @property
    def driver(self) -> psutil.Process:
        """The program itself."""
        return psutil.Process(self._process.pid)

    def wait_for(self, condition: Callable[[], object], *, seconds: float) -> None:
        """Raises TimeoutError, or RuntimeError if the run ends first."""
        deadline = time.monotonic() + seconds
        while not condition():
            if self._process.poll() is not None:
                raise RuntimeError(f"the run ended with {self._process.returncode}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {seconds:.0f} s:\n{self.log_tail()}")
            self._look()
            time.sleep(POLL_SECONDS)

    def finish(self, *, seconds: float) -> int:
        """Waits for the end and returns the exit code. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the run did not end in {seconds:.0f} s:\n{self.log_tail()}")
            self._look()
            time.sleep(POLL_SECONDS)
        return self._process.returncode

    def find(self, pattern: str) -> psutil.Process:
        """The first process of the run whose command line matches. Raises LookupError."""
        for process in self._look():
            line = _command_line(process)
            if re.search(pattern, line) and "vime.processes.launch" not in line:  # supervisors have the command in theirs
                return process
        raise LookupError(f"no process of the run matches {pattern}")

    def leftovers(self) -> list[str]:
        """Processes, shared memory and temporary folders that are still there some time after the end."""
        deadline = time.monotonic() + CLEAN_UP_SECONDS
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return left

    def kill(self) -> None:
        """Ends all of the run, in any state."""
        for process in [*self._look(), self.driver] if self._process.poll() is None else self._look():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        self._process.wait()

    def log_tail(self) -> str:
        """The end of the run's output."""
        return self._log.read_text(errors="replace")[-3000:]

    def _look(self) -> list[psutil.Process]:
        """All processes of the run that there are now; they are remembered. `watch` is called about once a second."""
        if time.monotonic() > self._watched + 1.0:
            self._watch(self.folder)
            self._watched = time.monotonic()
        if self._process.poll() is None:
            for process in self.driver.children(recursive=True):
                if self._seen.setdefault(process.pid, process) is process:
                    self._run_ids.update(re.findall(r"/tmp/vime-(\w{8})", _command_line(process)))
        return [process for process in self._seen.values() if _is_alive(process)]

    def _left(self) -> list[str]:
        processes = [_command_line(process)[:120] for process in self._look()]
        folders = [
            str(path) for run_id in self._run_ids for path in (Path(f"/dev/shm/vime-{run_id}"), Path(f"/tmp/vime-{run_id}"))
        ]
        return processes + [folder for folder in folders if Path(folder).exists()]


def num_steps_done(folder: Path) -> int:
    """Steps in the metrics of a run."""
    file = folder / "metrics.jsonl"
    return sum("step" in json.loads(line) for line in file.read_text().splitlines()) if file.exists() else 0


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return ""
