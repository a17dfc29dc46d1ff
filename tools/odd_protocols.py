"""Clients of `odd_replies.py`: each protocol as plain HTTP, whole and streamed, and the messages that its clients send back."""

import json
import random
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from odd_grammar import Call

from vime.gateway.session import AgentSession

FUNCTIONS = ("search", "now")
SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}}


@dataclass(kw_only=True, slots=True)
class Shown:
    """A reply as its client reads it."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)
    torn: str = field(default="", compare=False)
    """The way in which the events of a stream contradict each other."""


def read(arguments: str) -> Any:
    """Arguments as a client reads them; unchanged if they are not JSON."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


class Client:
    """One conversation by one protocol."""

    route = ""

    def __init__(self, http: aiohttp.ClientSession, session: AgentSession, *, stream: bool, draw: random.Random) -> None:
        self._http, self._session, self._stream, self._draw = http, session, stream, draw
        self._before: list[Any] = []
        self._style = draw.choice(("as it is", "trimmed", "dropped"))
        self.is_silent = False
        """True if nothing of a reply was sent back: without an item there is no message of an assistant."""

    async def ask(self, question: str) -> tuple[int, Any]:
        """Status, and the reply as it is shown, or the error; the reply and results of its calls are sent back with the next."""
        self._before.append({"role": "user", "content": question})
        body = {"model": "m", "stream": self._stream, **self._body()}
        try:
            async with self._http.post(f"{self._session.url}/v1/{self.route}", json=body) as answer:
                text = await answer.text()
        except aiohttp.ClientError as error:
            return 500, f"the connection broke: {error}"
        if answer.status != 200:
            return answer.status, text
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        if any("error" in (event.get("type"), *event) and event.get("error") for event in events):
            return 500, text
        return 200, self._streamed(events) if self._stream else self._whole(json.loads(text))

    def _body(self) -> dict[str, Any]:
        raise NotImplementedError

    def _whole(self, body: Any) -> Shown:
        raise NotImplementedError

    def _streamed(self, events: list[Any]) -> Shown:
        raise NotImplementedError

    def _again(self, arguments: str) -> str:
        """Arguments as clients write them again."""
        found = read(arguments)
        return json.dumps(found, separators=(",", ":")) if isinstance(found, dict) and self._style == "trimmed" else arguments

    def _thought(self, reasoning: str) -> str:
        return {"as it is": reasoning, "trimmed": reasoning.strip(), "dropped": ""}[self._style]


class Chat(Client):
    """Chat Completions."""

    route = "chat/completions"

    def _body(self) -> dict[str, Any]:
        tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in FUNCTIONS]
        return {"messages": self._before, "tools": tools}

    def _whole(self, body: Any) -> Shown:
        return self._sent_back(body["choices"][0]["message"])

    def _streamed(self, events: list[Any]) -> Shown:
        message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}
        for delta in (choice["delta"] for event in events for choice in event["choices"]):
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for piece in delta.get("tool_calls", ()):
                calls, function = message["tool_calls"], piece["function"]
                if piece["index"] == len(calls):
                    calls.append({"id": piece["id"], "type": "function", "function": {"name": function["name"], "arguments": ""}})
                calls[piece["index"]]["function"]["arguments"] += function.get("arguments") or ""
        return self._sent_back(message)

    def _sent_back(self, message: Any) -> Shown:
        reasoning, calls = message.get("reasoning_content") or "", message.get("tool_calls") or []
        again: dict[str, Any] = {"role": "assistant", "content": message["content"] or None}
        if thought := self._thought(reasoning):
            again["reasoning_content"] = thought
        if calls:
            again["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": self._again(call["function"]["arguments"])}}
                for call in calls
            ]
        self._before.append(again)
        self._before += [{"role": "tool", "tool_call_id": call["id"], "content": "found 😀"} for call in calls]
        shown = [(call["function"]["name"], read(call["function"]["arguments"])) for call in calls]
        return Shown(reasoning=reasoning, content=message["content"] or "", calls=shown)


class Respond(Client):
    """Responses."""

    route = "responses"

    def _body(self) -> dict[str, Any]:
        return {"input": self._before, "tools": [{"type": "function", "name": name, "parameters": SCHEMA} for name in FUNCTIONS]}

    def _whole(self, body: Any) -> Shown:
        return self._sent_back(body["output"])

    def _streamed(self, events: list[Any]) -> Shown:
        shown = self._sent_back(events[-1]["response"]["output"])
        told = {
            "response.reasoning_text.delta": "",
            "response.output_text.delta": "",
            "response.function_call_arguments.delta": "",
        }
        for event in events:
            if event["type"] in told:
                told[event["type"]] += event["delta"]
        items = events[-1]["response"]["output"]
        arguments = "".join(item["arguments"] for item in items if item["type"] == "function_call")
        if list(told.values()) != [shown.reasoning, shown.content, arguments]:
            shown.torn = f"{list(told.values())} {shown} {arguments}"
        return shown

    def _sent_back(self, output: list[Any]) -> Shown:
        shown, size = Shown(), len(self._before)
        for item in output:
            again = dict(item)
            if item["type"] == "reasoning":
                shown.reasoning += "".join(part["text"] for part in item["content"])
                if not (thought := self._thought("".join(part["text"] for part in item["content"]))):
                    continue
                again["content"] = [{"type": "reasoning_text", "text": thought}]
            elif item["type"] == "message":
                shown.content += "".join(part["text"] for part in item["content"])
            else:
                shown.calls.append((item["name"], read(item["arguments"])))
                again["arguments"] = self._again(item["arguments"])
            self._before.append(again)
        self.is_silent |= len(self._before) == size
        calls = [item for item in output if item["type"] == "function_call"]
        self._before += [{"type": "function_call_output", "call_id": item["call_id"], "output": "found 😀"} for item in calls]
        return shown


class Messages(Client):
    """Messages."""

    route = "messages"

    def _body(self) -> dict[str, Any]:
        tools = [{"name": name, "input_schema": SCHEMA} for name in FUNCTIONS]
        return {"messages": self._before, "max_tokens": 100_000, "tools": tools}

    def _whole(self, body: Any) -> Shown:
        return self._sent_back(body["content"])

    def _streamed(self, events: list[Any]) -> Shown:
        blocks: list[dict[str, Any]] = []
        for event in events:
            if event["type"] == "content_block_start":
                blocks.append({**event["content_block"], "json": ""})
            elif event["type"] == "content_block_delta":
                delta, block = event["delta"], blocks[event["index"]]
                key = {"thinking_delta": "thinking", "text_delta": "text", "input_json_delta": "json"}.get(delta["type"])
                if key is not None:
                    block[key] += delta.get(key, delta.get("partial_json", ""))
                else:
                    block |= {name: value for name, value in delta.items() if name != "type"}
        for block in blocks:
            written = block.pop("json")
            if block["type"] == "tool_use" and written:
                block["input"] = read(written)
        return self._sent_back(blocks)

    def _sent_back(self, blocks: list[Any]) -> Shown:
        shown, again = Shown(), []
        for block in blocks:
            if block["type"] == "thinking":
                shown.reasoning += block["thinking"]
                if thought := self._thought(block["thinking"]):
                    again.append({**block, "thinking": thought})
                continue
            if block["type"] == "text":
                shown.content += block["text"]
            else:
                shown.calls.append((block["name"], block["input"]))
            again.append(block)
        self._before.append({"role": "assistant", "content": again})
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "found 😀"}
            for block in blocks
            if block["type"] == "tool_use"
        ]
        if results:
            self._before.append({"role": "user", "content": results})
        return shown


PROTOCOLS: dict[str, type[Client]] = {"Chat Completions": Chat, "Responses": Respond, "Messages": Messages}
