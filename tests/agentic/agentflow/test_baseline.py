"""`scaffold@ENDPOINT`: a model behind a chat API plays the planner; its tokens are not seen, its steps are taken."""

import asyncio
from typing import Any

from aiohttp import web

from agentic.agentflow.config import AgentFlowConfig, PromptStyle, RolesConfig
from agentic.agentflow.tiny import task
from agentic.agentflow.tools.config import ToolConfig
from tests.agentic.agentflow.test_generate import CATALOGUE, frozen, step_of
from vime.config import ChatConfig, Mode, RunConfig, ServedModelConfig
from vime.serving.endpoint import Endpoint
from vime.types import Prompt, Rollout, StopReason
from vime.workers.worker import RolloutWorker

ROW = next(row for row in task.generate_rows(split="train", num_items=50, seed=0) if row["extra_info"]["kind"] == "bill")


def planner(prompt: str) -> str:
    """Looks the price up, computes, and is then told to stop."""
    if prompt.startswith("Plan:"):
        return "Tools: price_list base_generator"
    words = ROW["prompt"][0]["content"].split()
    if prompt.endswith("none"):
        return step_of(f"price of {words[4]} in {words[-2]}", "price_list")
    return step_of(f"{words[3]} times {prompt.split()[-1]}", "base_generator")


async def played(replies: dict[str, Any], **settings: Any) -> Rollout:
    """The row `scaffold@gpt`, with what each served model says; the endpoint counts 30 tokens written in every reply."""

    async def handle(request: web.Request) -> web.Response:
        body = await request.json()
        text, finish = replies[body["model"]](body["messages"][0]["content"])
        usage = {"prompt_tokens": 50, "completion_tokens": 30}
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": finish}
        return web.json_response({"choices": [choice], "usage": usage})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    tools = {"base_generator": ToolConfig(model="base"), "price_list": ToolConfig(path=CATALOGUE)}
    roles = RolesConfig(coder=None, judge=None)
    config = RunConfig(
        mode=Mode.eval, method=AgentFlowConfig(prompt_style=PromptStyle.tiny, tools=tools, roles=roles, **settings)
    )
    config.serving.models |= {name: ServedModelConfig(urls=[url]) for name in replies}
    endpoints = {
        name: Endpoint(
            name=name, url=url, worker_urls=(url,), model=name, tokenizer="", max_model_len=4096, trained=False, chat=ChatConfig()
        )
        for name in replies
    }
    config.model.checkpoint = "agentic/agentflow/tiny/planner"
    worker = RolloutWorker(config, endpoints)
    await worker.ready()
    kept = {name: value for name, value in ROW.items() if name not in ("prompt", "reward_model")}
    gold = ROW["reward_model"]["ground_truth"]
    prompt = Prompt(index=0, row=0, messages=ROW["prompt"], ground_truth=gold, metadata=kept, dataset="tiny")
    try:
        return await worker.run_item(prompt=prompt, row="scaffold@gpt", temperature=0.7, version=0)
    finally:
        for client in worker._served._clients.values():
            await client.close()  # pyright: ignore[reportAttributeAccessIssue]
        await runner.cleanup()


def test_a_planner_behind_an_endpoint_takes_its_steps_and_answers():
    says = {"gpt": lambda prompt: (planner(prompt), "stop"), "base": lambda prompt: (frozen(prompt), "stop")}
    rollout = asyncio.run(played(says))
    assert rollout.stop_reason is StopReason.ANSWERED, rollout.error
    assert [sample.metadata["turn"] for sample in rollout.samples] == ["plan", "next_step", "next_step"]
    assert [sample.metadata["tool"] for sample in rollout.samples[1:]] == ["price_list", "base_generator"]
    assert rollout.samples[-1].metadata["loop_end"] == "verified" and rollout.reward == 1.0


def test_a_planner_behind_an_endpoint_has_the_same_limit_of_tokens():
    says = {"gpt": lambda prompt: (planner(prompt), "stop"), "base": lambda prompt: ("Conclusion: CONTINUE", "stop")}
    rollout = asyncio.run(played(says, max_rollout_tokens=60))
    assert [sample.metadata["turn"] for sample in rollout.samples] == ["plan", "next_step"]
    assert rollout.stop_reason is StopReason.TOKEN_LIMIT


def test_a_planner_that_was_cut_before_its_first_word_takes_no_step():
    cut = {"gpt": lambda prompt: ("", "length"), "base": lambda prompt: (frozen(prompt), "stop")}
    rollout = asyncio.run(played(cut))
    assert rollout.samples == [] and rollout.stop_reason is StopReason.TOKEN_LIMIT
