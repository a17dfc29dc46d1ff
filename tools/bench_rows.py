"""Common parts of the benchmark programs: rows, their table, and the files that `--json` and `--markdown` write.

A row puts a measurement of this project beside a reference that was measured in the same run: `{"benchmark": "packing", "case":
"MemAgent", "ours": 99.1, "reference": 83.0, "ratio": 1.19, "unit": "% useful tokens"}`.
"""

import argparse
import json
import os
import shlex
import sys
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # after all others: a program that is run by its path has only its own folder there


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of a table. `ratio` is ours by reference; above 1 is better only if more of the unit is better.

    Example: `Row(benchmark="packing", case="MemAgent", ours=99.1, reference=83.0, ratio=1.19, unit="% useful tokens")`.
    """

    benchmark: str
    case: str
    ours: float
    reference: float
    ratio: float
    unit: str
    interval: tuple[float, float] | None = None
    """The interval of the ratio, where it was measured several times; a row without one is written without the field."""


@dataclass(kw_only=True, slots=True)
class Result:
    """The output of a program: a title, names of ours and of the reference, rows, and lines below the table.

    Example: `Result(title="Packing", columns=("ours", "first fit"), rows=[Row(…)], notes=["Every sequence is packed."])`.
    """

    title: str
    columns: tuple[str, str] = ("ours", "reference")
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    load_at_start: str = field(default_factory=lambda: _load())
    code: str = field(default_factory=lambda: _code())
    """The commit that runs; asked for at the start, because it may move on meanwhile."""

    def add(self, benchmark: str, case: str, *, ours: float, reference: float, unit: str) -> Row:
        """Appends a row and returns it."""
        ratio = ours / reference if reference else float("nan")
        made = Row(benchmark=benchmark, case=case, ours=ours, reference=reference, ratio=ratio, unit=unit)
        self.rows.append(made)
        return made


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--json` and `--markdown`, the same in every program."""
    parser.add_argument("--json", type=Path, help="write the rows here as a list of objects")
    parser.add_argument("--markdown", type=Path, help="write the table here, with date, commit, command and machine")


def finish(result: Result, arguments: argparse.Namespace) -> None:
    """Prints the table and writes the files that the options name."""
    sys.stdout.write(f"{table(result)}\n")
    save(result, arguments)


def save(result: Result, arguments: argparse.Namespace) -> None:
    """Writes the files that the options name; a long program does so again and again."""
    if arguments.json:
        rows = [{name: value for name, value in asdict(row).items() if value is not None} for row in result.rows]
        _write(arguments.json, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    if arguments.markdown:
        _write(arguments.markdown, markdown(result))


def save_section(page: Path, result: Result, *, before: str) -> None:
    """Writes a result as the section of its title on a page that has others: its facts, the text `before`, table and notes.

    A section of this title is replaced, and a new one comes last; the page must exist.
    """
    body = markdown(result).removeprefix(f"# {result.title}\n\n")
    facts, rest = body.split("\n\n", 1)
    section = f"## {result.title}\n\n{facts}\n\n{before}\n\n{rest}"
    kept = page.read_text().split("\n## ")
    others = [part for part in kept if not part.startswith(f"{result.title}\n")]
    place = next((place for place, part in enumerate(kept) if part.startswith(f"{result.title}\n")), len(others))
    others.insert(place, section.removeprefix("## "))
    _write(page, "\n## ".join(part.rstrip("\n") + "\n" for part in others))


def table(result: Result) -> str:
    """The rows as aligned text, then the notes."""
    cells = [["case", *result.columns, "ratio", "unit"], *(_cells(row) for row in result.rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(5)]
    lines = []
    for case, ours, reference, ratio, unit in cells:
        numbers = "  ".join(text.rjust(width) for text, width in zip((ours, reference, ratio), widths[1:4]))
        lines.append(f"{case.ljust(widths[0])}  {numbers}  {unit}")
    return "\n".join([result.title, "", *lines, *([""] if result.notes else []), *result.notes])


def markdown(result: Result) -> str:
    """The result as a page, headed by the context of its numbers: time, commit, command and machine."""
    head = f"| case | {result.columns[0]} | {result.columns[1]} | ratio | unit |\n|---|--:|--:|--:|---|"
    body = "\n".join("| " + " | ".join(_cells(row)) + " |" for row in result.rows)
    facts = "\n".join(f"- {line}" for line in circumstances(result))
    notes = "\n".join(f"- {note}" for note in result.notes)
    return f"# {result.title}\n\n{facts}\n\n{head}\n{body}\n" + (f"\n{notes}\n" if notes else "")


def circumstances(result: Result) -> list[str]:
    """Date, commit, command and machine of this run, as lines."""
    from vime.report.machine_description import describe_machine, matrix_product_rate

    machine: dict[str, Any] = describe_machine()
    rates = f"{machine['matmul_gflops_float32']:.0f} GFLOP/s in float32, {matrix_product_rate(dtype='bfloat16'):.0f} in bfloat16"
    return [
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {result.code}",
        f"command: `{command()}`",
        f"machine: {machine['processor']}, {machine['num_usable_cores']} cores, {machine['memory_gib']:.0f} GiB, "
        f"GPUs: {', '.join(machine['gpus']) or 'none'}",
        f"matrix products at the end of the run: {rates}",
        f"load average (1, 5, 15 minutes): {result.load_at_start} at the start, {_load()} at the end",
    ]


def command() -> str:
    """The command line of this process; absolute paths are reduced to their last part."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return shlex.join(["python", f"tools/{Path(sys.argv[0]).name}", *words])


def _cells(row: Row) -> list[str]:
    ratio = f"{row.ratio:.2f}"
    if row.interval is not None:
        ratio = f"{row.ratio:.3f} ({row.interval[0]:.3f} to {row.interval[1]:.3f})"
    return [row.case, _number(row.ours), _number(row.reference), ratio, row.unit]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _code() -> str:
    from vime.files.provenance import commit

    head, *status = commit().splitlines()
    changed = any(not line.startswith("??") for line in status)
    return f"commit {head[:10]}{' with uncommitted changes' if changed else ''}"


def _load() -> str:
    return ", ".join(f"{value:.1f}" for value in os.getloadavg())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
