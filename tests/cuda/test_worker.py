"""A vLLM worker's weight updates on a CUDA device that is not there: nothing is refused, left behind or waited for."""

from collections.abc import Callable

import pytest

from tests import chosen
from tests.chosen import LONG
from tests.cuda import device
from tests.cuda.worker import Report, Update, run_all

pytestmark = pytest.mark.skipif(device.missing() is not None, reason=device.missing() or "")
Reports = Callable[[Update], Report]

UPDATES = [
    Update(family="qwen2", is_quick=True),
    Update(family="qwen3_moe", size=2, rank=1, is_quick=True),
    Update(family="qwen2", size=2),
    Update(family="qwen2", size=2, rank=1),
    Update(family="qwen2", packed=False),
    Update(family="qwen2", transport="ipc", is_quick=True),
    Update(family="qwen2", transport="ipc", size=2, rank=1),
    Update(family="qwen3"),
    Update(family="qwen3", size=2, rank=1),
    Update(family="llama"),
    Update(family="llama", transport="ipc", size=2),
    Update(family="qwen3_moe"),
    Update(family="qwen3_moe", packed=False, size=2),
    Update(family="qwen3_moe", transport="ipc"),
    Update(family="qwen3_moe", transport="ipc", size=2, rank=1),
]
FAULTS = {
    "a_digest_that_waits_for_each_tensor": "update_weights waits",
    "a_comparison_that_waits_for_each_tensor": "weight_proof waits",
    "a_copy_that_waits_for_each_tensor": "a copy to the device waits",
    "weights_received_on_the_host": "broadcast of a tensor on cpu",
    "samples_kept_on_the_host": "(copy to the host)",
    "a_product_of_the_host": "cpu",
    "weights_in_other_memory": "is in other memory",
    "a_buffer_of_the_host": "forgotten is on the CPU",
}
"""Faults, and the problem that each must give."""
FAULTY = [Update(family="qwen3_moe", fault=fault) for fault in FAULTS]
OF_CHUNKS = ("vllm/distributed/weight_transfer/packed_tensor.py",)
"""The file in which vLLM waits for the buffer of a received packed chunk; a sync has one chunk for each GiB."""
WAITS = {"weight_report": 1, "weight_proof": 1}
"""Number of times that the host may wait in each call, for any number of layers and tensors."""


def problems(report: Report) -> list[str]:
    """Everything in a report that must not be."""
    if report.error is not None:
        return [report.error]
    found = [*report.problems, *(f"{name} is on the CPU" for name in report.on_the_cpu)]
    found += [f"{name} is in other memory" for name in report.moved]
    for waits, copies in zip(report.waits, report.blocking_copies, strict=True):
        found += [f"a copy to the device waits {count} times: {line}" for line, count in copies.items()]
        for call, lines in waits.items():
            ours = {line: count for line, count in lines.items() if not line.startswith(OF_CHUNKS)}
            if sum(ours.values()) > WAITS.get(call, 0):
                found.append(f"{call} waits: {ours}")
    for digest, proof in zip(report.digests, report.proofs, strict=True):
        if not digest["sent"] == digest["num_tensors"] == proof["num_read"]:
            found.append(f"{digest} is sent, {proof} is read")
        found += [f"wrong: {line}" for line in (*proof["wrong"], *proof["unread"])]
    return found


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest, checkpoints_by_depth: list[str], tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """A function that gives the report of an update; those of all chosen tests are driven by one process."""
    wanted = chosen.values(request.session, request.module, "update")
    found = dict(zip(wanted, run_all(wanted, checkpoints_by_depth, tmp_path_factory.mktemp("updates")), strict=True))
    return found.__getitem__


@pytest.mark.parametrize(
    "update", [pytest.param(update, id=update.name, marks=[] if update.is_quick else LONG) for update in UPDATES]
)
def test_a_worker_is_updated_on_the_device(update: Update, reports: Reports) -> None:
    report = reports(update)
    assert problems(report) == []
    assert len(report.proofs) == 2 and (report.num_broadcasts > 2) == (update.transport == "nccl")


@pytest.mark.parametrize(
    "update",
    [pytest.param(update, id=str(update.fault), marks=LONG if number >= 2 else []) for number, update in enumerate(FAULTY)],
)
def test_a_fault_of_a_worker_is_found(update: Update, reports: Reports) -> None:
    assert any(FAULTS[str(update.fault)] in problem for problem in problems(reports(update)))
