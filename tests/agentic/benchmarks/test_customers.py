"""τ²-bench as an environment: a conversation with a stand-in, and the package's own mock domain where it is installed."""

import asyncio
import json
from typing import Any

import pytest

from agentic.benchmarks.customers import Conversation, Tau2
from agentic.toolorchestra.environment.episode import End, EpisodeResult
from agentic.toolorchestra.tau2_episode import Tau2Episode
from agentic.toolorchestra.tool_calls import ToolCall
from tests.agentic.toolorchestra.test_tau2 import MOCK_TASKS, needs_tau2, oracle, scripted_user, task_of
from vime.environments.environment import Reply
from vime.errors import ConfigError

TOOL = {"type": "function", "function": {"name": "cancel", "parameters": {"type": "object", "properties": {}}}}


class StandIn:
    """A customer who says what they want and stops after the second reply."""

    def __init__(self) -> None:
        self.tools, self.end, self.taken = [TOOL], None, list[tuple[str, list[ToolCall]]]()

    async def start(self) -> list[Any]:
        return [{"role": "system", "content": "policy"}, {"role": "user", "content": "Cancel it."}]

    async def step(self, content: str, calls: list[ToolCall]) -> list[Any]:
        self.taken.append((content, calls))
        self.end = End.customer_stop if len(self.taken) == 2 else None
        return [{"role": "tool", "content": "cancelled"}] if calls else []

    async def result(self) -> EpisodeResult:
        return EpisodeResult(reward=1.0, parts={"DB": 1.0})


def called(name: str, arguments: str) -> Reply:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return Reply(seat="agent", text="", tool_calls=[call])


def test_calls_and_messages_reach_the_customer_until_the_end():
    async def talk() -> None:
        conversation = Conversation(stand_in := StandIn())
        first = await conversation.observe()
        assert first is not None and first.tools == [TOOL] and [m["role"] for m in first.content] == ["system", "user"]  # type: ignore[index]
        await conversation.act(called("cancel", '{"order": 7}'))
        assert (await conversation.outcome()).rewards == 0.0  # it was left
        second = await conversation.observe()
        assert second is not None and second.content == [{"role": "tool", "content": "cancelled"}]
        await conversation.act(Reply(seat="agent", text="Done."))
        assert await conversation.observe() is None
        assert stand_in.taken == [("", [ToolCall(name="cancel", arguments={"order": 7})]), ("Done.", [])]
        assert dict((await conversation.outcome()).metrics) == {"strict": 1.0, "DB": 1.0}

    asyncio.run(talk())


def test_arguments_that_are_no_object_are_given_as_none():
    async def talk() -> list[Any]:
        conversation = Conversation(stand_in := StandIn())
        for arguments in ("{", "[1]"):
            await conversation.observe()
            await conversation.act(called("cancel", arguments))
        return stand_in.taken

    assert [calls[0].arguments for _, calls in asyncio.run(talk())] == [{}, {}]


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match="no such domain: use mock"):
        Tau2(user={"model": "openai/user"}, domains=["bank"])
    monkeypatch.setattr("agentic.benchmarks.customers.why_absent", lambda: "the package tau2 is not installed")
    with pytest.raises(ConfigError, match="pip install --ignore-requires-python"):
        Tau2(user={"model": "openai/user"})
    monkeypatch.setattr("agentic.benchmarks.customers.why_absent", str)
    with pytest.raises(ConfigError, match="plays the customer"):
        Tau2(user={"model": ""}).rows(split="eval", num_items=None, seed=0)


@needs_tau2
@pytest.mark.parametrize("task_id", [name for name in MOCK_TASKS if not name.endswith("nl_eval")])
def test_gold_actions_of_the_mock_domain_score_1_and_the_words_alone_do_not(task_id: str):
    task = task_of("mock", task_id)

    async def rewarded(said: list[str]) -> Any:
        conversation = Conversation(Tau2Episode("mock", task, user=scripted_user(task)))
        for text in said:
            assert await conversation.observe() is not None
            if text.startswith("<tool_call>"):
                call = json.loads(text.removeprefix("<tool_call>").split("</tool_call>")[0])
                await conversation.act(called(call["name"], json.dumps(call["arguments"])))
            else:
                await conversation.act(Reply(seat="agent", text=text.removesuffix("<|im_end|>")))
        assert await conversation.observe() is None
        return (await conversation.outcome()).rewards

    assert asyncio.run(rewarded(oracle(task))) == 1.0
    if task_id == "create_task_1":
        assert asyncio.run(rewarded(oracle(task)[-1:])) == 0.0
