"""An adapter of a bridge, and its agent, with the standard library alone: two seats add numbers, each at its own URL."""

import asyncio
import json
import os
import urllib.request
from pathlib import Path
from typing import Any


class Sums:
    seats = ("one", "two")

    def __init__(self, at_once: int | None = None, fails: str = "") -> None:
        if fails:
            raise ValueError(f"no sums: {fails}")
        self.at_once = at_once

    def rows(self, seed: int) -> Any:
        number = seed
        while True:
            yield {"key": f"sum {number}", "number": number}
            number += 1

    async def run(self, row: Any, seats: Any) -> Any:
        what, marks = row.get("what", ""), Path(row.get("marks", os.devnull))
        if what == "asks nothing":
            return 0.5
        if what == "sleeps":
            await asyncio.sleep(0.5)
            return float(os.getpid())
        if what == "two, then one on":
            await asyncio.to_thread(asked, seats["two"], "a number?")
            while True:
                await asyncio.to_thread(asked, seats["one"], "and?")
        said = {"one": await asyncio.to_thread(asked, seats["one"], "a number?")}
        if what == "dies once" and not marks.exists():
            marks.touch()
            os._exit(3)
        if what == "waits":
            try:
                marks.with_suffix(".begun").touch()
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                marks.touch()
                raise
        if what == "raises":
            raise LookupError("the world is gone")
        if what == "asks on":
            while True:
                await asyncio.to_thread(asked, seats["one"], "and?")
        said["two"] = await asyncio.to_thread(asked, seats["two"], said["one"])
        if what == "returns":
            return row["returned"]
        rewards = {name: float(text == str(row["number"])) for name, text in said.items()}
        return {"rewards": rewards}


def asked(seat: Any, text: str) -> str:
    body = {"model": seat.model, "max_tokens": seat.max_tokens, "messages": [{"role": "user", "content": text}]}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {seat.api_key}"}
    request = urllib.request.Request(f"{seat.base_url}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]
