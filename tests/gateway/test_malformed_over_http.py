"""Ten thousand malformed bodies over HTTP, to all protocols: each is refused in its protocol's form, and nothing else happens.

Each body is one that clients send, broken in one place: its text, its encoding, a field of another type, or an entry of a list.
"""

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.gateway.scripted import Asked, user

pytestmark = pytest.mark.slow
"""They import vLLM's parsers."""

NUM_BODIES, NUM_CONNECTIONS = 10_000, 8
ANYTHING: tuple[Any, ...] = (True, False, -1, 0, 1.5, 10**30, "x", "", [], [None], [[]], {}, {"type": []}, {"a": {"b": [1]}})
DEEP = '{"a":' * 300 + "1" + "}" * 300
NO_JSON = (b"", b" ", b"{", b"nul", b"\xff\xfe{}", b"[]", b"1", b'"text"', b"null", b'{"a": NaN}', b'{"a": 1e999}', b"{} {}")
PART: tuple[Any, ...] = ({"type": []}, {"type": "text"}, {"type": "text", "text": 1}, {"type": "image_url"}, 5, None)
"""Parts of a content that are no text."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A route, a body that is answered there, and what is wrong in it."""

    route: str
    body: dict[str, Any]
    fields: dict[str, tuple[type, ...]]
    """Fields, and the types that they may have; any other is refused."""
    entries: dict[str, tuple[Any, ...]]
    """Lists, and entries that are refused."""
    values: dict[str, tuple[Any, ...]]
    """Fields, and values of the right type that are refused."""

    def broken(self, draw: random.Random) -> bytes:
        """A malformed body."""
        kind = draw.randrange(6)
        if kind == 0:
            return draw.choice((*NO_JSON, draw.randbytes(20), b'{"x": ' + DEEP.encode() + b"}"))
        if kind == 1:
            text = json.dumps(self.body).encode()
            return text[: draw.randrange(1, len(text))]
        if kind == 2:
            key = draw.choice(list(self.fields))
            return self._with(key, draw.choice([value for value in ANYTHING if type(value) not in self.fields[key]]))
        if kind == 3:
            key = draw.choice(list(self.values))
            return self._with(key, draw.choice(self.values[key]))
        key = draw.choice(list(self.entries))
        held = [*self.body.get(key, ())]
        held.insert(draw.randint(0, len(held)), draw.choice(self.entries[key]))
        return self._with(key, held)

    def _with(self, key: str, value: Any) -> bytes:
        return json.dumps({**self.body, key: value}).encode()


def messages(*contents: Any) -> tuple[Any, ...]:
    """Messages that no protocol takes."""
    strange = [user(content) for content in (*contents, *([part] for part in PART))]
    return (*strange, 5, None, [], {}, {"role": 1}, {"role": []}, {"role": "robot", "content": "?"}, {"content": "?"})


def call(**function: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": "a", "function": function}]}


CHAT = Protocol(
    route="/v1/chat/completions",
    body={"messages": [user("?")], "tools": [{"type": "function", "function": {"name": "search"}}], "stream": True},
    fields={
        "messages": (list,),
        "n": (int,),
        "stop": (str, list),
        "stream": (bool,),
        "logprobs": (bool,),
        "tools": (list,),
        "max_tokens": (int,),
        "stream_options": (dict,),
        "response_format": (dict,),
    },
    entries={
        "messages": (*messages(5, {}), call(), call(name=5), call(name=[]), {"role": "assistant", "tool_calls": [5]}),
        "tools": (5, None, {}, {"function": 5}, {"function": {"name": []}}, {"function": {"name": "f", "parameters": 5}}),
    },
    values={
        "messages": ([],),
        "n": (0, -1, 1000),
        "max_tokens": (0, -1),
        "top_logprobs": (1, "x"),
        "response_format": ({"type": "yaml"}, {"type": []}, {"type": "json_object"}, {"type": "json_schema", "json_schema": 5}),
        "tool_choice": ("required", "any", 5, [], {}, {"type": "function", "function": {"name": []}}),
    },
)
RESPONSES = Protocol(
    route="/v1/responses",
    body={"input": [user("?")], "tools": [{"type": "function", "name": "search"}], "stream": True},
    fields={
        "input": (str, list),
        "instructions": (str,),
        "tools": (list,),
        "stream": (bool,),
        "max_output_tokens": (int,),
        "previous_response_id": (str,),
        "text": (dict,),
        "background": (bool,),
    },
    entries={
        "input": (
            *messages(5, {}),
            {"type": "item_reference", "id": "none"},
            {"type": []},
            {"type": "function_call", "name": 5},
            {"type": "function_call_output", "call_id": 5, "output": "x"},
            {"type": "reasoning", "content": [5]},
            {"type": "custom_tool_call", "name": "x", "input": 5},
        ),
        "tools": (5, None, {"type": "function"}, {"type": "namespace", "tools": [5]}, {"type": "custom"}),
    },
    values={
        "input": ([], 5),
        "previous_response_id": ("resp_of_nobody",),
        "conversation": ("conversation",),
        "background": (True,),
        "text": ({"format": 5}, {"format": {"type": "yaml"}}, {"format": {"type": "json_schema", "schema": DEEP}}),
        "tool_choice": ("required", "any", 5, [], {"type": "function", "name": []}, {"type": "custom"}),
    },
)
MESSAGES = Protocol(
    route="/v1/messages",
    body={"messages": [user("?")], "tools": [{"name": "search", "input_schema": {"type": "object"}}], "stream": True},
    fields={
        "messages": (list,),
        "tools": (list,),
        "stream": (bool,),
        "max_tokens": (int,),
        "stop_sequences": (list,),
        "tool_choice": (dict,),
        "output_config": (dict,),
    },
    entries={
        "messages": (
            *messages(5, {}),
            user([{"type": "tool_result", "tool_use_id": 5}]),
            user([{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}]),
            {"role": "assistant", "content": [{"type": "tool_use", "name": []}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": 5}]},
            {"role": "assistant", "content": [{"type": []}]},
        ),
        "tools": (5, None, {"name": 5}, {"type": "custom"}, {"name": "f", "input_schema": 5}),
    },
    values={
        "messages": ([],),
        "system": (5, {"a": 1}, [5], [{"type": "image"}]),
        "max_tokens": (0, -1),
        "tool_choice": ({"type": "any"}, {"type": []}, {"type": "tool", "name": []}, {"type": "tool", "name": "other"}),
        "output_config": ({"format": 5}, {"format": {"type": "json_schema"}}, {"format": {"type": "text"}}),
    },
)


def is_form_of(route: str, body: dict[str, Any]) -> bool:
    """True if an error is worded as its protocol words it."""
    error = body["error"]
    if route == MESSAGES.route:
        return body["type"] == "error" and set(error) == {"type", "message"} and error["type"].endswith("_error")
    return set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"


async def post(url: str, bodies: Iterator[tuple[str, bytes]]) -> int:
    """Sends bodies to their routes over one connection, and returns how many; each must be refused in its protocol's form."""
    host, path = url.removeprefix("http://").split("/", 1)
    number = 0
    reader, writer = await asyncio.open_connection(*host.split(":"))
    for route, body in bodies:
        head = (f"POST /{path}{route} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}", "", "")
        writer.write("\r\n".join(head).encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        assert 400 <= int(lines[0].split()[1]) < 500, (route, body, lines)
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        found = json.loads(await reader.readexactly(int(headers["content-length"])))
        assert is_form_of(route, found), (route, body, found)
        assert found["error"].get("code") != "attempt_lost", (route, body, found)
        number += 1
    writer.close()
    return number


async def test_malformed_bodies_are_refused_in_the_form_of_their_protocol_and_nothing_else_happens(opened: Callable[..., Asked]):
    asked = opened("</think>One.<|im_end|>", "</think>Two.<|im_end|>", refuses=True)
    assert (await asked.ask(user("1?"))).choices[0].message.content == "One."

    def bodies(seed: int) -> Iterator[tuple[str, bytes]]:
        draw = random.Random(seed)
        for _ in range(NUM_BODIES // NUM_CONNECTIONS):
            protocol = draw.choice((CHAT, RESPONSES, MESSAGES))
            yield protocol.route, protocol.broken(draw)

    sent = await asyncio.gather(*[post(asked.session.url, bodies(seed)) for seed in range(NUM_CONNECTIONS)])
    assert sum(sent) == NUM_BODIES and not asked.session.failure
    again = await asked.ask(user("1?"), {"role": "assistant", "content": "One."}, user("2?"))
    assert again.choices[0].message.content == "Two." and len(asked.model.turns) == 2
    (sample,) = asked.audit()
    assert sum(sample.loss_mask) == sum(len(turn.output_ids) for turn in asked.model.turns)
