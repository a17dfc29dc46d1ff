"""A server in bfloat16 and a trainer in float32 disagree on experts; with the server's experts their logprobs agree again."""

import asyncio
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from tests.expert_models import save_experts
from vime.algorithm.algorithm import OLD
from vime.chat.served_model import ServedModel
from vime.config import RoutingReplay
from vime.serving.client import TokenClient
from vime.serving.topology import Serving
from vime.trajectory.trajectory import Trajectory
from vime.types import Sample
from vime.weights.policy import Policy

NUM_EXPERTS, NUM_CONVERSATIONS = 32, 12


async def conversation(endpoint: Any, config: Any, client: TokenClient, number: int) -> list[Sample]:
    """Two turns with a tool's tokens between them; three conversations have their prompt in common."""
    draw, trajectory = np.random.default_rng(number // 3), Trajectory()
    model = ServedModel(
        client=client,
        tokenizer=AutoTokenizer.from_pretrained(config.model.checkpoint),
        max_model_len=endpoint.max_model_len,
        trajectory=trajectory,
        session=f"s{number}",
        records_experts=True,
    )
    first = await model.complete(draw.integers(3, 250, 60).tolist(), max_tokens=90)
    await model.complete([*first.prompt_ids, *first.output_ids, *draw.integers(3, 250, 12).tolist()], max_tokens=90)
    starts = [call.turn.routed_experts.start for call in trajectory.calls if call.turn.routed_experts is not None]
    assert starts == [0, 60 + len(first.output_ids) - 1], "a further turn has only what is new"
    return trajectory.samples(Sample())


async def sampled(serving: Serving, config: Any) -> list[Sample]:
    await serving.ready()
    endpoint = serving.trained_endpoint()
    client = TokenClient(endpoint, config.serving)
    try:
        found = await asyncio.gather(*[conversation(endpoint, config, client, n) for n in range(NUM_CONVERSATIONS)])
    finally:
        await client.close()
        await serving.stop()
    return [sample for samples in found for sample in samples]


@pytest.fixture(scope="module")
def served(checkpoints: Any, ray_cluster: None, make_serving_config: Any, tmp_path_factory: Any) -> tuple[Path, list[Sample]]:
    """A checkpoint, and conversations that its server in bfloat16 has sampled."""
    folder = tmp_path_factory.mktemp("experts")
    options: dict[str, Any] = {
        "num_experts": NUM_EXPERTS,
        "num_hidden_layers": 4,
        "initializer_range": 0.1,
        "norm_topk_prob": True,
    }
    checkpoint = save_experts(folder / "checkpoint", checkpoints["untied"], scale=3.0, **options)
    config = make_serving_config(checkpoint)
    config.serving.models["actor"].vllm_args = {"dtype": "bfloat16"}
    config.model.num_experts, config.trainer.routing_replay = NUM_EXPERTS, RoutingReplay.rollout
    serving = Serving(config, folder, uuid.uuid4().hex[:8], policy=Policy())
    serving.start()
    samples = asyncio.run(sampled(serving, config))
    for sample in samples:
        sample.to_columns()
        sample.validate(routed_experts=True)
    return checkpoint, samples


def test_the_difference_of_logprobs_falls_threefold(served: Any, engine: Any, make_config: Any) -> None:
    from vime.trainer.shard import PackedUpdate

    checkpoint, samples = served
    differences, share = {}, 0.0
    for kind in (RoutingReplay.none, RoutingReplay.rollout):
        config = make_config(checkpoint, routing_replay=kind)
        trained = engine(config)
        packed = PackedUpdate.of(config, trained.algorithm, samples, version=0, has_advantages=False)
        columns = packed.by_sample([trained.forward(packed.shard(0), [OLD])])
        pairs = zip(samples, columns, strict=True)
        parts = [np.abs(found["old"] - np.asarray(sample.rollout_log_probs)[sample.trained]) for sample, found in pairs]
        differences[kind] = float(np.concatenate(parts).mean())
        if kind is RoutingReplay.rollout:
            whole = [sample.with_columns(advantage=1.0, weight=0.001) for sample in samples]
            share = trained.train([whole], 0)["train/routing_difference"]
    assert share >= 0.02, "the server's routers have chosen other experts"
    assert differences[RoutingReplay.none] > 3 * differences[RoutingReplay.rollout], (differences, share)
