"""Servers in low precision take five versions under load, each proven, and a tensor that is not loaded is found.

Real servers in bfloat16 whose linear layers compute in 8 bits: integers from the trainer, and floats of the server's own.
"""

import asyncio
import math
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.served_stack import HuggingFaceTrainer, ServedStack
from vime.config import Precision, Quantization
from vime.errors import WeightSyncError
from vime.processes.control import call
from vime.serving.client import TokenClient
from vime.serving.topology import Serving
from vime.sync.probe import Tolerance, probe
from vime.weights.policy import Policy
from vime.weights.quantize import SCALE

DOWN, QUERY = "model.layers.1.mlp.down_proj.weight", "model.layers.0.self_attn.q_proj.weight"
DROPPED = {
    "int8": [(DOWN,), (DOWN + SCALE,), (QUERY, QUERY + SCALE), ("model.norm.weight",)],
    "fp8_per_channel": [(DOWN,), (QUERY,), ("lm_head.weight",)],
}


@pytest.fixture(scope="module", params=["int8", pytest.param("fp8_per_channel", marks=pytest.mark.long)])
def quantization(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def stack(
    quantization: str,
    checkpoints: dict[str, Path],
    ray_cluster: None,
    make_serving_config: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ServedStack]:
    tests = str(Path(__file__).parent.parent / "inside_vllm")
    os.environ["PYTHONPATH"] = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])
    config = make_serving_config(checkpoints["untied"])
    config.serving.models["actor"].quantization = Quantization(quantization)
    config.trainer.precision = Precision.bfloat16
    policy = Policy()
    serving = Serving(config, tmp_path_factory.mktemp(quantization), uuid.uuid4().hex[:8], policy=policy, awaits_weights=True)
    trainer = HuggingFaceTrainer(checkpoints["untied"], serving.payload_folder)
    trainer.quantizes = quantization == "int8"
    serving.start()
    try:
        asyncio.run(serving.ready())
        yield ServedStack(config, serving, trainer, policy)
    finally:
        asyncio.run(serving.stop())


async def under_load(stack: ServedStack, client: TokenClient) -> list[Any]:
    """Sixteen replies of 96 tokens."""
    sampling = {"max_tokens": 96, "ignore_eos": True, "temperature": 1.0}
    return await asyncio.gather(
        *[
            client.generate([number, 72, 101, 108], sampling=sampling, session_id=str(number), request_id=uuid.uuid4().hex)
            for number in range(16)
        ]
    )


async def test_five_syncs_under_load_are_proven(stack: ServedStack):
    client = TokenClient(stack.endpoint, stack.config.serving)
    await stack.sync(stack.trainer.export())
    for _ in range(5):
        stack.trainer.step()
        replies = asyncio.create_task(under_load(stack, client))
        await asyncio.sleep(0.05)
        metrics = await stack.sync(stack.trainer.export())
        assert metrics["sync/num_servers"] == 1 and metrics["sync/num_unread_tensors"] == 0
        turns = await replies
        assert all(len(turn.output_ids) == 96 and all(map(math.isfinite, turn.logprobs)) for turn in turns)
        assert {version for turn in turns for version in turn.weight_versions} <= {
            stack.trainer.version - 1,
            stack.trainer.version,
        }
    tolerance, sizes = (
        Tolerance.of(Precision.bfloat16, is_quantized=True),
        {"vocab_size": stack.config.model.vocab_size, "seed": 0},
    )
    found = await probe(stack.endpoint, stack.trainer.logprobs, temperature=1.0, tolerance=tolerance, **sizes)
    assert 1e-3 < found["probe/mean_difference"] < 0.5
    await client.close()


async def test_a_tensor_that_is_not_loaded_is_found(stack: ServedStack, quantization: str):
    async def drop(*names: str) -> None:
        async with aiohttp.ClientSession() as session:
            body = {"method": "drop", "args": list(names)}
            await call(session, stack.endpoint.worker_urls[0], "/collective_rpc", timeout_seconds=30.0, body=body)

    for names in DROPPED[quantization]:
        stack.trainer.step()
        await drop(*names)
        with pytest.raises(WeightSyncError) as error:
            await stack.sync(stack.trainer.export())
        assert names[0].removesuffix(SCALE) in str(error.value), error.value
        await drop()
        await stack.sync(stack.trainer.export())
    forgotten = [DOWN, DOWN + SCALE] if quantization == "int8" else [DOWN]
    for name in forgotten:
        with pytest.raises(WeightSyncError, match=DOWN):
            await stack.sync(stack.trainer.export(forgotten=name))
    await stack.sync(stack.trainer.export())
