"""The two data-parallel ranks of `test_advantage.py`: advantages of their shares of the samples, without a model.

python two_shards.py JOB.json
"""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from vime.trainer import cpu_shim

cpu_shim.install()

import torch  # noqa: E402

from tests.trainer.forked import fork_ranks  # noqa: E402
from vime.config import AlgorithmConfig, KLEstimator, KLPlace, RunConfig, TrainerConfig  # noqa: E402
from vime.trainer import parallel  # noqa: E402
from vime.trainer.advantage import finish_advantages  # noqa: E402
from vime.trainer.micro_batch import MicroBatches  # noqa: E402
from vime.trainer.objective import KnownLogprobs  # noqa: E402
from vime.trainer.shard import PackedUpdate  # noqa: E402
from vime.types import TrainSample  # noqa: E402


def load_samples() -> list[TrainSample]:
    """The samples of `conftest.py`, which is no importable module."""
    spec = importlib.util.spec_from_file_location("trainer_fixtures", Path(__file__).with_name("conftest.py"))
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build_samples(11)


def main(rank: int, job: dict[str, Any]) -> None:
    """Writes the finished advantages of this rank by sample, and the metrics."""
    trainer = TrainerConfig(data_parallel_size=2, num_threads=1, max_tokens_per_micro_batch=90)
    parallel.initialize(trainer, rank=rank, address=f"127.0.0.1:{job['port']}", seed=0)
    config = AlgorithmConfig(whitening=True, kl_coefficient=0.5, kl_place=KLPlace.reward, kl_estimator=KLEstimator.k2)
    shard = PackedUpdate(RunConfig(trainer=trainer), load_samples()).shard(rank)
    batch = MicroBatches(shard, only_trained=True, device="cpu")
    known = [KnownLogprobs(reference_N=torch.full_like(part.columns["logprob"], -5.0)) for part in batch]
    metrics = finish_advantages(config, [batch], [known])
    parallel.shutdown()
    found = {
        index: values_N.tolist()
        for part in batch
        for index, values_N in zip(part.sample_indices, part.columns["advantage"].split(part.token_counts))
    }
    (Path(job["folder"]) / f"rank{rank}.json").write_text(json.dumps({"advantages": found, "metrics": metrics}))


if __name__ == "__main__":
    shared = json.loads(Path(sys.argv[1]).read_text())
    sys.exit(fork_ranks(2, lambda rank: main(rank, shared)))
