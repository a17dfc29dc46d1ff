"""Which tests see the GPUs of a machine: those that ask for them, and no others."""

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


@pytest.mark.parametrize(
    ("words", "has_device", "said"),
    [
        ([], True, "it sees ''"),
        (["-m", "gpu"], True, "it sees 0,1"),
        (["-m", "gpu"], False, "PyTorch sees no CUDA device"),
    ],
)
def test_a_session_hides_or_shows_the_devices_or_refuses(words: list[str], has_device: bool, said: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(f"class cuda:\n    is_available = staticmethod(lambda: {has_device})\n")
    (tmp_path / "test_probe.py").write_text(PROBE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs a device\n")
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "0,1", "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "pytest", "-s", "-q", *words]
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert said in ended.stdout + ended.stderr and (ended.returncode == 0) is has_device
