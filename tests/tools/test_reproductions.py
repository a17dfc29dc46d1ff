"""The page of reproductions has every published row once, each with a command that composes or the reason why not."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from tools import reproductions
from tools.reproductions import (
    METHODS,
    RESULTS,
    Effort,
    build,
    evaluation_hours,
    markdown,
    needs_of,
    note_rehearsals,
    read_rehearsals,
    training_hours,
)
from vime.config import RunConfig
from vime.preflight.compose import compose_run
from vime.report.results_page import read_published

TABLE = yaml.safe_load((Path(reproductions.__file__).parent / "datasets.yaml").read_text())
EFFORTS = {name: Effort(**read_published(RESULTS / "papers" / f"{name}.yaml")["effort"]) for name in METHODS}


def composed(experiment: str, *words: str) -> RunConfig:
    return compose_run([f"+experiment={experiment}", *words]).config


@pytest.mark.slow
def test_the_page_is_what_the_program_writes_and_has_every_row_once():
    found = build()
    assert (RESULTS / "reproductions.md").read_text() == markdown(found, read_rehearsals())
    for method in METHODS:
        tables = read_published(RESULTS / "papers" / f"{method}.yaml")["tables"]
        published = [(table["title"], row["name"]) for table in tables for row in table["published"]]
        shown = [(row["table"], name) for row in found[method]["rows"] for name in row["names"]]
        assert sorted(shown) == sorted(published)
        assert all(row["by"] or row["state"].startswith("not planned: ") for row in found[method]["rows"])
        for one in found[method]["experiments"]:
            known = {need for need in one["data"] if not need.startswith("files of ") and need not in ("tau2-bench", "wiki-18")}
            assert one["data"] and known <= set(TABLE), one["name"]
            assert one["evaluation_hours"] > 0, one["name"]


def test_hours_follow_from_steps_items_runs_and_gpus():
    effort, published = EFFORTS["memagent"], {"ruler_hqa_50": 128}
    config = composed("memagent_paper_7b")
    twice = composed("memagent_paper_7b", "trainer.num_steps=800", "evaluation.num_runs=6")
    assert training_hours(twice, effort) == pytest.approx(2 * training_hours(config, effort))
    assert evaluation_hours(twice, effort, published) == pytest.approx(2 * evaluation_hours(config, effort, published))
    assert training_hours(config, replace(effort, reply_tokens=2 * 6300)) > training_hours(config, effort)
    alone = composed("memagent_released_7b")
    assert training_hours(alone, effort) == 0.0
    assert evaluation_hours(alone, effort, published) == pytest.approx(evaluation_hours(config, effort, published) / 2)


def test_the_data_of_an_experiment_are_named_as_they_are_prepared():
    assert needs_of(composed("agentflow_slime_agentic")) == ["dapo_math_17k", "agentflow_aime24"]
    needs = needs_of(composed("toolorchestra_paper_8b"))
    assert needs == ["toolorchestra_train", "hle_text", "frames", "tau2-bench", "toolorchestra_passages"]
    assert needs_of(composed("toolorchestra_preferences_8b"))[:3] == ["hle_text", "frames", "tau2-bench"]
    assert needs_of(composed("memagent_released_7b"))[-2:] == ["ruler_hqa_12800", "ruler_hqa_25600"]


def test_a_rehearsal_is_noted_once_and_shown_with_what_never_occurred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules["rehearsals"], "REHEARSALS", tmp_path / "rehearsals.json")
    outcome = {"experiment": "memagent_paper_7b", "counts": {"memory": {"kept": 3, "cut": 1}}, "absent": {"memory": ["empty"]}}
    for seconds in (80.4, 70.4):
        (tmp_path / "rehearsal.json").write_text(json.dumps({**outcome, "seconds": seconds, "peak_gib": 3.14}))
        (tmp_path / "commit.txt").write_text("0123456789abcdef\nand more")
        note_rehearsals([tmp_path])
    (noted,) = read_rehearsals()
    assert (noted["seconds"], noted["peak_gib"], noted["commit"], noted["num_occurred"]) == (70, 3.1, "0123456789ab", 2)
    assert "| memagent_paper_7b |  | 0123456789ab | 70 | 3.1 | 2 | memory: empty |" in markdown({}, [noted])
    with pytest.raises(FileNotFoundError):
        note_rehearsals([tmp_path / "nowhere"])


def test_a_row_is_rehearsed_if_each_of_its_experiments_was():
    table = {
        "title": "T",
        "others": "",
        "published": [{"name": "A", "source": "s"}, {"name": "B", "source": "s"}],
        "ours": [
            {"name": "a", "experiment": "one", "row": "trained", "like": ["A", "B"]},
            {"name": "b", "experiment": "two", "row": "trained", "like": ["B"]},
        ],
    }
    states = [
        [row["state"] for row in reproductions._rows(table, set(), rehearsed)] for rehearsed in (set(), {"one"}, {"one", "two"})
    ]
    assert states == [["planned", "planned"], ["rehearsed", "planned"], ["rehearsed", "rehearsed"]]
