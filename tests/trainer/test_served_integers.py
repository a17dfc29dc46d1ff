"""A trainer in int8 and a real int8 server agree up to rounding after each of two syncs, and one without integers does not."""

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.served_stack import HuggingFaceTrainer, ServedStack
from vime.config import Precision, Quantization, ServedModelConfig, ServingConfig, TrainedQuantization
from vime.sync.probe import Tolerance, probe
from vime.types import Sample
from vime.weights.export import write_payload
from vime.weights.quantize import quantized

PROMPTS = [[number, 72, 101, 108] for number in range(1, 17)]
LENGTH, INT8 = 32, TrainedQuantization.int8


async def replies(stack: ServedStack) -> tuple[list[list[int]], np.ndarray]:
    """Sequences with sampled replies, and the server's logprobs of these."""
    from vime.serving.client import TokenClient

    client = TokenClient(stack.endpoint, stack.config.serving)
    options = {"max_tokens": LENGTH, "ignore_eos": True, "temperature": 1.0}
    try:
        turns = await asyncio.gather(
            *[
                client.generate(prompt, sampling=options, session_id=f"s{number}", request_id=uuid.uuid4().hex)
                for number, prompt in enumerate(PROMPTS)
            ]
        )
    finally:
        await client.close()
    tokens = [[*prompt, *turn.output_ids] for prompt, turn in zip(PROMPTS, turns, strict=True)]
    return tokens, np.array([turn.logprobs for turn in turns])


def distance(trainer: Any, tokens: list[list[int]], served: np.ndarray) -> float:
    """Mean difference of logprobs between a trainer and the server, nats."""
    found = trainer.logprobs(tokens, [LENGTH] * len(tokens), 1.0)
    return float(np.abs(np.array([found[number] for number in range(len(tokens))]) - served).mean())


@pytest.mark.long
async def test_an_int8_server_is_as_close_as_one_without_integers(
    checkpoints: dict[str, Path],
    engine: Callable[..., Any],
    make_config: Callable[..., Any],
    make_samples: Callable[..., list[Sample]],
    ray_cluster: None,
    tmp_path: Path,
) -> None:
    from vime.serving.topology import Serving
    from vime.weights.policy import Policy

    folder = checkpoints["untied"]
    config, plain = make_config(folder, quantization=INT8), make_config(folder)
    served = ServedModelConfig(trained=True, gpu_memory_utilization=0.01, max_num_seqs=16, max_model_len=256)
    served.quantization = Quantization.int8
    config.serving = ServingConfig(models={"actor": served})
    policy = Policy()
    serving = Serving(config, tmp_path / "run", uuid.uuid4().hex[:8], policy=policy, awaits_weights=True)
    serving.start()
    try:
        trainer, other = engine(config), engine(plain)
        await serving.ready()
        stack = ServedStack(config, serving, HuggingFaceTrainer(folder, serving.payload_folder), policy)
        for version in range(2):
            await stack.sync(write_payload(quantized(trainer.export()), folder=serving.payload_folder, version=version))
            tokens, by_server = await replies(stack)
            near, far = (distance(own, tokens, by_server) for own in (trainer, other))
            assert near < 0.2 * far, (near, far)
            sizes = {"vocab_size": config.model.vocab_size, "seed": 0, "serving": config.serving}

            async def logprobs(tokens: list[list[int]], lengths: list[int]) -> list[list[float]]:
                found = trainer.logprobs(tokens, lengths, 1.0)
                return [found[number] for number in range(len(tokens))]

            await probe(stack.endpoint, logprobs, temperature=1.0, tolerance=Tolerance.of(Precision.bfloat16), **sizes)
            for each in (trainer, other):
                each.train([make_samples(13)], 0)
    finally:
        await serving.stop()
