"""The trainer's calls on a CUDA device that is not there: under every layout nothing is refused, left behind or waited for."""

from collections.abc import Callable

import pytest

from tests.chosen import LONG, parameters
from tests.cuda import device
from tests.cuda.drill import Report
from tests.cuda.layouts import DEPTHS, FAULTY, LAYOUTS, Layout

pytestmark = pytest.mark.skipif(device.missing() is not None, reason=device.missing() or "")
Drills = Callable[..., Report]
OF_EXPERTS = ("megatron/core/transformer/moe/",)
"""Megatron's dispatcher of experts asks once a layer for the number of tokens of each, and selects them by a mask."""

OF_A_ROW = tuple(
    f"vime/{name}.py" for name in ("algorithm/loss", "algorithm/value", "trainer/logprob", "trainer/head", "trainer/value_head")
)
"""Files whose code runs once for each row and must not wait: the next row would begin late."""
OURS = "vime/"
NORM_BYTES = 4
"""The norm of all gradients, in float32."""


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
    found += [f"{line} waits in every row" for line in report.synchronizations[0] if line.startswith(OF_A_ROW)]
    found += [f"{line}: a copy to the device waits" for line in report.blocking_copies if line.startswith(OURS)]
    if report.optimizer_extra_bytes > report.largest_bytes + NORM_BYTES:  # one that is not fused copies all second moments
        largest = f"the largest gradient has {report.largest_bytes}"
        found.append(f"an optimizer step takes {report.optimizer_extra_bytes} bytes, {largest}")
    if report.offloaded_bytes < report.owned_bytes:
        found.append(f"{report.offloaded_bytes} of {report.owned_bytes} bytes leave the device")
    if report.onloaded_bytes:
        found.append(f"{report.onloaded_bytes} bytes more are there after leaving and returning")
    return found


@pytest.mark.parametrize(
    "layout",
    [pytest.param(layout, id=layout.name, marks=[] if layout.is_quick else LONG) for layout in LAYOUTS],
)
def test_a_rank_does_all_its_work_on_the_device(layout: Layout, drills: Drills) -> None:
    report = drills(layout)
    assert problems(report) == []
    assert report.num_exported and report.num_saved and len(report.synchronizations) == len(DEPTHS)


FAULTS = [
    ("a_cpu_tensor_in_a_collective", "all_reduce of a tensor on cpu"),
    ("a_value_read_in_every_layer", "waits in every layer"),
    ("a_transposed_tensor_in_a_collective", "not contiguous"),
    ("a_copy_to_the_host_in_every_layer", "(copy to the host) waits in every layer"),
    ("a_value_read_in_every_row", "waits in every row"),
    ("a_row_that_is_copied_as_it_is", "a copy to the device waits"),
    ("a_forgotten_move", "cpu"),
    ("a_buffer_left_behind", "forgotten is on the CPU"),
    ("an_optimizer_that_is_not_fused", "an optimizer step takes"),
    ("weights_that_stay_in_memory", "bytes leave the device"),
]
"""Faults, and the problem that each must give; only the long tests make those after the first two."""


@pytest.mark.parametrize(("fault", "found"), parameters(FAULTS, FAULTS[2:]))
def test_a_fault_is_found(fault: str, found: str, drills: Drills) -> None:
    assert any(found in problem for problem in problems(drills(FAULTY, fault=fault)))
