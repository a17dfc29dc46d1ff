"""Sweeps by Hydra's launchers: joblib and submitit's local executor run points side by side; all others are refused."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import chosen
from vime.errors import ConfigError
from vime.preflight.compose import compose_run
from vime.preflight.launchers import PACKAGES
from vime.preflight.sweep import expand

METHOD = ["+method=memagent", "mode=plan"]


def is_there(launcher: str) -> bool:
    """True if the package of a launcher is installed."""
    name = f"hydra_plugins.{PACKAGES[launcher].replace('-', '_')}"
    return importlib.util.find_spec("hydra_plugins") is not None and importlib.util.find_spec(name) is not None


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("hydra/launcher=ray", "available: basic, joblib, submitit_local"),
        ("hydra/launcher=submitit_slurm", "scripts/slurm.sh"),
        ("hydra/sweeper=optuna", "every combination of the comma-separated values"),
    ],
)
def test_another_launcher_or_sweeper_is_refused_with_and_without_a_sweep(word: str, remedy: str):
    for attempt in (lambda: expand([*METHOD, "seed=0,1", word]), lambda: compose_run([*METHOD, word])):
        with pytest.raises(ConfigError) as raised:
            attempt()
        (problem,) = raised.value.problems
        assert f"{problem.key}={problem.value}" == word and remedy in problem.remedy


@pytest.mark.parametrize("launcher", PACKAGES)
def test_a_launcher_that_is_not_installed_says_what_to_install(launcher: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("vime.preflight.launchers.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=f"pip install {PACKAGES[launcher]}"):
        expand([*METHOD, "seed=0,1", f"hydra/launcher={launcher}"])


@pytest.mark.parametrize("launcher", chosen.parameters(PACKAGES, {"submitit_local"}))
@pytest.mark.slow
def test_a_launcher_runs_every_point_and_a_bad_one_does_not_end_the_others(launcher: str, tmp_path: Path):
    if not is_there(launcher):
        pytest.skip(f"needs {PACKAGES[launcher]}")
    words = [*METHOD, "seed=0,fast,1", f"hydra/launcher={launcher}", "output_dir='a,b'", "--multirun"]
    words += ["hydra.launcher.n_jobs=2"] if launcher == "joblib" else []
    done = subprocess.run([sys.executable, "-m", "vime.run", *words], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    rows = [line.split("│")[1:4] for line in done.stdout.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row] for row in rows[-3:]] == [
        ["0", "seed=0", "done"],
        ["1", "seed=fast", "not started: see its output"],
        ["2", "seed=1", "done"],
    ]
    logs = "".join(file.read_text() for file in tmp_path.glob("a,b/.submitit/*/*_log.out")) + done.stdout
    assert sorted(re.findall(r"a,b/(\d)", logs)) == ["0", "2"]
