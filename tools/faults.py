"""Breaks real runs of the laptop tasks in every way that is known to happen, and counts what was lost.

    make faults                                   (or: python tools/faults.py [--only PATTERN] [--json PATH] [--markdown PATH])

Every case is a run of its own, from `python -m vime.run` to its end, with real servers, trainer and Ray. It must complete, or
end with an error and complete after `resume=true`; no finished group and no prompt may be lost, no prompt trained twice, nothing
of it may be left on the machine. The exit code is 1 if any case fails.
"""

import argparse
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench_rows import Result, circumstances
from driven_run import ROOT, DrivenRun
from fault_cases import CASES, WAIT_SECONDS, Case, can_mount, folder_for, make_room, strike_when_due
from fault_delay import Delay, compare

from vime.data.source import RowSource
from vime.preflight.compose import compose_run
from vime.surroundings import settle

NUM_STEPS, NUM_PROMPTS, NUM_SAMPLES = 5, 4, 4
WORDS = [
    f"trainer.num_steps={NUM_STEPS}",
    "trainer.save_every=1",
    f"rollout.num_prompts={NUM_PROMPTS}",
    f"rollout.num_samples_per_prompt={NUM_SAMPLES}",
    "evaluation.rows=[]",
]


@dataclass(kw_only=True, slots=True)
class Verdict:
    """The cost of one case.

    Example: `Verdict(case="server killed", ended="completed", happened=True, groups_finished=20, groups_lost=0, prompts_lost=0,
    prompts_doubled=0, leftovers=0, failed_rollouts=0, seconds=52.1)`.
    """

    case: str
    ended: str
    happened: bool = False
    groups_finished: int = 0
    groups_lost: int = 0
    prompts_lost: int = 0
    prompts_doubled: int = 0
    leftovers: int = 0
    failed_rollouts: int = 0
    damage: int = 0
    """The case's own count, as of tokens that were sampled twice."""
    seconds: float = 0.0
    delay: Delay | None = None

    @property
    def is_late(self) -> bool:
        """True if the fault cost more time than it may."""
        return self.delay is not None and self.delay.disturbed > self.delay.limit

    @property
    def is_good(self) -> bool:
        """True if the run came through, and nothing was lost."""
        lost = self.groups_lost + self.prompts_lost + self.prompts_doubled + self.leftovers + abs(self.damage)
        return self.ended in ("completed", "resumed, completed") and self.happened and not lost and not self.is_late


def words_of(case: Case) -> list[str]:
    """The run that a case breaks."""
    return [f"+method={case.method}", *WORDS]


def try_case(case: Case, folder: Path) -> Verdict:
    """Runs one case in `folder`."""
    started = time.monotonic()
    environment = {"PYTHONPATH": f"{ROOT / 'tools'}:{os.environ.get('PYTHONPATH', '')}", "VIME_FAULT_FOLDER": str(folder.parent)}
    finished: dict[int, list[str]] = {}

    def watch(folder: Path) -> None:
        finished.update(finished_groups(folder))

    leftovers: list[str] = []
    ended, words = "completed", [*words_of(case), *case.words]
    for attempt in range(2):
        run = DrivenRun(folder, [*words, "resume=true"] if attempt else words, environment=environment, watch=watch)
        try:
            if attempt == 0:
                strike_when_due(case, run)
            code = run.finish(seconds=WAIT_SECONDS)
        except (TimeoutError, RuntimeError, LookupError) as error:
            sys.stderr.write(f"{case.name}: {error}\n")
            run.kill()
            return Verdict(case=case.name, ended=type(error).__name__, seconds=time.monotonic() - started)
        watch(folder)
        leftovers += run.leftovers()
        if code == 0:
            ended = "resumed, completed" if attempt else "completed"
            break
        ended = f"exit code {code}"
        if not case.resumes or attempt:
            sys.stderr.write(f"{case.name}: {run.log_tail()}\n")
            break
        make_room(folder)
    text = folder.with_suffix(".log").read_text(errors="replace") + traces(folder)
    evidence = (case.evidence,) if isinstance(case.evidence, str) else case.evidence
    happened = any(word in text for word in evidence)
    verdict = Verdict(case=case.name, ended=ended, happened=happened, leftovers=len(leftovers))
    audit(verdict, case, folder, finished)
    verdict.damage = case.damage(folder)
    if case.undisturbed is not None and verdict.happened:
        verdict.delay = compare([*words_of(case), *case.undisturbed], folder, environment, seconds=WAIT_SECONDS)
    verdict.seconds = time.monotonic() - started
    return verdict


def finished_groups(folder: Path) -> dict[int, list[str]]:
    """The texts of all rollouts of the groups that have finished so far, by group."""
    found = {}
    for path in sorted((folder / "journal").glob("step_*.jsonl")):
        for line in _bytes(path).split(b"\n")[:-1]:
            try:
                rollouts = json.loads(line)["rollouts"]
            except ValueError:  # torn by a full disk
                continue
            found[rollouts[0]["group_index"]] = _texts(rollouts)
    return found


def trained_groups(folder: Path) -> dict[int, tuple[int, list[str]]]:
    """Row and texts of the groups that were trained, by group. Raises ValueError if a group was trained in two steps."""
    found: dict[int, tuple[int, list[str]]] = {}
    for step in range(1, NUM_STEPS + 1):
        path = folder / "rollouts" / f"step_{step:06d}.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        for group in sorted({row["group_index"] for row in rows}):
            if group in found:
                raise ValueError(f"group {group} was trained twice")
            members = [row for row in rows if row["group_index"] == group]
            found[group] = members[0]["row"], _texts(members)
    return found


def audit(verdict: Verdict, case: Case, folder: Path, finished: dict[int, list[str]]) -> None:
    """Compares the trained rollouts with the prompts of an undisturbed run and with the rollouts that had finished."""
    trained = trained_groups(folder)
    source = RowSource(compose_run(words_of(case)).config)
    expected = [source.next().row for _ in range(case.num_steps * case.num_prompts)]
    rows = [row for row, _ in trained.values()]
    verdict.prompts_lost = sum(max(0, expected.count(row) - rows.count(row)) for row in set(expected))
    verdict.prompts_doubled = sum(max(0, rows.count(row) - expected.count(row)) for row in set(rows))
    verdict.prompts_lost -= case.num_given_up
    verdict.prompts_doubled -= case.num_given_up
    verdict.groups_finished = len(finished)
    verdict.groups_lost = sum(group not in trained or trained[group][1] != texts for group, texts in finished.items())
    if (folder / "summary.json").exists():
        verdict.failed_rollouts = json.loads((folder / "summary.json").read_text())["num_failed_rollouts"]


def traces(folder: Path) -> str:
    """Faults and, of the metrics, the names of those that are not 0."""
    text = (folder / "faults.jsonl").read_text() if (folder / "faults.jsonl").exists() else ""
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        text += " ".join(name for name, value in json.loads(line).items() if value)
    return text


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # the run has just removed it
        return b""


def _texts(rollouts: list[dict[str, Any]]) -> list[str]:
    """Samples in order of the rollouts; failed rollouts leave none."""
    ordered = sorted(rollouts, key=lambda rollout: rollout["rollout_id"])
    return [sample["response"] for rollout in ordered for sample in rollout["samples"]]


def table(verdicts: list[Verdict], skipped: list[str]) -> str:
    """Markdown: one line per case."""
    lines = [
        "| fault | the run | groups finished | groups lost | prompts lost | prompts doubled | failed rollouts | left over "
        "| other damage | s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    delays: list[str] = []
    for verdict in verdicts:
        cells = [verdict.case, verdict.ended if verdict.happened else f"{verdict.ended} (the fault did not happen)"]
        cells += [verdict.groups_finished, verdict.groups_lost, verdict.prompts_lost, verdict.prompts_doubled]
        cells += [verdict.failed_rollouts, verdict.leftovers, verdict.damage, f"{verdict.seconds:.0f}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
        if (delay := verdict.delay) is not None:
            delays.append(f"{verdict.case}: {delay.line()}")
    lines += [f"| {name} | not run: needs root, for a small disk |{' |' * 8}" for name in skipped]
    return "\n".join([*lines, *(f"\n{delay}" for delay in delays)]) + "\n"


def _write_page(path: Path, page: Result, lines: str) -> None:
    facts = "\n".join(f"- {fact}" for fact in circumstances(page))
    path.write_text(f"# {page.title}\n\n{facts}\n\n{lines}")


def main() -> int:
    """Tries the cases one after another; results are written after each."""
    settle()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # started by nohup, the runs would ignore it, and one case sends it
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression over the names of the cases")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--keep", action="store_true", help="keep the run folders")
    options = parser.parse_args()
    page = Result(title="Faults on real servers")
    parent = Path(tempfile.mkdtemp(prefix="vime-faults-"))
    chosen = [case for case in CASES if re.search(options.only, case.name)]
    skipped = [case.name for case in chosen if case.small_disk and not can_mount()]
    verdicts: list[Verdict] = []
    for case in chosen:
        if case.name in skipped:
            continue
        with folder_for(case, parent) as folder:
            verdicts.append(try_case(case, folder))
        sys.stderr.write(f"{'good' if verdicts[-1].is_good else 'BAD '} {verdicts[-1]}\n")
        if options.json:
            options.json.write_text(json.dumps([asdict(verdict) for verdict in verdicts], indent=1) + "\n")
        if options.markdown:
            _write_page(options.markdown, page, table(verdicts, skipped))
    sys.stdout.write(table(verdicts, skipped))
    if options.keep:
        sys.stdout.write(f"run folders: {parent}\n")
    else:
        shutil.rmtree(parent, ignore_errors=True)
    return 0 if all(verdict.is_good for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
