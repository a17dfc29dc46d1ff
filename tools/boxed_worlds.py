"""One task, behind every way to an environment: a reply with a box earns 1. MemAgent's tiny model learns it within a few steps.

    python tools/boxed_worlds.py PORT           serves it by OpenEnv's messages

It needs the standard library, and only what it is asked for of aiohttp (the server) and Gymnasium (`make`).
"""

import asyncio
import json
import sys
import urllib.request
from itertools import count
from typing import Any

QUESTIONS = ("Who owns Halin?", "Where is the home of Jorgard?", "Where does the owner of Torstead live?")


def question(number: int) -> str:
    """The question of a row."""
    return f"{QUESTIONS[number % len(QUESTIONS)]} Answer in a box."


def score(row: dict[str, Any], text: str) -> float:
    """1 for a box in a reply, otherwise 0."""
    return float("boxed" in text)


def rows(num_items: int, seed: int) -> list[dict[str, Any]]:
    """Rows with a question, for the adapter of MCP servers."""
    return [{"key": f"box {number}", "question": question(number)} for number in range(seed, seed + num_items)]


class Boxes:
    """The task for a bridge, whose agent asks once."""

    def rows(self, seed: int) -> Any:
        """Rows without an end."""
        return ({"key": f"box {number}", "question": question(number)} for number in count(seed))

    async def run(self, row: dict[str, Any], seats: Any) -> float:
        """Asks the model by the protocol of OpenAI."""
        return score(row, await asyncio.to_thread(self._asked, seats["agent"], row["question"]))

    def _asked(self, seat: Any, text: str) -> str:
        body = {"model": seat.model, "max_tokens": seat.max_tokens, "messages": [{"role": "user", "content": text}]}
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {seat.api_key}"}
        request = urllib.request.Request(f"{seat.base_url}/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["choices"][0]["message"]["content"] or ""


def make() -> Any:
    """The task as an environment of Gymnasium, with texts for observations and actions."""
    import gymnasium  # pyright: ignore[reportMissingImports]

    class BoxEnv(gymnasium.Env):
        """One question, one reply."""

        observation_space = gymnasium.spaces.Text(200)
        action_space = gymnasium.spaces.Text(4000)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            """The question of a seed."""
            super().reset(seed=seed)
            return question(seed or 0), {}

        def step(self, action: str) -> Any:
            """The reward of the reply, after which the episode is over."""
            return "Done.", score({}, action), True, False, {}

    return BoxEnv()


def serve(port: int) -> None:
    """The task as a server of OpenEnv with as many sessions as are asked for."""
    from aiohttp import web

    async def schema(_: web.Request) -> web.Response:
        return web.json_response({"action": {"properties": {"text": {"type": "string"}}, "required": ["text"]}})

    async def session(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            asked = message.json()
            if asked["type"] == "close":
                break
            is_first = asked["type"] == "reset"
            seen = question(asked["data"]["seed"]) if is_first else "Done."
            reward = None if is_first else score({}, str(asked["data"]["text"]))
            state = {"observation": seen, "reward": reward, "done": not is_first}
            await socket.send_json({"type": "observation", "data": state})
        return socket

    app = web.Application()
    app.add_routes([web.get("/schema", schema), web.get("/ws", session)])
    web.run_app(app, host="127.0.0.1", port=port, print=None)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
