"""Some hundred odd replies by all protocols (`tools/odd_replies.py`), and that the program finds a fault of each kind."""

import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

sys.path.append(str(Path(__file__).parents[2] / "tools"))

import odd_replies
from odd_replies import SETUPS, Setup, played

from tests.qwen3_tokenizer import qwen3_tokenizer
from vime.chat import reply_reader
from vime.chat.marks import Divided, Phase
from vime.chat.reply_reader import Reading, ReplyReader
from vime.chat.request import Delta
from vime.gateway import gateway as module
from vime.gateway.anthropic_messages import AnthropicMessages
from vime.gateway.session import AgentSession
from vime.trajectory import dialogue
from vime.trajectory.template import ChatTemplate

pytestmark = pytest.mark.slow
"""They import vLLM's parsers."""


@pytest.fixture(autouse=True)
def tokenizer() -> Any:
    return qwen3_tokenizer()


async def test_no_odd_reply_loses_an_attempt_or_is_shown_differently_in_a_stream_and_each_token_is_trained_once():
    found = await played(300, seed=1)
    assert found.problems == []
    assert found.num_replies == 300 and found.num_requests > 1700 and found.num_calls > 200
    assert found.num_tagged > 100 and len(found.kinds) > 15


async def problems(patch: pytest.MonkeyPatch, setup: Setup, *, replies: int = 60) -> str:
    """The program's output on replies of one set-up."""
    patch.setattr(odd_replies, "SETUPS", (setup,))
    return "\n".join((await played(replies, seed=2)).problems)


@pytest.mark.long
async def test_it_finds_an_answer_behind_thinking_that_was_never_closed(monkeypatch: pytest.MonkeyPatch):
    def end(self: Divided) -> list[Delta]:
        if self.phase is Phase.REASONING:  # what is still thinking when the reply ends is taken for its answer
            self.phase = Phase.TEXT
        return []

    monkeypatch.setattr(Divided, "settle", end)
    monkeypatch.setattr(Divided, "_reasoning", lambda self: [])
    assert "an answer behind thinking that was never closed" in await problems(monkeypatch, SETUPS[0])


@pytest.mark.long
async def test_it_finds_thinking_that_the_prompt_had_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ReplyReader, "_thinks", lambda self, prompt_ids: True)
    assert "where no reasoning begins" in await problems(monkeypatch, SETUPS[1])


async def test_it_finds_arguments_that_are_lost(monkeypatch: pytest.MonkeyPatch):
    right = AnthropicMessages.answer

    def lost(self: Any, *given: Any) -> dict[str, Any]:
        body = right(self, *given)
        return body | {"content": [{**block, "input": {}} if "input" in block else block for block in body["content"]]}

    monkeypatch.setattr(AnthropicMessages, "answer", lost)
    found = await problems(monkeypatch, SETUPS[0])
    assert "in place of [" in found and "streamed Shown(" in found


@pytest.mark.long
async def test_it_finds_a_tag_in_a_string_that_ends_a_call(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reply_reader, "plain_calls", lambda text, openings: text)
    assert "calls [] in place of [" in await problems(monkeypatch, SETUPS[2])


@pytest.mark.long
async def test_it_finds_a_stream_that_swallows_what_cannot_be_read(monkeypatch: pytest.MonkeyPatch):
    right = Reading.finish

    def swallowing(self: Reading, ids: Any, *, stopped: bool) -> list[Delta]:
        found = right(self, ids, stopped=stopped)
        return [delta for delta in found if not delta.content.lstrip().startswith("<tool_call>")]

    monkeypatch.setattr(Reading, "finish", swallowing)
    found = await problems(monkeypatch, SETUPS[2])
    assert "is shown" in found and "streamed Shown(" in found


@pytest.mark.long
async def test_it_finds_an_attempt_that_is_lost_to_half_a_surrogate_pair(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reply_reader, "_arguments", lambda written: written)
    monkeypatch.setattr(module, "_json", lambda body, status=200: web.Response(body=orjson.dumps(body), status=status))
    assert "surrogates not allowed" in await problems(monkeypatch, SETUPS[2])


async def test_it_finds_a_turn_that_is_not_closed(monkeypatch: pytest.MonkeyPatch):
    right = ChatTemplate.between

    def open_turn(self: ChatTemplate, *given: Any, written: Any) -> Any:
        return right(self, *given, written=self._tokens.tokenizer.encode(self.end))

    monkeypatch.setattr(ChatTemplate, "between", open_turn)
    assert "the turn is not closed" in await problems(monkeypatch, SETUPS[2])


@pytest.mark.long
async def test_it_finds_replies_that_are_not_recognized_because_their_reasoning_was_trimmed(monkeypatch: pytest.MonkeyPatch):
    def strict(sent: Any, held: Any) -> int:
        reasoning = sent.get("reasoning_content")
        return 0 if reasoning and reasoning != held.get("reasoning_content") else 2

    monkeypatch.setattr(dialogue, "likeness", strict)
    assert "not recognized when it came back: ['edited']" in await problems(monkeypatch, SETUPS[0])


@pytest.mark.long
async def test_it_finds_tokens_that_are_trained_twice(monkeypatch: pytest.MonkeyPatch):
    right = AgentSession.samples
    monkeypatch.setattr(AgentSession, "samples", lambda self, template: [*right(self, template)] * 2)
    assert "no turn was sampled behind" in await problems(monkeypatch, SETUPS[2], replies=10)
