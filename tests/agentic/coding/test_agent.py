"""The small coding agent: its tools, its limits, its summaries and its sub-agents."""

import json
from typing import Any

import pytest

from agentic.coding import tools
from agentic.coding.agent import CodingAgent
from agentic.coding.agent_result import AgentResult, Ending
from agentic.coding.config import CodingLimits
from agentic.coding.prompts import FULL, TINY
from agentic.coding.tools import shortened
from tests.agentic.coding.scripted import MemoryBox, Reply, ScriptedSession
from vime.chat.agent_clock import AgentClock
from vime.chat.request import CONTEXT_FULL, ChatRequest, Refused

SUBMIT: Reply = ("submit", {})


async def played(session: ScriptedSession, box: MemoryBox | None = None, **limits: Any) -> AgentResult:
    box, bounds = box or MemoryBox(), CodingLimits(**limits)
    agent: Any = CodingAgent
    return await agent(session=session, box=box, clock=AgentClock(), limits=bounds, wording=FULL).solve("It fails.")


def last_result(session: ScriptedSession) -> str:
    return session.requests[-1].messages[-1]["content"]


async def test_the_agent_looks_edits_and_submits():
    box = MemoryBox(files={"a.py": "x = 1\ny = 2\n"}, commands={"ls": "a.py"})
    edit = {"path": "a.py", "old": "y = 2", "new": "y = 3"}
    session = ScriptedSession(replies=[("shell", {"command": "ls"}), ("view", {"path": "a.py"}), ("edit", edit), SUBMIT])
    work = await played(session, box)
    assert (work.ending, work.about["turns"]) == (Ending.SUBMITTED, 4)
    assert box.files["a.py"] == "x = 1\ny = 3\n"
    assert work.about["tool_calls"] == {"shell": 1, "view": 1, "edit": 1, "submit": 1}
    shown = [message["content"] for message in session.requests[-1].messages if message["role"] == "tool"]
    assert shown == ["a.py", "   1  x = 1\n   2  y = 2", "edited"]
    assert session.requests[0].messages[1]["content"] == FULL.task.format(statement="It fails.")
    assert session.requests[0].tools == tools.ALL


async def test_several_calls_in_one_reply_are_carried_out_in_their_order():
    box = MemoryBox(files={})
    both: Reply = [("edit", {"path": "b", "old": "", "new": "1"}), ("edit", {"path": "b", "old": "1", "new": "2"})]
    session = ScriptedSession(replies=[both, SUBMIT])
    await played(session, box)
    assert box.files == {"b": "2"}
    ids = [message["tool_call_id"] for message in session.requests[-1].messages if message["role"] == "tool"]
    assert ids == ["call_1_0", "call_1_1"]


@pytest.mark.parametrize(
    ("reply", "shown", "counted"),
    [
        (("dance", {}), "there is no tool 'dance'", "unknown"),
        (("view", {"path": "missing"}), "No such file", "invalid"),
        (("view", {"file": "a"}), "unexpected keyword", "invalid"),
        (("view", {"path": "a", "first_line": "two"}), "invalid literal", "invalid"),
        (("edit", {"path": "a", "old": "1", "new": "2"}), "occurs 2 times", "invalid"),
        (("edit", {"path": "a", "old": "3", "new": "2"}), "occurs 0 times", "invalid"),
    ],
)
async def test_what_is_wrong_with_a_call_is_shown_to_the_agent(reply: Reply, shown: str, counted: str):
    session = ScriptedSession(replies=[reply, SUBMIT])
    work = await played(session, MemoryBox(files={"a": "1 1"}))
    assert shown in last_result(session)
    assert work.about["tool_calls"][counted] == 1
    assert work.ending is Ending.SUBMITTED


async def test_arguments_that_are_not_json_or_no_object_are_shown_to_the_agent():
    for arguments in ('{"path": ', '["a"]', '"a"', "3"):
        toolbox: Any = tools.RepositoryTools
        box = toolbox(box=MemoryBox(), offered=("view",), command_seconds=1.0, result_characters=100)
        (message,) = await box.results([{"id": "1", "function": {"name": "view", "arguments": arguments}}])
        assert message["content"].startswith("error:"), arguments


async def test_a_long_conversation_goes_on_from_a_summary():
    def summarized(request: ChatRequest) -> Reply:
        assert request.messages[-1] == {"role": "user", "content": FULL.summarize}
        return "x is wrong"

    look: Reply = ("shell", {"command": "ls"})
    session = ScriptedSession(replies=[look, look, summarized, SUBMIT])
    work = await played(session, MemoryBox(commands={"ls": "a"}), context_tokens=40)
    assert work.about["summaries"] == 1 and work.ending is Ending.SUBMITTED
    system, task = session.requests[-1].messages
    assert system == session.requests[0].messages[0]
    assert task["content"] == FULL.resumed.format(task=session.requests[0].messages[1]["content"], summary="x is wrong")
    assert session.requests[-2].messages[:2] == session.requests[0].messages  # the chain before it is asked for the summary


async def test_a_sub_agent_has_a_conversation_of_its_own_and_may_only_look():
    replies: list[Any] = [
        ("explore", {"question": "where?"}),
        ("edit", {"path": "a", "old": "", "new": "1"}),
        ("shell", {"command": "ls"}),
        "in a.py",
        SUBMIT,
    ]
    box, session = MemoryBox(commands={"ls": "a.py"}), ScriptedSession(replies=replies)
    work = await played(session, box)
    assert session.requests[1].messages == [
        {"role": "system", "content": FULL.explorer},
        {"role": "user", "content": "where?"},
    ]
    assert session.requests[1].tools == tools.LOOKING
    assert "there is no tool 'edit'" in session.requests[2].messages[-1]["content"] and not box.files
    assert last_result(session) == "in a.py"
    assert work.about["tool_calls"] == {"unknown": 1, "shell": 1, "explore": 1, "submit": 1}


async def test_a_sub_agent_without_an_answer_costs_the_agent_nothing_but_its_question():
    look: Reply = ("shell", {"command": "ls"})
    session = ScriptedSession(replies=[("explore", {"question": "?"}), look, look, SUBMIT])
    work = await played(session, MemoryBox(commands={"ls": "a"}), explorer_turns=2)
    assert last_result(session) == "no answer: turns_used_up" and work.ending is Ending.SUBMITTED


async def test_without_turns_for_sub_agents_none_is_offered():
    session = ScriptedSession(replies=[SUBMIT])
    await played(session, explorer_turns=0)
    assert [tool["function"]["name"] for tool in session.requests[0].tools] == ["shell", "view", "edit", "submit"]


async def test_every_limit_ends_the_agent_with_its_reason():
    def full(_: ChatRequest) -> Reply:
        raise Refused("too long", code=CONTEXT_FULL)

    look: Reply = ("shell", {"command": "ls"})
    box = MemoryBox(commands={"ls": "a"})
    assert (await played(ScriptedSession(replies=[look, look]), box, turns=2)).ending is Ending.TURNS_USED_UP
    assert (await played(ScriptedSession(replies=[full]), box)).ending is Ending.TOKENS_USED_UP
    assert (await played(ScriptedSession(replies=[look, full]), box, context_tokens=1)).ending is Ending.TOKENS_USED_UP
    assert (await played(ScriptedSession(replies=["done"]), box)).ending is Ending.NO_CALL
    late = await played(ScriptedSession(replies=[]), box, seconds=1e-9)
    assert (late.ending, late.about["turns"]) == (Ending.TIME_USED_UP, 0)


def test_long_results_lose_their_middle():
    text = "".join(map(str, range(1000)))
    short = shortened(text, 100)
    assert short.startswith(text[:50]) and short.endswith(text[-50:]) and f"{len(text) - 100} characters" in short
    assert shortened("short", 5) == "short"


def test_both_styles_have_the_same_fields():
    fields = {"task": {"statement"}, "question": {"question"}, "resumed": {"task", "summary"}}
    for wording in (FULL, TINY):
        for name, names in fields.items():
            text = getattr(wording, name)
            assert all(f"{{{one}}}" in text for one in names), (name, text)
    assert all(json.dumps(tool) for tool in tools.ALL)
