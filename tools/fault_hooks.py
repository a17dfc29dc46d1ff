"""Faults that `tools/faults.py` causes inside a run: hooks that fail, a network that fails, a weight transfer that fails halfway.

Every fault strikes in fixed places (a rollout's first attempt, the first update to a version), so that a run of the suite is
repeatable as far as sampling allows.
"""

import asyncio
import hashlib
import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

from fault_delay import note_once

from agentic.memagent import generate as memagent
from agentic.memagent import reward as memagent_reward
from vime.inside_vllm import transfer
from vime.rollout.context import Context, Sampling
from vime.rollout.tool import ToolOutcome, run_tool
from vime.types import Reward, Sample

ONE_IN = 5
"""The share of rollouts that a fault strikes."""
FOREVER = 100_000.0
LATE_SECONDS = 30.0
"""Longer than `TEACHER` of `fault_cases.py` lets a request be silent."""
BROKEN_VERSION = 2
SLOW_SECONDS, DEADLY_SECONDS, DEADLY_SLOT = 60.0, 20.0, 17
_struck: set[tuple[str, int]] = set()


async def generate_raises(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
    """An agent with a bug that shows now and then."""
    if strikes("generate", context, sample):
        raise KeyError("injected")
    return await memagent.generate(context, sample, sampling)


async def tool_hangs(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
    """An agent whose tool sometimes never answers."""
    if strikes("tool", context, sample):
        result = await run_tool(context, "clock", asyncio.sleep, FOREVER)
        assert result.outcome is ToolOutcome.TIMED_OUT, result
    return await memagent.generate(context, sample, sampling)


async def reward_raises(context: Context, samples: list[Sample]) -> Reward:
    """A reward service that answers nonsense now and then."""
    if strikes("reward", context, samples[0]):
        raise ConnectionResetError("injected")
    return await memagent_reward.reward(context, samples)


async def reward_hangs(context: Context, samples: list[Sample]) -> Reward:
    """A reward service that sometimes never answers."""
    if strikes("reward", context, samples[0]):
        await asyncio.sleep(FOREVER)
    return await memagent_reward.reward(context, samples)


async def slow_groups(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
    """An agent that takes a minute."""
    note_once("began")
    await asyncio.sleep(SLOW_SECONDS)
    return await memagent.generate(context, sample, sampling)


async def deadly_prompt(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
    """An agent that takes a minute; one prompt of a batch kills its worker after a third of it, in any worker."""
    prompt = hashlib.sha256(repr((sample.prompt, sample.label)).encode()).hexdigest()
    chosen = Path(os.environ["VIME_FAULT_FOLDER"]) / "deadly_prompt"
    if sample.group_index == DEADLY_SLOT and not chosen.exists():
        chosen.write_text(prompt)
    if chosen.exists() and chosen.read_text() == prompt:
        note_once("began")
        await asyncio.sleep(DEADLY_SECONDS)
        note_once("died")
        os._exit(1)
    return await slow_groups(context, sample, sampling)


def strikes(what: str, context: Context, sample: Sample) -> bool:
    """True on the first attempt of one training rollout in `ONE_IN`."""
    member = sample.member + sample.group_index
    key = (what, sample.rollout_id)
    if context.evaluation or member % ONE_IN or key in _struck:
        return False
    _struck.add(key)
    return True


class Middleware:
    """ASGI middleware of a server, which counts its requests for tokens or their logprobs."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._requests = itertools.count()


class Network(Middleware):
    """Some requests for tokens get status 500, some lose their connection before the answer, and some in the middle of it."""

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """One request."""
        if not is_inference(scope):
            await self._app(scope, receive, send)
            return
        strike = next(self._requests) % (3 * ONE_IN)
        if strike == 0:
            await send({"type": "http.response.start", "status": 500, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"injected"})
        elif strike == ONE_IN:
            send.__self__.transport.abort()  # uvicorn's: there is no polite way to be rude
        elif strike == 2 * ONE_IN:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1000")]})
            await send({"type": "http.response.body", "body": b'{"choices": [', "more_body": True})
            send.__self__.transport.abort()
        else:
            await self._app(scope, receive, send)


class SlowAnswers(Middleware):
    """One request for logprobs of a prompt in `ONE_IN` is answered later than anyone waits."""

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """One request."""
        if is_inference(scope) and next(self._requests) % ONE_IN == 1:
            await asyncio.sleep(LATE_SECONDS)
        await self._app(scope, receive, send)


class ShortAnswers(Middleware):
    """One answer with logprobs of a prompt in `ONE_IN` has fewer tokens than were sent."""

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """One request."""
        if not is_inference(scope) or next(self._requests) % ONE_IN != 1:
            await self._app(scope, receive, send)
            return
        sent: list[dict[str, Any]] = []

        async def keep(message: dict[str, Any]) -> None:
            sent.append(message)

        await self._app(scope, receive, keep)
        answer = json.loads(b"".join(message.get("body", b"") for message in sent))
        answer["prompt_logprobs"] = answer["prompt_logprobs"][:-1]
        body, headers = json.dumps(answer).encode(), [(b"content-type", b"application/json")]
        await send(sent[0] | {"headers": [*headers, (b"content-length", str(len(body)).encode())]})
        await send({"type": "http.response.body", "body": body})


def is_inference(scope: dict[str, Any]) -> bool:
    """True for a request with tokens."""
    return scope["type"] == "http" and scope["path"].startswith("/inference")


class FailsHalfway(transfer.WeightReport):
    """A worker extension with which loading version `BROKEN_VERSION` fails once, after half of the tensors."""


def _load_half(self: transfer.FileEngine, arrival: transfer.Arrival, file: str) -> None:
    done = Path(os.environ["VIME_FAULT_FOLDER"]) / "transfer_failed"
    if f"v{BROKEN_VERSION}" not in file or done.exists():
        _LOAD(self, arrival, file)
        return
    done.touch()
    tensors = arrival.mapped[file]
    for _, model in self._loading(arrival):
        model.load_weights(tensors[: len(tensors) // 2])
    raise RuntimeError("injected")


class EndsAtASync(transfer.WeightReport):
    """A worker extension with which every server ends once, as if it were killed, when it hears of version `BROKEN_VERSION`."""

    vllm_config: Any

    def expect_files(self, *files: str) -> None:
        """The first call of a sync."""
        seed = self.vllm_config.model_config.seed  # of each server another
        done = Path(os.environ["VIME_FAULT_FOLDER"]) / f"server_{seed}_ended"
        if f"v{BROKEN_VERSION}" in files[0] and not done.exists():
            done.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        super().expect_files(*files)


_LOAD = transfer.FileEngine._load
if "VIME_FAULT_FOLDER" in os.environ:
    transfer.FileEngine._load = _load_half
