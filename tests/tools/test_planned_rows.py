"""Every row of ours in a paper's table is made by the experiment that it names: its columns, runs, sampling and splits."""

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from make_tables import RESULTS

from vime.config import RunConfig
from vime.evaluation.conditions import rows_of
from vime.preflight.compose import compose_run
from vime.report.columns import names_of
from vime.report.results_page import build_page, read_published

METHODS = sorted(path.stem for path in (RESULTS / "papers").glob("*.yaml"))
OF_PAPERS = ("agentflow", "memagent", "toolorchestra")


def planned() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for method in METHODS:
        for table in read_published(RESULTS / "papers" / f"{method}.yaml")["tables"]:
            yield from ((method, table, row) for row in table["ours"])


PLANNED = list(planned())
IDS = [f"{method}, {table['title']}, {row['name']}" for method, table, row in PLANNED]


@cache
def config_of(experiment: str) -> RunConfig:
    return compose_run([f"+experiment={experiment}"]).config


@pytest.mark.slow
@pytest.mark.parametrize(("method", "table", "row"), PLANNED, ids=IDS)
def test_a_planned_row_is_made_by_its_experiment(method: str, table: dict[str, Any], row: dict[str, Any]):
    config = config_of(row["experiment"])
    assert (config.method.name, config.name) == (method, row["experiment"])
    assert row["row"] in rows_of(config), f"{row['experiment']} measures {rows_of(config)}"
    sets = {dataset.name: dataset for dataset in config.data.evaluation}
    wanted = {name for column in table["datasets"] for name in names_of(column)}
    assert wanted - set(sets) == set(row.get("without", [])), "a set that is not evaluated must be named under `without`"
    protocol = {**table.get("protocol", {}), **row.get("protocol", {})}
    assert {name: getattr(config.evaluation, name) for name in protocol} == protocol
    for name, split in table.get("splits", {}).items():
        arguments = sets[name].generator_args
        assert (arguments.get("source", {}).get("generator_args") or arguments)["split"] == split
    highest = [column["pass_every"] for column in table["datasets"] if isinstance(column, dict) and "pass_every" in column]
    assert set(highest) <= set(config.evaluation.pass_at) and all(k <= config.evaluation.num_runs for k in highest)


@pytest.mark.parametrize("method", OF_PAPERS)
def test_a_planned_row_says_its_protocol_and_which_published_row_it_stands_for(method: str):
    for table in read_published(RESULTS / "papers" / f"{method}.yaml")["tables"]:
        names = {row["name"] for row in table["published"]}
        assert bool(table["ours"]) == bool(table["datasets"]) == bool(table.get("protocol")), table["title"]
        for row in table["ours"]:
            assert set(row.get("like", [])) <= names, row["name"]
        left = names - {name for row in table["ours"] for name in row.get("like", [])}
        assert bool(left) == bool(table.get("others")), f"{table['title']}: `others` says why {left} have no row of ours"


@pytest.mark.parametrize("method", METHODS)
def test_the_page_of_a_method_has_the_tables_of_its_data(method: str):
    import json

    path = RESULTS / "papers" / f"{method}.yaml"
    page = json.loads((RESULTS / f"{method}.json").read_text())
    ours = json.loads(json.dumps(build_page(method, read_published(path), [])["tables"]))
    without_runs = [[row for row in table["ours"] if row.get("state") == "not run"] for table in page["tables"]]
    assert [{**table, "ours": None} for table in page["tables"]] == [{**table, "ours": None} for table in ours]
    assert all(row in table["ours"] for table, rows in zip(ours, without_runs, strict=True) for row in rows)
