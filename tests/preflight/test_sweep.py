"""A sweep runs every point in a process and folder of its own; a point that cannot run does not end it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from vime.errors import ConfigError
from vime.preflight.sweep import expand

METHOD = ["+method=memagent", "mode=plan"]


def program(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The program as people start it."""
    command = [sys.executable, "-m", "vime.run", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_every_combination_is_a_point_in_the_order_of_the_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    sweep = expand([*METHOD, "trainer.lr=1e-3,2e-3", "seed=0,1"])
    assert [point[2:] for point in sweep.points] == [
        ["trainer.lr=0.001", "seed=0"],
        ["trainer.lr=0.001", "seed=1"],
        ["trainer.lr=0.002", "seed=0"],
        ["trainer.lr=0.002", "seed=1"],
    ]
    assert sweep.folder.parent == tmp_path / "outputs" / "memagent_tiny" and sweep.folder.name.startswith("sweep_")
    assert not (tmp_path / "outputs").exists()


def test_the_command_line_wins_over_the_values_of_a_sweep_file():
    points = expand([*METHOD, "+sweep=lr", "trainer.lr=7e-4,8e-4"]).points
    assert [point[-1] for point in points] == ["trainer.lr=0.0007", "trainer.lr=0.0008"]


def test_a_chosen_folder_holds_all_points(tmp_path: Path):
    sweep = expand([*METHOD, "seed=0,1", f"output_dir={tmp_path / 'mine'}"])
    assert sweep.folder == tmp_path / "mine"
    assert not any("output_dir" in word for point in sweep.points for word in point)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (
            "algorithm=glob([g*,rloo])",
            ["algorithm=gigpo", "algorithm=gmpo", "algorithm=grpo", "algorithm=gspo", "algorithm=rloo"],
        ),
        ("algorithm=glob(*, exclude=[*o*, *p*, *_*])", ["algorithm=maxrl", "algorithm=rae", "algorithm=sft"]),
        ("model=glob(qwen2.5-7*)", ["model=qwen2.5-7b"]),
        ("+experiment=glob(memagent_single_turn_*)", [f"+experiment=memagent_single_turn_{size}b" for size in (14, 32, 7)]),
    ],
)
def test_a_pattern_stands_for_the_options_that_it_matches(word: str, expected: list[str]):
    method = [] if "experiment" in word else ["+method=memagent"]
    assert [point[-2] for point in expand([*method, word, "seed=0,1"]).points][::2] == expected


@pytest.mark.parametrize(
    ("word", "remedy"), [("algorithm=glob(zz*)", "none of its options: cispo"), ("trainer.lr=glob(*)", "is no group of options")]
)
def test_a_pattern_that_matches_no_option_is_refused(word: str, remedy: str):
    with pytest.raises(ConfigError, match=remedy):
        expand([*METHOD, word])


def test_words_that_cannot_be_read_are_a_problem():
    with pytest.raises(ConfigError):
        expand([*METHOD, "seed"])


@pytest.mark.slow
def test_a_bad_point_is_reported_and_the_others_run(tmp_path: Path):
    shown = program(*METHOD, "trainer.lr=1e-3,fast,2e-3", "--multirun", folder=tmp_path)
    assert shown.returncode == 2 and "Traceback" not in shown.stderr
    assert shown.stdout.count("Nothing was started. Remove mode=plan") == 2
    assert "trainer.lr=fast" in shown.stderr and "not started" in shown.stdout
    folders = re.findall(r"sweep_[\d_-]+/(\d)", shown.stdout)
    assert set(folders) == {"0", "2"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_sweep_file_needs_no_flag_and_its_points_are_single_runs(tmp_path: Path):
    shown = program(*METHOD, "+sweep=lr", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("Nothing was started. Remove mode=plan") == 3
    assert re.findall(r"\[(\d)/(\d)\]", shown.stderr) == [("1", "3"), ("2", "3"), ("3", "3")]
