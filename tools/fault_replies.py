"""The faults inside a long reply of `tools/faults.py`: its agent, what the server notes of the tokens it has sent, the audit.

A server that is lost in the middle of a reply must cost no token that it had sent: the next attempt asks for the rest.
"""

import json
import logging
import os
import signal
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from driven_run import DrivenRun

from vime.rollout.context import Context, Sampling
from vime.types import Sample
from vime.weights.payload import RANDOM_WEIGHTS

logger = logging.getLogger(__name__)

PROMPT, LONG_TOKENS, SHORT_TOKENS = list(range(16, 48)), 4000, 16
STOP_SECONDS = 30.0
WAIT_SECONDS = 600.0
SERVER = "vime.inside_vllm.vllm_server"
NOTES = "replies.jsonl"
WITHOUT_WEIGHTS = ("default", RANDOM_WEIGHTS)
"""Versions of a server that has started again and has not got its weights back: such tokens are thrown away, and not counted."""


async def generate(context: Context, sample: Sample, sampling: Sampling) -> Sample:
    """The first rollout of each group is a reply of 4,000 tokens, the others are short."""
    model = context.models["actor"]
    is_long = sample.member == 0 and not context.evaluation
    endless = replace(model, sampling={**model.sampling, "ignore_eos": True})
    await endless.complete(PROMPT, max_tokens=LONG_TOKENS if is_long else SHORT_TOKENS)
    (reply,) = context.samples(sample)
    return reply


async def reward(context: Context, samples: list[Sample]) -> float:
    """More than 0 for every reply that has its length, and not the same for all."""
    length = samples[-1].response_length
    assert length in (LONG_TOKENS, SHORT_TOKENS), length
    return 1.0 + sum(token % 2 for token in samples[-1].tokens) / len(samples[-1].tokens)


class Notes:
    """ASGI middleware of a server: for every request for tokens, how long its prompt was and how many tokens have been sent."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """One request."""
        if scope["type"] != "http" or not scope["path"].startswith("/inference"):
            await self._app(scope, receive, send)
            return
        parts: list[bytes] = []

        async def read() -> Any:
            message = await receive()
            parts.append(message.get("body", b""))
            return message

        async def noted(message: Any) -> None:
            await send(message)
            events = [line for line in message.get("body", b"").split(b"\n\n") if line.startswith(b"data: {")]
            choices = [choice for line in events for choice in json.loads(line[6:])["choices"] if choice["token_ids"]]
            sent = sum(
                len(choice["token_ids"]) for choice in choices if choice["weight_versions"][-1]["version"] not in WITHOUT_WEIGHTS
            )
            if sent:
                _note(json.loads(b"".join(parts)), sent)

        await self._app(scope, read, noted)


def _note(body: dict[str, Any], sent: int) -> None:
    request, attempt = body["request_id"].rsplit("-", 1)
    line = {"request": request, "attempt": int(attempt), "prompt": len(body["token_ids"]), "sent": sent}
    with (Path(os.environ["VIME_FAULT_FOLDER"]) / NOTES).open("a") as file:
        file.write(json.dumps(line) + "\n")


def notes_of(folder: Path) -> dict[str, dict[int, tuple[int, int]]]:
    """Tokens of the prompt, and tokens sent, by request and attempt."""
    found: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
    file = folder / NOTES
    for line in file.read_text().splitlines() if file.exists() else ():
        with suppress(ValueError):  # the server was killed while it wrote
            note = json.loads(line)
            _, before = found[note["request"]].get(note["attempt"], (0, 0))
            found[note["request"]][note["attempt"]] = (note["prompt"], before + note["sent"])
    return found


def is_inside_a_reply(folder: Path) -> bool:
    """True if a server is in the first half of a long reply."""
    replies = notes_of(folder).values()
    return any(LONG_TOKENS / 8 < sent < LONG_TOKENS / 2 for attempts in replies for _, sent in attempts.values())


def kill_inside_a_reply(run: DrivenRun) -> None:
    """`kill -9` of the server."""
    run.wait_for(lambda: is_inside_a_reply(run.folder.parent), seconds=WAIT_SECONDS)
    run.find(SERVER).kill()


def stop_inside_a_reply(run: DrivenRun) -> None:
    """SIGSTOP of the server, and SIGCONT after half a minute."""
    run.wait_for(lambda: is_inside_a_reply(run.folder.parent), seconds=WAIT_SECONDS)
    process, until = run.find(SERVER), time.monotonic() + STOP_SECONDS
    process.send_signal(signal.SIGSTOP)
    run.wait_for(lambda: time.monotonic() > until, seconds=2 * STOP_SECONDS)
    with suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGCONT)


def damage(folder: Path) -> int:
    """Tokens that were sent and then sampled again, and rollouts that scored 0; -1 if no reply was cut."""
    again, num_cut = 0, 0
    for request, attempts in notes_of(folder.parent).items():
        if request.startswith("probe"):  # every sync asks the same again
            continue
        ordered = [attempts[number] for number in sorted(attempts)]
        num_cut += len(ordered) > 1
        repeated = sum(max(0, prompt + sent - later) for (prompt, sent), (later, _) in pairwise(ordered))
        if repeated:
            logger.warning("%s: %d tokens were sampled again; (prompt, sent) by attempt: %s", request, repeated, dict(attempts))
        again += repeated
    rows = [json.loads(line) for file in (folder / "rollouts").glob("step_*.jsonl") for line in file.read_text().splitlines()]
    return again + sum(row["reward"] == 0 for row in rows) if num_cut else -1
