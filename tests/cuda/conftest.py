"""Fixtures of the tests on the device that is not there: small checkpoints of two depths, and drills of layouts."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.chosen import given_parameters
from tests.cuda.drill import Report, run_all
from tests.cuda.layouts import DEPTHS, FAULTY, Layout


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


@pytest.fixture(scope="session")
def drills(
    request: pytest.FixtureRequest, checkpoints_by_depth: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Report]:
    """A function that gives the report of a layout, with a fault if one is named.

    The drills of all chosen tests are driven by one process when the first is asked for: its imports take as long as several.
    """
    found: dict[tuple[str, str | None], Report] = {}

    def report(layout: Layout, *, fault: str | None = None) -> Report:
        if not found:
            chosen = {(drilled.name, fault): (drilled, fault) for drilled, fault in _chosen(request.session)}
            reports = run_all(list(chosen.values()), checkpoints_by_depth, tmp_path_factory.mktemp("drills"))
            found.update(zip(chosen, reports, strict=True))
        return found[layout.name, fault]

    return report


def _chosen(session: pytest.Session) -> Iterator[tuple[Layout, str | None]]:
    """Layouts and faults that the parameters of this session's tests name."""
    for item, parameters in given_parameters(session):
        if "layout" in parameters and isinstance(parameters["layout"], Layout):
            yield parameters["layout"], None
        elif "fault" in parameters and "drills" in item.fixturenames:
            yield FAULTY, str(parameters["fault"])
