"""The record of rehearsals, results/rehearsals.json: the experiment, the time and the commit of each."""

import json
from pathlib import Path
from typing import Any

from vime.files.jsonl import write_text
from vime.report.summary import read_summary

REHEARSALS = Path(__file__).resolve().parent.parent / "results" / "rehearsals.json"


def read_rehearsals() -> list[dict[str, Any]]:
    """The rehearsals that were noted, by experiment; none without a file."""
    return json.loads(REHEARSALS.read_text(encoding="utf-8")) if REHEARSALS.exists() else []


def note_rehearsals(runs: list[Path]) -> None:
    """Copies the outcomes of rehearsals from their folders; one of the same experiment is replaced.

    Raises `FileNotFoundError` for a folder without `rehearsal.json`, which only a complete rehearsal has.
    """
    known = {one["experiment"]: one for one in read_rehearsals()}
    for run in runs:
        outcome = json.loads((run / "rehearsal.json").read_text(encoding="utf-8"))
        changed = (
            " with changes" if (run / "code.diff").exists() and (run / "code.diff").read_text(encoding="utf-8").strip() else ""
        )
        known[outcome["experiment"]] = {
            "experiment": outcome["experiment"],
            "date": (read_summary(run) or {}).get("finished", "")[:10],
            "commit": (run / "commit.txt").read_text(encoding="utf-8").split("\n")[0][:12] + changed,
            "seconds": round(outcome["seconds"]),
            "peak_gib": round(outcome["peak_gib"], 1),
            "num_occurred": sum(len(names) for names in outcome["counts"].values()),
            "absent": outcome["absent"],
        }
    noted = [known[name] for name in sorted(known)]
    write_text(REHEARSALS, json.dumps(noted, indent=1, ensure_ascii=False) + "\n")


def rehearsal_lines(rehearsals: list[dict[str, Any]]) -> list[str]:
    """The table of the rehearsals."""
    if not rehearsals:
        return []
    lines = [
        "## Rehearsed",
        "",
        "| experiment | date | commit | seconds | GiB at the peak | different things that occurred | never occurred |",
    ]
    lines += ["| --- | --- | --- | ---: | ---: | ---: | --- |"]
    for one in rehearsals:
        absent = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in one["absent"].items()) or "–"
        cells = [one["experiment"], one["date"], one["commit"], one["seconds"], one["peak_gib"], one["num_occurred"], absent]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines
