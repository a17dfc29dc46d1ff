"""The trainer's calls on a CUDA device that is not there: under every layout nothing is refused, left behind or waited for."""

from collections.abc import Callable

import pytest

from tests.cuda import device
from tests.cuda.drill import Report
from tests.cuda.layouts import DEPTHS, FAULTY, LAYOUTS, Layout

pytestmark = pytest.mark.skipif(device.missing() is not None, reason=device.missing() or "")
Drills = Callable[..., Report]
OF_EXPERTS = ("megatron/core/transformer/moe/",)
"""Megatron's dispatcher of experts asks once a layer for the number of tokens of each, and selects them by a mask."""


def once_a_layer(report: Report) -> set[str]:
    """Lines at which the host waits more often in the deeper of the two models."""
    shallow, deep = report.synchronizations
    return {line for line, count in deep.items() if count > shallow.get(line, 0)}


def problems(report: Report) -> list[str]:
    """Everything in a report that must not be."""
    if report.error is not None:
        return [report.error]
    found = [*report.problems, *(f"{name} is on the CPU" for name in report.on_the_cpu)]
    found += [f"{line} waits in every layer" for line in once_a_layer(report) if not line.startswith(OF_EXPERTS)]
    if report.optimizer_extra_bytes > report.moment_bytes / 2:  # clipping takes the largest gradient once more
        found.append(
            f"an optimizer step takes {report.optimizer_extra_bytes} bytes, all second moments are {report.moment_bytes}"
        )
    if report.offloaded_bytes < report.owned_bytes:
        found.append(f"{report.offloaded_bytes} of {report.owned_bytes} bytes leave the device")
    if report.onloaded_bytes:
        found.append(f"{report.onloaded_bytes} bytes more are there after leaving and returning")
    return found


@pytest.mark.parametrize(
    "layout",
    [pytest.param(layout, id=layout.name, marks=[] if layout.quick else [pytest.mark.slow]) for layout in LAYOUTS],
)
def test_a_rank_does_all_its_work_on_the_device(layout: Layout, drills: Drills) -> None:
    report = drills(layout)
    assert problems(report) == []
    assert report.num_exported and report.num_saved and len(report.synchronizations) == len(DEPTHS)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("a_cpu_tensor_in_a_collective", "all_reduce of a tensor on cpu"),
        ("a_transposed_tensor_in_a_collective", "not contiguous"),
        ("a_value_read_in_every_layer", "waits in every layer"),
        ("a_copy_to_the_host_in_every_layer", "(copy to the host) waits in every layer"),
        ("a_forgotten_move", "cpu"),
        ("a_buffer_left_behind", "forgotten is on the CPU"),
        ("an_optimizer_that_is_not_fused", "an optimizer step takes"),
        ("weights_that_stay_in_memory", "bytes leave the device"),
    ],
)
def test_a_fault_is_found(fault: str, found: str, drills: Drills) -> None:
    assert any(found in problem for problem in problems(drills(FAULTY, fault=fault)))
