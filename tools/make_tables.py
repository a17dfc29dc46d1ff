"""Writes results/METHOD.md and results/METHOD.json: the papers' tables with their sources, and our complete runs beside them.

    python tools/make_tables.py memagent outputs/memagent_paper_tiny/2026-01-01_10-00-00 outputs/sweeps/…
    python tools/make_tables.py memagent RUN… --out results    # into the pages of this repository, beside the runs that they have
    python tools/make_tables.py agentflow --out tables         # without runs: the published tables, ours not run

The page is written into the folder of the first run unless `--out` names another. A page that is there keeps its runs; one with
the same name, seed and command is replaced, so without runs it is written anew. A sweep's folder means all its runs. An
incomplete run is refused by name. The papers' data are results/papers/METHOD.yaml.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from merged_pages import file_name, identity, merged, told_apart, with_commands
from pooled_logs import figure_of, read_logs
from rich.console import Console
from score_figure import score_figure

from vime.files.jsonl import write_text
from vime.report.charts import number_text
from vime.report.results_page import NOT_RUN, build_page, read_our_run, read_published
from vime.report.run_directory import find_runs, read_config
from vime.report.summary import IncompleteRunError
from vime.surroundings import settle

RESULTS = Path(__file__).resolve().parent.parent / "results"
ABSENT = "–"
INTRODUCTION = """\
Percent. Ours are mean ± standard deviation over complete runs of the evaluation, failures included as 0, the single turn, the
untrained and the trained scaffold under one sampling; published numbers are as their sources give them. Written by `{command}`.
"""


def markdown(page: dict[str, Any], *, command: str) -> str:
    """The page as text."""
    lines = [f"# {page['title']}: results", INTRODUCTION.format(command=command)]
    if page["small"]:
        lines += [
            "## Tiny scale",
            "The whole method on the tiny model and its generated task; comparable with nothing below.",
            "",
            *([f"![Strict score by length]({page['method']}_scores.svg)", ""] if score_figure(page["small"]) is not None else []),
        ]
        lines += [line for table in page["small"] for line in _small_table(table, page["small"])]
    lines += [line for logs in page.get("logs", []) for line in _logs_table(logs, page["logs"])]
    if page["curves"]:
        lines += ["## Training reward", "Mean over the batch, at steps from the first to the last.", ""]
        for curve in page["curves"]:
            points = ", ".join(f"{step:g}: {reward:.3f}" for step, reward in curve["points"])
            lines += [f"- {_title(curve, page['curves'])}: {points}"]
        lines += [""]
    for table in page["tables"]:
        lines += [f"## {table['title']}", *([table["about"], ""] if table["about"] else [])]
        lines += _published_table(table)
    if page["runs"]:
        lines += ["## Where our rows come from", *_runs_table(page["runs"])]
    return "\n".join(lines).rstrip() + "\n"


def _published_table(table: dict[str, Any]) -> list[str]:
    lines = [_line("", "source", *table["columns"]), _line("---", "---", *["---:"] * len(table["columns"]))]
    lines += [_line(row["name"], row["source"], *[_number(value) for value in row["values"]]) for row in table["published"]]
    for row in table["ours"]:
        name = f"**vime: {row['name']}**"
        if row.get("state") != NOT_RUN:
            lines.append(_line(name, f"seed {row['seed']}", *[_spread(cell) for cell in row["values"]]))
    planned = [f"- {row['name']}, {NOT_RUN}: `{row['command']}`" for row in table["ours"] if row.get("state") == NOT_RUN]
    return [*lines, "", *(["Planned:", "", *planned, ""] if planned else [])]


def _title(entry: dict[str, Any], entries: list[dict[str, Any]]) -> str:
    """Name and seed of a run, and the difference to other runs with the same ones."""
    apart = told_apart(entry, entries)
    return f"{entry['run']}, seed {entry['seed']}{f' ({apart})' if apart else ''}"


def _small_table(table: dict[str, Any], tables: list[dict[str, Any]]) -> list[str]:
    first = next(cell for row in table["rows"] for cell in row["strict"] if cell)
    lines = [f"### {_title(table, tables)}", ""]
    lines += [
        _line(f"strict (lenient), {first['num_runs']} runs of {first['num_items']} items", *table["columns"], "failed items")
    ]
    lines += [_line("---", *["---:"] * (len(table["columns"]) + 1))]
    for row in table["rows"]:
        cells = [_with_lenient(strict, lenient) for strict, lenient in zip(row["strict"], row["lenient"], strict=True)]
        lines.append(_line(row["name"], *cells, str(row["num_failed"])))
    return [*lines, ""]


def _logs_table(logs: dict[str, Any], entries: list[dict[str, Any]]) -> list[str]:
    lines = [f"### {_title(logs, entries)}: {logs['title']}", ""]
    lines += [_line("", *logs["columns"]), _line("---", *["---:"] * len(logs["columns"]))]
    for row in logs["rows"]:
        lines.append(_line(row["name"], *[ABSENT if value is None else number_text(value) for value in row["values"]]))
    return [*lines, "", *([f"![{logs['title']}]({logs['file']})", ""] if logs["file"] else [])]


def _write_logs(
    runs: dict[Path, str], about: dict[str, Any], method: str, out: Path, earlier: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The `eval_log` of each run by its folder and command, with its figure, if it has one, in a file beside the page.

    `earlier` are those that the page had; they keep their files.
    """
    read = [(command, read_logs(path, about)) for path, command in runs.items()]
    found = [{**logs, "command": command} for command, logs in read if logs is not None]
    for logs in found:
        file = file_name(method, logs, [*found, *(old for old in earlier if identity(old) != identity(logs))])
        file = file if logs["figure"] else None
        if file is not None:
            write_text(out / file, figure_of(logs, about))
        logs |= {"title": about["title"], "file": file}
    return found


def _runs_table(runs: list[dict[str, Any]]) -> list[str]:
    names = ("run", "seed", "commit", "date", "hardware", "checkpoint", "steps", "minutes", "sampling", "command")
    lines = [_line(*names), _line(*["---"] * len(names))]
    for run in runs:
        cells = [ABSENT if run[name] in (None, "") else str(run[name]) for name in names[:-1]]
        lines.append(_line(*cells, f"`{run['command']}`"))
    return [*lines, ""]


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value}"


def _spread(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return ABSENT
    if "words" in cell:
        return f"{cell['mean']:.1f} ({cell['words']})"
    return f"{cell['mean']:.1f} ± {cell['sd']:.1f}" if cell["num_runs"] > 1 else f"{cell['mean']:.1f} (one run)"


def _with_lenient(strict: dict[str, Any] | None, lenient: dict[str, Any] | None) -> str:
    return f"{_spread(strict)} ({lenient['mean']:.1f})" if strict and lenient else NOT_RUN


def main(arguments: list[str] | None = None, console: Console | None = None) -> None:
    """Writes the page of the command line's method."""
    settle()
    known = sorted(path.stem for path in (RESULTS / "papers").glob("*.yaml"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=known)
    parser.add_argument("runs", nargs="*", type=Path, help="run folders, or sweep folders")
    parser.add_argument("--out", type=Path, help="folder of the page; by default that of the first run")
    given = parser.parse_args(arguments)
    try:
        paths = find_runs(given.runs)
        runs = [read_our_run(path) for path in paths]
    except (FileNotFoundError, IncompleteRunError) as error:
        parser.error(str(error))
    if (out := given.out or next(iter(given.runs), None)) is None:
        parser.error("say where the page is to be written, with --out FOLDER, or give runs")
    if rehearsed := [str(path) for path in paths if read_config(path).get("rehearse")]:
        parser.error(f"{', '.join(rehearsed)}: a rehearsal of a random model, whose numbers belong in no table")
    strangers = [run.name for run in runs if run.method != given.method]
    if strangers:
        parser.error(f"{', '.join(strangers)}: not of {given.method}")
    published = read_published(RESULTS / "papers" / f"{given.method}.yaml")
    page = build_page(given.method, published, runs)
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{given.method}.json"
    earlier = with_commands(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None
    if "logs" in published:
        commands = {path: run.about["command"] for path, run in zip(paths, runs, strict=True)}
        page["logs"] = _write_logs(commands, published["logs"], given.method, out, (earlier or {}).get("logs", []))
    page = merged(page, earlier)
    if (figure := score_figure(page["small"])) is not None:
        write_text(out / f"{given.method}_scores.svg", figure)
    write_text(file, json.dumps(page, indent=1, ensure_ascii=False) + "\n")
    write_text(out / f"{given.method}.md", markdown(page, command=f"python tools/make_tables.py {given.method} RUN…"))
    (console or Console(highlight=False)).print(f"{out / given.method}.md, {len(page['runs'])} runs of ours", soft_wrap=True)


if __name__ == "__main__":
    main()
