"""Options from folders outside the repository: named on the command line, marked in the current folder, or never read."""

from pathlib import Path

import pytest

from vime.errors import ConfigError, Problem
from vime.preflight.compose import CONF, compose_run
from vime.preflight.search_path import MARKER, option_folders, search_path_word, with_search_path
from vime.preflight.sweep import expand

METHOD = "# @package _global_\nmethod:\n  name: mine\n  generate: mine.py:generate\n"
EXPERIMENT = "# @package _global_\ndefaults:\n  - /method: mine\n  - override /model: wide\nname: mine_trial\n"
DATA = "# @package _global_\ndata:\n  train:\n    path: long.jsonl\n"
SWEEP = "# @package _global_\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n      seed: 1,2,3\n"


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's `conf/` without a marker, in the current folder."""
    monkeypatch.chdir(tmp_path)
    model = (CONF / "model" / "tiny.yaml").read_text().replace("name: tiny", "name: wide")
    files = {"method/mine": METHOD, "experiment/trial": EXPERIMENT, "model/wide": model, "sweep/seeds": SWEEP, "data/long": DATA}
    for option, text in files.items():
        file = tmp_path / "conf" / f"{option}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "conf"


def problem(*words: str) -> Problem:
    """The only thing that is wrong with a command line."""
    with pytest.raises(ConfigError) as raised:
        compose_run(list(words))
    assert len(raised.value.problems) == 1, raised.value.problems
    return raised.value.problems[0]


def test_a_folder_without_the_marker_is_not_read_and_the_error_says_why(conf: Path):
    found = problem("+method=mine")
    assert found.key == "method" and f"{conf} is not read, because it has no file {MARKER}" in found.remedy


@pytest.mark.parametrize("how", ["marker", "relative", "absolute", "package"])
def test_options_of_a_users_folder_compose(how: str, conf: Path, monkeypatch: pytest.MonkeyPatch):
    words = {"relative": ["hydra.searchpath=[conf]"], "absolute": [search_path_word([conf])]}.get(how, [])
    if how == "marker":
        (conf / MARKER).touch()
    if how == "package":
        conf.rename(conf.with_name("somewhere_else"))
        (conf.with_name("somewhere_else") / "__init__.py").touch()
        monkeypatch.syspath_prepend(str(conf.parent))
        words = ["hydra.searchpath=[pkg://somewhere_else]"]
    config = compose_run(["+experiment=trial", "+data=long", *words]).config
    assert (config.method.name, config.model.name, config.name) == ("mine", "wide", "mine_trial")
    assert config.data.train.path == "long.jsonl"


def test_a_users_options_are_among_those_that_there_are(conf: Path):
    found = problem("+method=mime", "hydra.searchpath=[conf]")
    assert (
        "did you mean +method=mine? Available: agentflow, coding, environment, harbor, memagent, mine, multi_agent, retool, "
        "search_r1, toolorchestra" in found.remedy
    )


def test_a_folder_with_signs_of_the_shell_is_found(conf: Path):
    strange = conf.rename(conf.with_name("it's [a], folder=mine"))
    config = compose_run(["+experiment=trial", search_path_word([strange])]).config
    assert config.name == "mine_trial"


def test_all_words_that_name_folders_count_and_each_folder_once(conf: Path, tmp_path: Path):
    (conf / MARKER).touch()
    (tmp_path / "other").mkdir()
    words = ["hydra.searchpath=[conf,other]", f"hydra.searchpath=['file://{tmp_path}/other']", f"hydra.searchpath=[{CONF}]"]
    assert option_folders(words) == [conf, tmp_path / "other"]
    assert sum(word.startswith("hydra.searchpath") for word in with_search_path([*words, "seed=1"])) == 1


@pytest.mark.parametrize("entry", ["nowhere", "pkg://no_such_package.conf", "http://127.0.0.1/conf", "file:///no/such/folder"])
def test_a_folder_or_package_that_is_not_there_is_named(entry: str):
    found = problem(f"hydra.searchpath=[{entry}]")
    assert (found.key, found.value) == ("hydra.searchpath", entry) and "no such folder or package" in found.remedy


def test_a_search_path_that_is_no_list_is_refused():
    assert "not a list" in problem("hydra.searchpath=conf").remedy


@pytest.mark.parametrize("option", ["method/memagent", "config", "algorithm/paper/memagent"])
def test_an_option_that_exists_in_ours_is_an_error_naming_both_files(option: str, conf: Path):
    (conf / MARKER).touch()
    file = conf / f"{option}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{}\n")
    found = problem("seed=1")
    assert str(file) in found.remedy and str(CONF / f"{option}.yaml") in found.remedy


def test_an_option_of_two_folders_of_the_user_is_an_error(conf: Path, tmp_path: Path):
    (tmp_path / "other" / "method").mkdir(parents=True)
    (tmp_path / "other" / "method" / "mine.yaml").write_text(METHOD)
    found = problem("hydra.searchpath=[conf,other]")
    assert (found.key, found.value) == ("method", "mine")


def test_a_sweep_of_the_user_is_found_by_the_sweep_and_by_its_points(conf: Path):
    words = ["+method=mine", "+sweep=seeds", "hydra.searchpath=[conf]"]
    points = expand(words).points
    assert [point[-1] for point in points] == ["seed=1", "seed=2", "seed=3"]
    assert compose_run([*points[2], "hydra.mode=RUN", "hydra.sweeper.params=null"]).config.seed == 3


def test_a_run_of_the_user_is_resumed(conf: Path, tmp_path: Path):
    run = tmp_path / "outputs" / "mine_trial" / "2025-01-01_00-00-00"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("mode: train\n")
    assert compose_run(["+experiment=trial", "hydra.searchpath=[conf]", "resume=true"]).config.output_dir == str(run)
