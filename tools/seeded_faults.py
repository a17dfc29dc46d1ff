"""Puts one-line faults into the code, one at a time, and says which of them the tests find.

    python tools/seeded_faults.py [--only TEXT] [--list] [--json PATH] [--whole]

The faults are those of `seeded_fault_cases.py`. Each is put into a copy of the working tree (its tracked files), where the tests
run that should notice it, or with `--whole` all quick ones; then the file is restored. A fault is found if a test fails, not if
the tests cannot be read or do not end. First all these tests run without a fault. `--only` takes the faults in whose file, line
or tests a text occurs, `--list` shows them as a table. The exit code is 1 if a fault was not found, 2 if tests fail without one.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from seeded_fault_cases import FAULTS, Fault

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT, DESCRIPTION = ".venv", "vime.egg-info"
"""The environment, and the description of the installed package, by which methods and plug-ins are found. Git has neither."""
PYTEST = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")
QUICK = ("-m", "not slow")
"""The choice of `make quick`."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", re.M)
SHOWN_CHARACTERS = 2000
"""Number of characters that are shown of the end of an output."""
MARGIN_SECONDS, MOST_SECONDS = 60.0, 900.0
"""A fault may take twice the time that all of the tests took without one, and this margin; its own tests at most so long."""
FOUND, NOT_FOUND, NOT_RUN = "found", "NOT FOUND", "not run"
STATES = {0: NOT_FOUND, 1: FOUND}
"""Verdicts by the exit code of pytest; with any other code the tests did not run as they should."""


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """The end of a run of tests. Example: `End(code=1, seconds=4.2, output="…1 failed")`."""

    code: int | None
    """The exit code; None if the run was ended at its time limit."""
    seconds: float
    output: str

    @property
    def state(self) -> str:
        """The verdict about the fault under which the tests ran."""
        return STATES.get(self.code, NOT_RUN) if self.code is not None else NOT_RUN

    @property
    def failed_test(self) -> str:
        """The first test that failed, "" if none did."""
        found = FAILED.search(self.output)
        return found[1] if found else ""

    @property
    def tail(self) -> str:
        """The last characters of the output."""
        why = "" if self.code is not None else "\nended at its time limit"
        return self.output.strip()[-SHOWN_CHARACTERS:] + why


@contextmanager
def copied() -> Iterator[Path]:
    """Within the block there is a copy of the working tree, with the environment of this one."""
    folder = Path(tempfile.mkdtemp(prefix="vime-seeded-"))
    copy = folder / "copy"
    git("worktree", "add", "--quiet", "--detach", str(copy), git("stash", "create") or "HEAD")
    try:
        environment = (ROOT / ENVIRONMENT).resolve()
        (copy / ENVIRONMENT).symlink_to(environment)
        for place in (ROOT, environment.parent):  # a worktree has its environment, and what is beside it, from elsewhere
            if (place / DESCRIPTION).is_dir():
                shutil.copytree(place / DESCRIPTION, copy / DESCRIPTION)
                break
        yield copy
    finally:
        git("worktree", "remove", "--force", str(copy))
        shutil.rmtree(folder, ignore_errors=True)


def git(*words: str) -> str:
    """The output of a git command on this repository."""
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def planted(fault: Fault, copy: Path) -> Iterator[None]:
    """Within the block the fault is in the copy."""
    path = copy / fault.file
    text = path.read_text(encoding="utf-8")
    assert text.count(fault.old) == 1, f"{fault.file} has {fault.old!r} {text.count(fault.old)} times"
    path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")


def run_tests(copy: Path, tests: Sequence[str], *, limit: float | None = None) -> End:
    """Runs tests in the copy up to the first that fails, at most `limit` seconds long."""
    output, started = copy.parent / "output.txt", time.monotonic()
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *PYTEST, *tests],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return End(code=code, seconds=time.monotonic() - started, output=output.read_text(errors="replace"))


def table(faults: Sequence[Fault]) -> str:
    """Markdown: one line for each fault."""
    lines = ["| room | file | instead of | is | tests |", "|---|---|---|---|---|"]
    for fault in faults:
        tests = ", ".join(f"`{test}`" for test in fault.tests)
        code = (f"`{text.strip()}`".replace("|", "\\|") for text in (fault.old, fault.new))
        lines.append(f"| {fault.room} | `{fault.file}` | {' | '.join(code)} | {tests} |")
    return "\n".join(lines) + "\n"


def line(fault: Fault, end: End) -> str:
    """The verdict about a fault, and below it the end of the output if the tests did not run."""
    details = [end.failed_test] if end.state == FOUND else [fault.new.strip()]
    found = f"{end.state:<9} {end.seconds:6.1f} s  {fault.file}  {details[0]}\n"
    return found + (f"{end.tail}\n" if end.state == NOT_RUN else "")


def row(fault: Fault, end: End) -> dict[str, object]:
    """The fields of a fault and of its verdict, for JSON."""
    tail = end.tail if end.state == NOT_RUN else ""
    verdict = {"state": end.state, "seconds": round(end.seconds, 1), "failed_test": end.failed_test, "output": tail}
    return {"room": fault.room, **asdict(fault), **verdict}


def try_faults(faults: Sequence[Fault], *, whole: bool, path: Path | None) -> int:
    """Tries the faults one after another; `path` has the verdicts so far as JSON. Returns the exit code."""
    with copied() as copy:
        clean = run_tests(copy, QUICK if whole else list(dict.fromkeys(test for fault in faults for test in fault.tests)))
        sys.stdout.write(f"without a fault {clean.seconds:.1f} s\n")
        if clean.code != 0:
            sys.stdout.write(f"{clean.tail}\nthese tests fail without a fault\n")
            return 2
        limit = 2 * clean.seconds + MARGIN_SECONDS
        limit = limit if whole else min(limit, MOST_SECONDS)
        states, rows, started = Counter[str](), list[dict[str, object]](), time.monotonic()
        for fault in faults:
            with planted(fault, copy):
                end = run_tests(copy, QUICK if whole else fault.tests, limit=limit)
            states[end.state] += 1
            rows.append(row(fault, end))
            sys.stdout.write(line(fault, end))
            sys.stdout.flush()
            if path is not None:
                path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    counts = ", ".join(f"{states[state]} {state}" for state in (FOUND, NOT_FOUND, NOT_RUN))
    sys.stdout.write(f"{len(faults)} faults: {counts}, in {time.monotonic() - started:.0f} s\n")
    return 0 if states[FOUND] == len(faults) else 1


def main() -> int:
    """Tries the chosen faults, or lists them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="a text in a fault's file, line or tests")
    parser.add_argument("--list", action="store_true", help="show the faults, and run nothing")
    parser.add_argument("--json", type=Path, metavar="PATH")
    parser.add_argument("--whole", action="store_true", help="run all quick tests for each fault")
    options = parser.parse_args()
    chosen = [fault for fault in FAULTS if options.only in "\n".join((fault.file, fault.old, *fault.tests))]
    if not chosen:
        parser.error(f"no fault has {options.only!r} in its file, line or tests")
    if options.list:
        sys.stdout.write(table(chosen))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the copy is removed
    return try_faults(chosen, whole=options.whole, path=options.json)


if __name__ == "__main__":
    sys.exit(main())
