"""The experts that a real server reports of each token are Hugging Face's, also of prefixes that it has cached."""

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from tests.expert_models import chosen_experts, save_experts
from vime.config import RoutingReplay
from vime.serving.client import TokenClient
from vime.serving.topology import Serving
from vime.types import Turn
from vime.weights.policy import Policy

PROMPT = [(7 * number) % 250 + 3 for number in range(100)]


@pytest.fixture(scope="module")
def experts(
    checkpoints: dict[str, Path], ray_cluster: None, make_serving_config: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Any, Any, Any]]:
    """Endpoint of a server that reports experts, the configuration, and Hugging Face's model of the same checkpoint."""
    folder = tmp_path_factory.mktemp("experts")
    checkpoint = save_experts(folder / "checkpoint", checkpoints["untied"], num_experts=8)
    config = make_serving_config(checkpoint)
    config.model.num_experts, config.trainer.routing_replay = 8, RoutingReplay.rollout
    config.serving.models["actor"].vllm_args = {}
    serving = Serving(config, folder, uuid.uuid4().hex[:8], policy=Policy())
    serving.start()
    try:
        asyncio.run(serving.ready())
        yield serving.trained_endpoint(), config, AutoModelForCausalLM.from_pretrained(checkpoint)
    finally:
        asyncio.run(serving.stop())


async def sampled(
    experts: Any, prompts: list[list[int]], *, start: int | None = 0, num: int = 30, interval: int = 7
) -> list[Turn]:
    client = TokenClient(experts[0], experts[1].serving)
    sampling = {"temperature": 1.0, "max_tokens": num, "ignore_eos": True, "stream_interval": interval}
    try:
        return await asyncio.gather(
            *[
                client.generate(prompt, sampling=sampling, session_id="a", request_id=f"{number}", experts_from=start)
                for number, prompt in enumerate(prompts)
            ]
        )
    finally:
        await client.close()


def are_right(experts: Any, prompt: list[int], turn: Turn, *, start: int = 0) -> None:
    found, tokens = turn.routed_experts, [*prompt, *turn.output_ids]
    assert found is not None and (found.start, found.end) == (start, len(tokens) - 1)
    assert found.rows_RLK.dtype == np.uint8
    expected = chosen_experts(experts[2], tokens)[start:-1]
    assert (np.sort(found.rows_RLK, -1) == expected).all(), "the experts are other ones than Hugging Face's"


async def test_every_token_of_a_batch_has_its_experts_and_cached_prefixes_have_theirs(experts: Any) -> None:
    prompts = [PROMPT[: 20 + 9 * number] for number in range(8)]
    for turn, prompt in zip(await sampled(experts, prompts), prompts):
        are_right(experts, prompt, turn)
    for turn in await sampled(experts, [PROMPT] * 4):  # of the same prompt, most of which is cached
        are_right(experts, PROMPT, turn)


async def test_a_further_turn_has_only_what_is_new(experts: Any) -> None:
    (first,) = await sampled(experts, [PROMPT])
    prompt = [*PROMPT, *first.output_ids, 9, 8, 7]
    start = len(PROMPT) + len(first.output_ids) - 1
    (second,) = await sampled(experts, [prompt], start=start)
    are_right(experts, prompt, second, start=start)


async def test_requests_that_want_none_get_none(experts: Any) -> None:
    (turn,) = await sampled(experts, [PROMPT], start=None)
    assert turn.routed_experts is None


async def test_a_reply_that_lives_through_cleared_caches_has_each_row_once(experts: Any) -> None:
    """As at a weight sync between two tokens: the request is preempted, and its tokens are read again."""
    url = experts[0].worker_urls[0]
    client = TokenClient(experts[0], experts[1].serving)
    sampling = {"temperature": 1.0, "max_tokens": 800, "ignore_eos": True, "stream_interval": 5}
    about: dict[str, Any] = {"sampling": sampling, "session_id": "a", "request_id": "long", "experts_from": 0}
    try:
        reply = asyncio.create_task(client.generate(PROMPT, **about))
        num_cleared = 0
        async with aiohttp.ClientSession() as session:
            while num_cleared < 3 and not reply.done():
                for path in ("/pause?mode=keep&clear_cache=true", "/resume"):
                    async with session.post(url + path) as response:
                        assert response.status == 200, await response.text()
                num_cleared += not reply.done()
        assert num_cleared, "the caches were cleared while it was sampled"
        turn = await reply
    finally:
        await client.close()
    are_right(experts, PROMPT, turn)
