"""Starts real runs in the surroundings of other people's machines: folders, variables, limits, disks, networks.

    python tools/surroundings.py [--only PATTERN] [--json PATH] [--markdown PATH]

Each row is a run of one step of the laptop task, or a plan, from `python -m vime.run` to its end. It must train, or say in one
sentence why not (exit code 2), without a traceback and with nothing of it left on the machine. Rows that need root are left out
for other users. The exit code is 1 if a row does not end as it should.
"""

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from bench_rows import Result, circumstances
from driven_run import ROOT, DrivenRun, num_steps_done
from surroundings_rows import ROWS, End, Row, container, listener

from vime.surroundings import settle

WAIT_SECONDS = 300.0
WORDS = [
    "+method=memagent",
    "trainer.num_steps=1",
    "rollout.num_prompts=2",
    "rollout.num_samples_per_prompt=2",
    "evaluation.rows=[]",
]
OUTSIDE = "/var/tmp"
"""Place of a run folder in surroundings without `/tmp`."""


@dataclass(kw_only=True, slots=True)
class Seen:
    """The outcome of one row.

    Example: `Seen(row="umask 077", wanted="trains", code=0, steps=1, said="step 1/1 | …", faults=[], seconds=31.0)`.
    """

    row: str
    wanted: str
    code: int | None
    """The exit code; None if the run did not end in time."""
    steps: int
    said: str
    """The last line, or of a refusal its reason."""
    faults: list[str]
    seconds: float

    @property
    def is_good(self) -> bool:
        """True if it ended as it should."""
        return not self.faults


def see(row: Row, folder: Path) -> Seen:
    """Runs one row in a folder of its own."""
    started = time.monotonic()
    with ExitStack() as stack:
        names = {"{folder}": str(folder), "{outside}": stack.enter_context(tempfile.TemporaryDirectory(dir=OUTSIDE))}
        text = json.dumps([row.words, row.shell, row.python, row.start_folder, list(row.environment.values())])
        for name, make in (("{container}", container), ("{silent}", listener)):
            if name in text:
                names[name] = stack.enter_context(make())

        def filled(text: str) -> str:
            for name, value in names.items():
                text = text.replace(name, value)
            return text

        (folder / "a_file").touch()
        start = Path(filled(row.start_folder))
        start.mkdir(parents=True, exist_ok=True)
        python = Path(filled(row.python))
        if not python.exists():
            python.parent.parent.parent.mkdir(parents=True, exist_ok=True)
            python.parent.parent.symlink_to(Path(sys.executable).parent.parent)
        environment = {name: filled(value) if value is not None else None for name, value in row.environment.items()}
        if (temporary := environment.get("TMPDIR") or "").startswith(str(folder)):
            Path(temporary).mkdir(parents=True)
        words = [*WORDS, *map(filled, row.words)]
        chosen = next((word.partition("=")[2] for word in words if word.startswith("output_dir=")), None)
        run = DrivenRun(
            start / chosen if chosen else folder / "run",
            words,
            environment={"PYTHONPATH": str(ROOT), **environment},
            python=str(python),
            start_folder=start,
            log=folder / "log.txt",
            shell=filled(row.shell),
            names_folder=chosen is None and row.end is End.trains,
        )
        try:
            code, left = run.finish(seconds=WAIT_SECONDS), run.leftovers()
        except TimeoutError:
            run.kill()
            code, left = None, []
        log = (folder / "log.txt").read_text(errors="replace")
        steps = num_steps_done(run.folder) if row.end is End.trains else 0
    seen = Seen(row=row.name, wanted=row.end.value, code=code, steps=steps, said=_reason(log, code), faults=[], seconds=0.0)
    seen.faults = faults_of(row, seen, log, left)
    seen.seconds = time.monotonic() - started
    return seen


def faults_of(row: Row, seen: Seen, log: str, left: list[str]) -> list[str]:
    """Everything that is not as it should be."""
    faults: list[str] = []
    if seen.code is None:
        faults.append("did not end")
    elif seen.code != (wanted := 2 if row.end is End.refuses else 0):
        faults.append(f"exit code {seen.code}, not {wanted}")
    if row.end is End.trains and seen.steps != 1:
        faults.append(f"{seen.steps} steps")
    if "Traceback (most recent call last)" in log:
        faults.append("a traceback")
    if not re.search(row.says, log):
        faults.append(f"does not say {row.says}")
    return [*faults, *(f"left over: {what}" for what in left)]


def _reason(log: str, code: int | None) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    steps = [line for line in lines if line.startswith("step 1/1 |")]
    return (steps if code == 0 and steps else lines or [""])[-1][:240]


def table(seen: list[Seen], left_out: dict[str, str]) -> str:
    """Markdown: one line per row."""
    lines = ["| surroundings | the run | s |", "|---|---|---|"]
    for row in seen:
        what = {"trains": "one step trained", "plans": "the plan is shown", "refuses": f"exit code 2: {row.said}"}[row.wanted]
        what = what if row.is_good else f"**{'; '.join(row.faults)}**: {row.said}"
        lines.append(f"| {_cell(row.row)} | {_cell(what)} | {row.seconds:.0f} |")
    lines += [f"| {_cell(name)} | not tried: {why} | |" for name, why in left_out.items()]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    text = re.sub(r"x{10,}", "xxx…", text)
    return re.sub(r"/(?:var/)?tmp/\S*?(?=/outputs|/run|/a_file|:| |\)|$)", "…", text).replace("|", r"\|")


def earlier(file: Path | None, *, but: list[str]) -> list[Seen]:
    """The rows of earlier calls in a file, without those that are tried again or no longer exist."""
    rows = json.loads(file.read_text()) if file is not None and file.exists() else []
    return [Seen(**row) for row in rows if row["row"] not in but and row["row"] in {row.name for row in ROWS}]


def main() -> int:
    """Tries the rows one after another; results are written after each."""
    settle()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression over the names of the rows; others of --json are kept")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--keep", action="store_true", help="keep the folders")
    options = parser.parse_args()
    page = Result(title="Surroundings of a run")
    parent = Path(tempfile.mkdtemp(prefix="vime-surroundings-"))
    chosen = [row for row in ROWS if re.search(options.only, row.name)]
    names = [row.name for row in ROWS]
    left_out = {row.name: why for row in ROWS if (why := row.needs())}
    seen = earlier(options.json, but=[row.name for row in chosen])
    for number, row in enumerate(row for row in chosen if row.name not in left_out):
        folder = parent / str(number)
        folder.mkdir()
        found = see(row, folder)
        seen = sorted([*seen, found], key=lambda one: names.index(one.row))
        sys.stderr.write(f"{'good' if found.is_good else 'BAD '} {found}\n")
        if options.json:
            options.json.write_text(json.dumps([asdict(one) for one in seen], indent=1, ensure_ascii=False) + "\n")
        if options.markdown:
            facts = "\n".join(f"- {fact}" for fact in circumstances(page))
            who = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
            options.markdown.write_text(f"# {page.title}\n\n{facts}\n- as {who}\n\n{table(seen, left_out)}")
    sys.stdout.write(table(seen, left_out))
    if options.keep:
        sys.stdout.write(f"folders: {parent}\n")
    else:
        shutil.rmtree(parent, ignore_errors=True)
    return 0 if all(one.is_good for one in seen) else 1


if __name__ == "__main__":
    sys.exit(main())
