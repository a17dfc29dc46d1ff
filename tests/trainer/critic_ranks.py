"""The ranks of `test_critic.py`: values and two updates of a critic in every place under every layout, saved between them.

python critic_ranks.py JOB.json
"""

import json
import sys
from pathlib import Path
from typing import Any

from vime.trainer import megatron_setup

megatron_setup.set_up()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from megatron.core import parallel_state  # noqa: E402

from tests.trainer.forked import fork_ranks  # noqa: E402
from tests.trainer.ranks import load_fixtures, meet  # noqa: E402
from vime.algorithm.algorithm import VALUE  # noqa: E402
from vime.cluster.layout import world_size  # noqa: E402
from vime.config import CriticPlace  # noqa: E402
from vime.trainer import parallel  # noqa: E402
from vime.trainer.lockstep import LockstepEngine  # noqa: E402
from vime.trainer.shard import PackedUpdate  # noqa: E402
from vime.types import Sample  # noqa: E402


def configured(fixtures: Any, model: Path, place: str, trainer: dict[str, Any]) -> Any:
    """A run with a critic in this place, whose value head is not 0."""
    config = fixtures.build_config(model, **{"max_tokens_per_micro_batch": 60, "num_threads": 1, "clip_grad": 1e6} | trainer)
    config.algorithm.critic.place = CriticPlace(place)
    config.algorithm.critic.gradient_scale = 0.5 if place == "trunk" else 0.0
    return config


def lessons(fixtures: Any, count: int, *, seed: int) -> list[Sample]:
    """Sequences with the columns that a critic learns from."""
    draw = np.random.default_rng(seed)
    found = []
    for sample in fixtures.build_samples(count, seed=seed):
        shape = sample.num_trained_tokens
        returns, old = (draw.normal(size=shape).astype(np.float32) for _ in range(2))
        found.append(sample.with_columns(returns=returns, value=0.1 * old))
    return found


def fill_head(engine: Any) -> None:
    """A value head as after some training, the same on all ranks."""
    draw = np.random.default_rng(3)
    weight = draw.normal(size=engine.model.config.hidden_size).astype(np.float32) * 0.1
    for part in engine.model.parts:
        if part.value_head is not None:
            part.value_head.weight.data[0].copy_(torch.from_numpy(weight))
    engine.optimizer.reload_model_params()


def values(engine: Any, samples: list[Sample]) -> list[list[float]]:
    """Values of the sampled tokens, by sequence."""
    packed = PackedUpdate(engine.config, samples, with_logprobs=False)
    shard = packed.shard(parallel_state.get_data_parallel_rank())
    found = engine._by_sample(packed, engine.forward(shard, [VALUE]))
    return [each["value"].tolist() for each in found]


def run(fixtures: Any, config: Any, folder: Path) -> dict[str, Any]:
    """What one layout gives: values, metrics of two updates, and of the second again after a load."""
    policy = LockstepEngine(config)
    engine = policy.critic or policy
    fill_head(engine)
    samples, others = lessons(fixtures, 13, seed=0), fixtures.build_samples(3, seed=5)
    before = values(policy, others)
    metrics = [engine.train([samples], 0)]
    between = values(policy, others)
    policy.save(folder / "trainer")
    metrics.append(engine.train([samples[:4]], 1))
    after = values(policy, others)
    policy.load(folder / "trainer")
    restored = values(policy, others)
    metrics.append(engine.train([samples[:4]], 1))
    again = values(policy, others)
    num_tensors = sum(1 for _ in policy.export())
    return {
        "metrics": metrics,
        "values": {"before": before, "between": between, "after": after, "restored": restored, "again": again},
        "num_tensors": num_tensors,
    }


def main(rank: int, job: dict[str, Any]) -> None:
    """Runs every layout of the job that this rank has a part in."""
    fixtures, folder, results = load_fixtures(), Path(job["folder"]), {}
    for layout in job["layouts"]:
        config = configured(fixtures, Path(layout["model"]), layout["place"], layout["trainer"])
        if rank >= world_size(config.trainer):
            continue
        own = folder / layout["name"]
        parallel.initialize(config.trainer, rank=rank, store=meet(rank, own), seed=0)
        results[layout["name"]] = run(fixtures, config, own)
        parallel.shutdown()
    (folder / f"rank{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    job = json.loads(Path(sys.argv[1]).read_text())
    sys.exit(fork_ranks(job["num_ranks"], lambda rank: main(rank, job)))
