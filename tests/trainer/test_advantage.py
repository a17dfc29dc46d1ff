"""Whitening over two data-parallel ranks is whitening over all their samples."""

import json
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from vime.types import TrainSample


def test_two_ranks_whiten_as_one(
    make_samples: Callable[..., list[TrainSample]], run_ranks: Callable[..., None], tmp_path: Path, world: None
) -> None:
    from vime.trainer.parallel import free_port

    job = tmp_path / "job.json"
    job.write_text(json.dumps({"folder": str(tmp_path), "port": free_port("127.0.0.1")}))
    run_ranks("two_shards.py", job)
    results = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert all(result["advantages"] for result in results) and results[0]["metrics"] == results[1]["metrics"]
    found = {int(index): values for result in results for index, values in result["advantages"].items()}
    before = {}
    for index, sample in enumerate(make_samples(11)):
        kl = [(x + 5.0) ** 2 / 2 for x, keep in zip(sample.columns["logprob"], sample.loss_mask) if keep]
        before[index] = [sample.columns["advantage"] - 0.5 * sum(kl[start:]) for start in range(len(kl))]
    every = [value for values in before.values() for value in values]
    mean, deviation = statistics.fmean(every), statistics.pstdev(every)
    assert results[0]["metrics"]["train/advantage_deviation"] == pytest.approx(deviation, rel=1e-5)
    assert found.keys() == before.keys()
    for index, values in before.items():
        assert found[index] == pytest.approx([(value - mean) / deviation for value in values], abs=1e-5)
