"""Findings of a rehearsal: how often each tool, expert, judge and stop reason occurred, what never did, and the filled table."""

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vime.config import AlgorithmName, RunConfig
from vime.files.jsonl import read_lines, write_text
from vime.preflight.search_path import CONF
from vime.rehearsal.scripted_client import rehearsal_of
from vime.report.results_page import build_page, read_our_run, read_published
from vime.report.run_directory import RunDirectory

MARK = "REHEARSAL: a random model with scripted replies. The numbers only show that the table can be filled."
STOP = "stop reason"
ABSENT = "–"
PAPERS = CONF.parent / "results" / "papers"
"""Published tables; an installed vime does not have them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearsalFindings:
    """The findings of a rehearsal.

    Example: `RehearsalFindings(experiment="memagent_paper_7b", counts={"stop reason": {"answered": 12}}, absent={"stop reason":
    ["token_limit"]}, replaced=["model: …"], table="| …", seconds=212.0, peak_gib=7.9)`.
    """

    experiment: str
    counts: dict[str, dict[str, int]]
    absent: dict[str, list[str]]
    """Names that were to occur and never did, by kind."""
    replaced: list[str]
    table: str
    seconds: float
    peak_gib: float

    @classmethod
    def of(cls, config: RunConfig, replaced: list[str], *, seconds: float, peak_bytes: int) -> "RehearsalFindings":
        """The findings of the rehearsal in the configuration's folder."""
        folder = Path(str(config.output_dir))
        rehearsal, counts = rehearsal_of(config), Counter[tuple[str, str]]()
        for rollout in rollouts_of(folder):
            counts.update([(STOP, rollout["stop_reason"]), *rehearsal.occurred(rollout)])
        found: dict[str, dict[str, int]] = {}
        for (kind, name), number in sorted(counts.items()):
            found.setdefault(kind, {})[name] = number
        missing = {kind: [name for name in names if not counts[kind, name]] for kind, names in rehearsal.expected().items()}
        return cls(
            experiment=config.name,
            counts=found,
            absent={kind: names for kind, names in missing.items() if names},
            replaced=replaced,
            table="" if config.algorithm.name is AlgorithmName.sft else table_of(config, folder),
            seconds=seconds,
            peak_gib=peak_bytes / 2**30,
        )


def rollouts_of(folder: Path) -> list[dict[str, Any]]:
    """All rollouts of a run: those that were trained, and the items of its evaluations."""
    run = RunDirectory(folder)
    files = [*sorted(run.rollouts.glob("step_*.jsonl")), *sorted(run.evaluation.glob("*.jsonl"))]
    return [row for file in files for row in read_lines(file)]


def table_of(config: RunConfig, folder: Path) -> str:
    """The rows of this run in the layout of the paper's tables; without one, data sets by rows. Raises `IncompleteRunError`."""
    run, file = read_our_run(folder), PAPERS / f"{config.method.name}.yaml"
    tables = build_page(run.method, read_published(file), [run])["tables"] if file.is_file() else []
    lines: list[str] = []
    for table in tables:
        rows = [row for row in table["ours"] if "values" in row]
        if rows:
            lines += [
                "",
                f"### {table['title']}",
                "",
                _line("", *table["columns"]),
                _line("---", *["---:"] * len(table["columns"])),
            ]
            lines += [_line(f"rehearsal: {row['name']}", *map(_number, row["values"])) for row in rows]
    if not lines and run.scores:
        rows = list(dict.fromkeys(row for found in run.scores.values() for row in found))
        lines += [_line("", *run.scores), _line("---", *["---:"] * len(run.scores))]
        lines += [_line(f"rehearsal: {row}", *[_number(found.get(row)) for found in run.scores.values()]) for row in rows]
    return "\n".join(lines).strip()


def write_findings(folder: Path, findings: RehearsalFindings) -> str:
    """Writes `rehearsal.md` and `rehearsal.json` into the run's folder and returns the text of `rehearsal.md`."""
    lines = [f"# {findings.experiment}: rehearsal", MARK, "", "## Replaced", *[f"- {words}" for words in findings.replaced]]
    lines += ["", "## Occurred", _line("kind", "name", "times"), _line("---", "---", "---:")]
    lines += [_line(kind, name, str(number)) for kind, names in findings.counts.items() for name, number in names.items()]
    never = [f"{kind} {name}" for kind, names in findings.absent.items() for name in names]
    lines += ["", f"Never occurred: {', '.join(never) or 'nothing that was expected'}.", "", "## Table", MARK, "", findings.table]
    lines += ["", f"{findings.seconds:.0f} s, {findings.peak_gib:.1f} GiB at the peak. {folder}"]
    text = "\n".join(lines) + "\n"
    write_text(folder / "rehearsal.md", text)
    write_text(folder / "rehearsal.json", json.dumps(asdict(findings), indent=1, ensure_ascii=False) + "\n")
    return text


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _number(cell: dict[str, Any] | None) -> str:
    return ABSENT if cell is None else f"{cell['mean']:.1f}"
