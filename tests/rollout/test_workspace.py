"""A workspace in a rollout: it reaches its own session alone, its loss is not the agent's fault, and waiting is not its time."""

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from vime.agent.workspace import Prepared, prepare
from vime.chat.served_model import ServedModel
from vime.config import RunConfig, WorkspaceConfig
from vime.errors import SandboxError
from vime.gateway.session import AgentSession
from vime.rollout.context import Context


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A repository of one file."""
    return prepare({"a.txt": "text\n"}, cache_folder=tmp_path_factory.mktemp("cache"))


def context_of(**settings: Any) -> Context:
    """The context of a rollout."""
    config = RunConfig(workspace=WorkspaceConfig(packages=[], **settings))
    return Context(config=config, evaluation=False, session_id="s")


def session_of(name: str) -> AgentSession:
    """A session with a model of this name."""
    return AgentSession(model=ServedModel(client=None, max_model_len=10, name=name, shows_tokens=False))


async def test_programs_reach_their_own_session_and_no_other(prepared: Prepared):
    context, own, other = context_of(), session_of("own"), session_of("other")
    async with (
        context.workspace(prepared) as box,
        context.workspace(prepared) as second,
        context.reachable(own, box) as url,
        context.reachable(other, second),
    ):
        models = json.loads((await box.run(f"curl -s {url}/v1/models")).stdout)
        assert [model["display_name"] for model in models["data"]] == ["own"]
        refused = await box.run(f"curl -s {url.replace(own.secret, other.secret)}/v1/models")
        assert "there is no such session" in refused.stdout
        assert (await second.run(f"curl -s --max-time 5 {url}/v1/models")).exit_code == 7  # curl could not connect


async def test_a_repository_is_kept_in_the_folder_of_the_configuration(tmp_path: Path):
    context = context_of(cache_folder=str(tmp_path))
    assert (await context.prepared({"a.txt": "text\n"})).folder.parent == tmp_path


async def test_whatever_an_agent_makes_of_the_loss_of_its_workspace_it_is_the_infrastructures_fault(prepared: Prepared):
    context = context_of()
    with pytest.raises(SandboxError, match="lost"):
        async with context.workspace(prepared) as box:
            await box.run("true")
            os.kill(box.first_process, signal.SIGKILL)
            try:
                await box.run("true")
            except SandboxError:
                raise RuntimeError("the agent's own") from None
    with pytest.raises(RuntimeError, match="the agent's own"):
        async with context.workspace(prepared):
            raise RuntimeError("the agent's own")


async def test_the_wait_for_a_place_on_the_node_is_not_the_agents_time(prepared: Prepared):
    first, second = context_of(num_workspaces=1), context_of(num_workspaces=1)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(first.workspace(prepared))
        waiting = asyncio.create_task(stack.enter_async_context(second.workspace(prepared)))
        await asyncio.sleep(0.05)
        before = second.clock.seconds
        await asyncio.sleep(0.05)
        assert second.clock.seconds == before and not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with second.workspace(prepared) as box:
        assert (await box.run("cat a.txt")).stdout == "text\n"
