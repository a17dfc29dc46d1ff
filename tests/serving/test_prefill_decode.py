"""Prefill and decode on two real servers: tokens, logprobs and versions are those of one, also after a sync."""

import asyncio
import uuid
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from tests.served_stack import HuggingFaceTrainer, ServedStack
from vime.config import ServerGroupConfig, ServerRole
from vime.serving.client import TokenClient
from vime.serving.topology import Serving
from vime.weights.policy import Policy

pytestmark = [pytest.mark.long, pytest.mark.skipif(find_spec("nixl") is None, reason="needs the package nixl")]
NUM_TOKENS, NUM_PROMPTS = 24, 6
HITS = "vllm:external_prefix_cache_hits_total"


async def fetched(url: str) -> float:
    """Prompt tokens whose keys and values a server has got from others."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        families = text_string_to_metric_families(await response.text())
    return sum(sample.value for family in families for sample in family.samples if sample.name == HITS)


def greedy(model: Any, prompt: list[int], reply: list[int]) -> tuple[list[int], list[float]]:
    """Hugging Face's likeliest token, and its logprob, at each place of a reply."""
    with torch.no_grad():
        found = model(torch.tensor([[*prompt, *reply]])).logits[0, len(prompt) - 1 : -1].log_softmax(1).max(1)
    return found.indices.tolist(), found.values.tolist()


async def test_a_prompt_that_one_server_reads_is_continued_by_another(
    ray_cluster: None, checkpoints: dict[str, Path], make_serving_config: Any, tmp_path: Path
):
    config, policy = make_serving_config(checkpoints["untied"]), Policy()
    actor = config.serving.models["actor"]
    groups = {role.value: ServerGroupConfig(role=role) for role in (ServerRole.prefill, ServerRole.decode)}
    actor = replace(actor, groups=groups, vllm_args={})
    config = replace(config, serving=replace(config.serving, models={"actor": actor}))
    serving = Serving(config, tmp_path, uuid.uuid4().hex[:8], policy=policy, awaits_weights=True)
    stack = ServedStack(config, serving, HuggingFaceTrainer(checkpoints["untied"], serving.payload_folder), policy)
    serving.start()
    try:
        await serving.ready()
        client, decoder = TokenClient(stack.endpoint, config.serving), serving.program("actor-decode-0")
        for _ in range(2):
            stack.trainer.step()
            metrics = await stack.sync(stack.trainer.export())
            assert metrics["sync/num_servers"] == 2
            await stack.probe()
            before, version = await fetched(decoder.url), stack.trainer.version
            prompts = [[number, version, *range(5, 150)] for number in range(NUM_PROMPTS)]
            sampling = {"max_tokens": NUM_TOKENS, "temperature": 0.0, "ignore_eos": True}
            turns = await asyncio.gather(
                *[
                    client.generate(
                        prompt, sampling=sampling, session_id=str(prompt[0]), request_id=f"{prompt[:2]}", minimum_version=version
                    )
                    for prompt in prompts
                ]
            )
            assert await fetched(decoder.url) - before >= NUM_PROMPTS * 128, (
                "whole blocks of each prompt came from the other server"
            )
            for prompt, turn in zip(prompts, turns, strict=True):
                tokens, logprobs = greedy(stack.trainer.model, prompt, list(turn.output_ids))
                assert list(turn.output_ids) == tokens
                assert list(turn.logprobs) == pytest.approx(logprobs, abs=1e-4)
                assert list(turn.weight_versions) == [version] * NUM_TOKENS
        await client.close()
    finally:
        await serving.stop()
