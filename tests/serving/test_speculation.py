"""Speculative decoding on a CPU: replies have the model's own distribution, greedy tokens and logprobs, and drafts follow a sync.

For an honest sampler the mean of logprob + entropy over sampled tokens is 0.
"""

import asyncio
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.served_stack import HuggingFaceTrainer, ServedStack
from vime.config import SpeculationMethod, SpeculativeConfig
from vime.errors import WeightSyncError
from vime.inside_vllm.cpu_speculation import _expand, _rejects_placeholders
from vime.inside_vllm.early_exit import is_drafts
from vime.processes.control import call
from vime.serving.client import TokenClient
from vime.serving.topology import Serving
from vime.weights.policy import Policy

NUM_PROMPTS, NUM_TOKENS = 176, 64


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_what_is_expanded_arrives_in_the_tensor_whatever_its_type(dtype: torch.dtype):
    output = torch.full((6,), 99, dtype=dtype)
    _expand(output, torch.tensor([2, 0, 3], dtype=dtype), torch.tensor([2, 5, 6], dtype=torch.int32), 0, 1)
    assert output.tolist() == [2, 2, 1, 1, 1, 3]


@pytest.mark.parametrize("has_probabilities", [False, True])
def test_a_place_without_a_drafted_token_is_rejected(has_probabilities: bool):
    """Even where the row before ends with a token that is certain, to which an index of -1 would point."""
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    from vllm.utils import cpu_triton_utils

    accept = cpu_triton_utils._rejection_random_sample_kernel_impl
    if not hasattr(accept, "rejects_placeholders"):
        accept = _rejects_placeholders(accept)
    drafted = torch.tensor([2, -1, -1, 0])
    target = torch.zeros(4, 5)
    target[[0, 1, 2, 3], [2, 4, 4, 0]] = 1.0
    draft = torch.full((4, 5), 0.2) if has_probabilities else None
    output = torch.full((3, 4), -1)
    counts, bonus, recovered = torch.tensor([2, 3, 4]), torch.tensor([[1], [1], [1]]), torch.tensor([4, 4, 4, 4])
    arguments = (output, counts, drafted, draft, target, bonus, recovered, torch.full((4,), 0.5))
    accept(*arguments, torch.zeros(3, dtype=torch.bool), 3, 5, NO_DRAFT_PROBS=draft is None)
    assert output.tolist() == [[2, 4, -1, -1], [4, -1, -1, -1], [0, 1, -1, -1]]


def test_a_draft_has_the_first_layers_and_all_outside_of_layers():
    names = [
        "model.embed_tokens.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.10.mlp.up_proj.weight",
        "lm_head.weight",
    ]
    assert [is_drafts(name, num_layers=2) for name in names] == [True, True, False, True]


async def replies(endpoint: Any, serving: Any, *, temperature: float, seeded: bool = False) -> tuple[list[list[int]], list[Any]]:
    """Prompts and their replies, all at once, each with a seed of its own if they are `seeded`."""
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(0, 256, (8,), generator=generator).tolist() * 3 for _ in range(NUM_PROMPTS)]
    client = TokenClient(endpoint, serving)
    asked = {"max_tokens": NUM_TOKENS, "ignore_eos": True, "temperature": temperature}
    turns = await asyncio.gather(
        *[
            client.generate(
                prompt,
                sampling=asked | ({"seed": index} if seeded else {}),
                session_id=str(index),
                request_id=uuid.uuid4().hex,
            )
            for index, prompt in enumerate(prompts)
        ]
    )
    await client.close()
    return prompts, turns


@torch.no_grad()
def check_distribution(model: Any, prompts: list[list[int]], turns: list[Any], *, temperature: float) -> None:
    """Mean of logprob + entropy within two and a half standard errors of 0, and logprobs within 1e-4 of Hugging Face's."""
    found: list[torch.Tensor] = []
    for prompt, turn in zip(prompts, turns, strict=True):
        logits = model(torch.tensor([prompt + turn.output_ids])).logits[0, len(prompt) - 1 : -1]
        logprobs = (logits / temperature).log_softmax(-1)
        of_tokens = logprobs.gather(1, torch.tensor(turn.output_ids)[:, None])[:, 0]
        assert (of_tokens - torch.tensor(turn.logprobs)).abs().max() < 1e-4
        found.append(of_tokens - (logprobs.exp() * logprobs).sum(-1))
    everything = torch.cat(found)
    error = everything.std() / len(everything) ** 0.5
    assert len(everything) >= 10_000 and everything.mean().abs() < 2.5 * error, (everything.mean(), error)


async def test_n_grams_keep_the_distribution(served: dict[str, Any], checkpoints: dict[str, Path]):
    stack = served["untied"]
    model = AutoModelForCausalLM.from_pretrained(checkpoints["tied"], dtype=torch.float32)
    await stack.serving.metrics()
    for temperature in (1.0, 0.6):
        prompts, turns = await replies(stack.serving.endpoints()["reader"], stack.config.serving, temperature=temperature)
        check_distribution(model, prompts, turns, temperature=temperature)
    assert (await stack.serving.metrics())["serving/reader/draft_acceptance_rate"] > 0


async def test_a_prompt_read_from_the_cache_has_the_same_reply(served: dict[str, Any]):
    """All but its last token, where vLLM would draw for drafted tokens that are not there."""
    stack = served["untied"]
    client = TokenClient(stack.serving.endpoints()["reader"], stack.config.serving)
    sampling = {"max_tokens": 16, "ignore_eos": True, "temperature": 1.0}
    await stack.serving.metrics()
    for seed in range(8):
        prompt = [(seed + place) % 9 for place in range(65)]
        fresh, cached = [
            await client.generate(prompt, sampling=sampling | {"seed": seed}, session_id="s", request_id=uuid.uuid4().hex)
            for _ in range(2)
        ]
        assert fresh.output_ids == cached.output_ids
    await client.close()
    assert (await stack.serving.metrics())["serving/reader/prefix_hit_rate"] > 0.4


@pytest.fixture(scope="module")
def early(
    checkpoints: dict[str, Path], ray_cluster: None, make_serving_config: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServedStack]:
    """A server that starts with random weights, and whose first of two layers drafts."""
    tests = str(Path(__file__).parent.parent / "inside_vllm")
    os.environ["PYTHONPATH"] = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])
    config = make_serving_config(checkpoints["untied"])
    method = SpeculationMethod.early_exit
    config.serving.models["actor"].speculative = SpeculativeConfig(method=method, num_layers=1, num_tokens=3)
    policy = Policy()
    folder = tmp_path_factory.mktemp("early")
    serving = Serving(config, folder, uuid.uuid4().hex[:8], policy=policy, awaits_weights=True)
    trainer = HuggingFaceTrainer(checkpoints["untied"], serving.payload_folder)
    serving.start()
    try:
        asyncio.run(serving.ready())
        yield ServedStack(config, serving, trainer, policy)
    finally:
        asyncio.run(serving.stop())


async def switch(stack: ServedStack, method: str, *names: str) -> None:
    async with aiohttp.ClientSession() as session:
        body = {"method": method, "args": list(names)}
        await call(session, stack.endpoint.worker_urls[0], "/collective_rpc", timeout_seconds=30.0, body=body)


@pytest.mark.parametrize("way", ["allow_shadow", pytest.param("refuse_shadow", marks=pytest.mark.long)])
async def test_first_layers_follow_each_sync_and_keep_the_distribution(early: ServedStack, way: str):
    await switch(early, way)
    for _ in range(2):
        early.trainer.step()
        metrics = await early.sync(early.trainer.export())
        assert metrics["sync/num_unread_tensors"] == 0
    differences = await early.probe()
    assert differences["probe/max_difference_cold"] < 1e-4 and differences["probe/max_difference_cached"] < 1e-4
    await early.serving.metrics()
    prompts, turns = await replies(early.endpoint, early.config.serving, temperature=1.0)
    check_distribution(early.trainer.model, prompts, turns, temperature=1.0)
    assert 0 < (await early.serving.metrics())["serving/actor/draft_acceptance_rate"] < 1


@pytest.mark.parametrize("way", ["allow_shadow", "refuse_shadow"])
async def test_a_tensor_that_only_the_draft_lacks_is_found(early: ServedStack, way: str):
    await switch(early, way)
    early.trainer.step()
    await switch(early, "drop_from_draft", "model.layers.0.mlp.down_proj.weight")
    with pytest.raises(WeightSyncError, match=r"the draft.s model\.layers\.0\.mlp\.down_proj"):
        await early.sync(early.trainer.export())
    await switch(early, "drop_from_draft")
    await early.sync(early.trainer.export())


async def test_a_seed_gives_the_same_reply_and_keeps_the_distribution(early: ServedStack):
    early.trainer.step()
    await early.sync(early.trainer.export())
    client = TokenClient(early.endpoint, early.config.serving)
    sampling = {"max_tokens": 64, "ignore_eos": True, "temperature": 1.0}
    found = [
        await client.generate([72, 101, 108] * 8, sampling=sampling | more, session_id="s", request_id=uuid.uuid4().hex)
        for more in ({"seed": 7}, {}, {"seed": 7}, {"seed": 8})
    ]
    await client.close()
    assert found[0].output_ids == found[2].output_ids
    assert len({tuple(turn.output_ids) for turn in found}) == 3
    prompts, turns = await replies(early.endpoint, early.config.serving, temperature=1.0, seeded=True)
    check_distribution(early.trainer.model, prompts, turns, temperature=1.0)
