"""A model that others run takes the trained model's place: the same prompts, sections and sampling; its tokens are unknown."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import agentic.memagent
from agentic.memagent.chunks import ChunkAt
from agentic.memagent.config import MemAgentConfig
from vime.config import ChatConfig, Mode, RunConfig, ServedModelConfig
from vime.evaluation.conditions import EvaluationRow, label_of, needs_trained_model, rows_of, shown_rows
from vime.serving.endpoint import Endpoint
from vime.types import Prompt, Rollout, StopReason
from vime.workers.worker import RolloutWorker

TINY = str(Path(agentic.memagent.__file__).parent / "tiny" / "actor")
DOCUMENT = "\n\n".join(f"Document {i}:\nResident\nThe home of Ab{i} is Barton." for i in range(1, 13))


def make_config() -> RunConfig:
    lengths: dict[str, Any] = {"chunk_tokens": 96, "max_memory_tokens": 24, "max_final_tokens": 12, "max_single_turn_tokens": 32}
    config = RunConfig(mode=Mode.eval, method=MemAgentConfig(chunk_at=ChunkAt.paragraph, **lengths))
    config.model.checkpoint = TINY
    config.evaluation.top_p = 0.9
    config.serving.models["gpt"] = ServedModelConfig(urls=["http://elsewhere/v1"])
    return config


async def answered(row: str) -> tuple[Rollout, list[dict[str, Any]]]:
    """One item of a row on a scripted endpoint, and the requests that it got."""
    requests: list[dict[str, Any]] = []

    async def handle(request: web.Request) -> web.Response:
        requests.append(await request.json())
        is_last = "Your answer:" in requests[-1]["messages"][0]["content"]
        text = "\\boxed{Barton}" if is_last else f"memory {len(requests)}"
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    endpoint = Endpoint(
        name="gpt", url=url, worker_urls=(url,), model="big", tokenizer="", max_model_len=4096, trained=False, chat=ChatConfig()
    )
    worker = RolloutWorker(make_config(), {"gpt": endpoint})
    await worker.ready()
    messages = [{"role": "user", "content": "Where?"}]
    prompt = Prompt(index=0, row=0, messages=messages, ground_truth=["Barton"], metadata={"context": DOCUMENT}, dataset="d")
    try:
        return await worker.run_item(prompt=prompt, row=row, temperature=0.7, version=0), requests
    finally:
        await worker._served._clients["gpt"].close()  # pyright: ignore[reportAttributeAccessIssue]
        await runner.cleanup()


@pytest.mark.parametrize("row", ["scaffold@gpt", "single_turn@gpt"])
def test_a_baseline_is_asked_the_same_under_the_same_sampling(row: str) -> None:
    rollout, requests = asyncio.run(answered(row))
    assert rollout.stop_reason is StopReason.ANSWERED and rollout.reward == 1.0, rollout.error
    assert len(rollout.samples) == len(requests)
    assert {(request["temperature"], request["top_p"], request["model"]) for request in requests} == {(0.7, 0.9, "big")}
    assert [sample.tokens for sample in rollout.samples] == [[] for _ in requests]
    text = json.dumps(requests)
    assert all(f"Document {i}:" in text for i in range(1, 13))
    if row == "scaffold@gpt":
        assert len(requests) > 2 and requests[-1]["max_tokens"] == 12 and requests[0]["max_tokens"] == 24
    else:
        assert len(requests) == 1


def test_rows_by_mode_and_their_names() -> None:
    config = make_config()
    assert rows_of(config) == ["single_turn", "scaffold"], "one checkpoint has one scaffold"
    config.evaluation.rows = ["single_turn@gpt"]
    assert not needs_trained_model(config)
    config.evaluation.rows = ["trained", "scaffold@gpt"]
    assert rows_of(config) == ["trained", "scaffold@gpt"] and needs_trained_model(config)
    assert EvaluationRow.of("scaffold@gpt") == EvaluationRow(way="scaffold", model="gpt")
    assert label_of("scaffold@gpt") == "gpt, scaffold"
    assert shown_rows("eval", ["trained", "single_turn@gpt"]) == {
        "trained": "trained scaffold",
        "single_turn@gpt": "gpt, single turn",
    }
    assert list(shown_rows("train", ["scaffold@gpt"])) == ["single_turn", "scaffold", "trained", "scaffold@gpt"]
