"""What the tests on the device that is not there share: small checkpoints of two depths, and drills of layouts."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.cuda.drill import Report, run_all
from tests.cuda.layouts import DEPTHS, Layout


@pytest.fixture(scope="session")
def checkpoints_by_depth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """For each depth a folder with a small random model of every family."""
    import torch

    tools = str(Path(__file__).parents[2] / "tools")
    with patch.object(sys, "path", [tools, *sys.path]):
        from gpu_checks import setting
    folders = []
    for depth in DEPTHS:
        folder = tmp_path_factory.mktemp(f"layers{depth}")
        with patch.dict(setting.TINY, num_hidden_layers=depth):
            made = setting.Setting(device=torch.device("cpu"), folder=folder, tiny=True)
            for family in setting.FAMILIES:
                made.small_model(family)
        folders.append(str(folder))
    yield folders


@pytest.fixture
def drill(checkpoints_by_depth: list[str], tmp_path: Path) -> Callable[..., Report]:
    """A function that drives one layout, with a fault if one is named."""

    def run(layout: Layout, *, fault: str | None = None) -> Report:
        return run_all([layout], checkpoints_by_depth, tmp_path, fault=fault)[layout.name]

    return run
