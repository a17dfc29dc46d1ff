"""A page keeps the runs that it has; a run of the same name, seed and command is replaced."""

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from merged_pages import file_name, merged, told_apart, with_commands


def run(seed: int = 0, *words: str, mean: float = 1.0) -> dict[str, Any]:
    """A page with one run."""
    command = " ".join(["python -m vime.run +experiment=memagent_tiny", *words])
    entry = {"run": "memagent_tiny", "seed": seed, "command": command}
    table = {"title": "T", "ours": [{"name": "ours", "command": command, "seed": seed, "values": [mean]}]}
    return {"method": "memagent", "tables": [table], "small": [{**entry, "mean": mean}], "runs": [entry], "curves": []}


def not_run() -> dict[str, Any]:
    return {
        **run(),
        "small": [],
        "runs": [],
        "tables": [{"title": "T", "ours": [{"name": "ours", "state": "not run", "command": "c"}]}],
    }


def test_runs_of_other_seeds_and_words_stay_and_the_same_run_is_replaced() -> None:
    page = merged(run(0, mean=2.0), merged(run(1), merged(run(0, "trainer.lr=3e-4"), run(0))))
    assert [(entry["seed"], entry["mean"]) for entry in page["small"]] == [(0, 1.0), (1, 1.0), (0, 2.0)]
    assert [row["values"] for row in page["tables"][0]["ours"]] == [[1.0], [1.0], [2.0]]
    assert len(merged(run(0, "resume=true"), run(0))["runs"]) == 1, "a run that was resumed is the same run"


def test_a_page_without_runs_keeps_what_was_measured_and_says_what_was_not() -> None:
    page = merged(not_run(), run(0))
    assert page["small"] and [row.get("values") for row in page["tables"][0]["ours"]] == [[1.0]]
    assert merged(not_run(), None)["tables"][0]["ours"][0]["state"] == "not run"


def test_runs_of_one_name_and_seed_have_headings_and_figures_of_their_own() -> None:
    entries = merged(run(0, "trainer.lr=3e-4"), merged(run(0), run(1)))["small"]
    assert [told_apart(entry, entries) for entry in entries] == ["", "as it is", "trainer.lr=3e-4"]
    names = {file_name("memagent", entry, entries) for entry in entries}
    assert names == {"memagent_tiny_seed1.svg", "memagent_tiny_seed0_as_it_is.svg", "memagent_tiny_seed0_trainer.lr=3e-4.svg"}


def test_entries_of_older_pages_get_the_command_of_their_run() -> None:
    page = run(0, "trainer.lr=3e-4")
    del page["small"][0]["command"]
    assert with_commands(page)["small"][0]["command"] == page["runs"][0]["command"]
