"""Token in, token out: the client of one served model, for many requests at once in one event loop.

A dropped connection is tried again at once, a lost server until `recovery_timeout_seconds`, a bad request never. A server
that moved is looked up by the actor that keeps it.
"""

import asyncio
import itertools
import logging
import random
import time
from dataclasses import dataclass
from typing import Any

import aiohttp

from vime.config import ServingConfig
from vime.errors import ServerError, VimeError
from vime.serving.calls import Calls
from vime.serving.endpoint import Endpoint, locate

logger = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS = 0.1
MAX_BACKOFF_SECONDS = 2.0
NUM_IMMEDIATE_RETRIES = 3


class BadRequestError(VimeError, ValueError):
    """The server refuses this request (prompt too long, unknown parameter): sending it again would not help."""


class _Unavailable(Exception):
    """This attempt failed for a reason that passes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """What a server sampled.

    Example: `Generation(output_ids=[9, 2], logprobs=[-0.1, -0.7], weight_versions=[3, 4], finish_reason="stop")`: the weights
    changed between the two tokens. `finish_reason` is stop or length; `seconds` are those of the attempt that was answered.
    """

    output_ids: list[int]
    logprobs: list[float]
    weight_versions: list[int]
    finish_reason: str
    seconds: float = 0.0


class TokenClient:
    """Sends token ids to one endpoint; make one per process and model, inside the event loop that uses it."""

    def __init__(self, endpoint: Endpoint, config: ServingConfig) -> None:
        self.calls = Calls()
        self._endpoint = endpoint
        self._url = endpoint.url
        self._config = config
        self._attempts = itertools.count()
        self._session: aiohttp.ClientSession | None = None

    async def generate(
        self, token_ids: list[int], *, sampling: dict[str, Any], session_id: str, request_id: str, minimum_version: int = 0
    ) -> Generation:
        """The continuation of a prompt; `sampling` takes vLLM's names (temperature, top_p, max_tokens, seed, …).

        Tokens older than `minimum_version` are thrown away and sampled again: their server has not got its weights back yet.
        Raises BadRequestError if the request can't work, ServerError if no server answered within the recovery timeout.
        """
        self._check(token_ids, sampling)
        started, found_lost, backoff, num_dropped = time.monotonic(), None, FIRST_BACKOFF_SECONDS, 0
        while True:
            try:
                generation = await self._attempt(token_ids, sampling, session_id, request_id, minimum_version)
                if min(generation.weight_versions, default=minimum_version) >= minimum_version:
                    self._count(token_ids, generation, started)
                    return generation
                reason = f"it sampled with version {min(generation.weight_versions)}, wanted is {minimum_version}"
            except aiohttp.ServerDisconnectedError:
                num_dropped += 1
                self.calls.num_retries += 1
                if num_dropped <= NUM_IMMEDIATE_RETRIES:
                    continue  # an idle connection that the server closed while we took it
                reason = "it dropped the connection"
            except (_Unavailable, aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                reason = repr(error)
            found_lost = time.monotonic() if found_lost is None else found_lost
            if time.monotonic() + backoff > found_lost + self._config.recovery_timeout_seconds:
                self.calls.num_failures += 1
                raise ServerError(
                    f"{self._endpoint.name} ({self._url}) gave no answer to {request_id} within "
                    f"{self._config.recovery_timeout_seconds:.0f} s (serving.recovery_timeout_seconds); last: {reason}"
                )
            logger.debug("%s: trying %s again: %s", self._endpoint.name, request_id, reason)
            await asyncio.sleep(backoff * random.uniform(0.5, 1.0))
            backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)
            self.calls.num_retries += 1
            self._url = await locate(self._endpoint) or self._url

    async def close(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _check(self, token_ids: list[int], sampling: dict[str, Any]) -> None:
        if not token_ids:
            raise BadRequestError("the prompt is empty")
        total = len(token_ids) + sampling["max_tokens"]
        if total > self._endpoint.max_model_len:  # vLLM would clip max_tokens and say nothing
            raise BadRequestError(
                f"{len(token_ids)} prompt tokens and max_tokens={sampling['max_tokens']} are {total}, more than "
                f"max_model_len={self._endpoint.max_model_len} of {self._endpoint.name}"
            )

    def _count(self, token_ids: list[int], generation: Generation, started: float) -> None:
        self.calls.num_requests += 1
        self.calls.input_tokens += len(token_ids)
        self.calls.output_tokens += len(generation.output_ids)
        self.calls.seconds += time.monotonic() - started

    async def _attempt(
        self, token_ids: list[int], sampling: dict[str, Any], session_id: str, request_id: str, minimum_version: int
    ) -> Generation:
        if self._session is None:
            self._session = _open_session(self._config)
        # Every attempt has an id of its own: the server may still be at work on the one that was lost.
        body = {
            "model": self._endpoint.model,
            "request_id": f"{request_id}-{next(self._attempts)}",
            "token_ids": token_ids,
            "sampling_params": {**sampling, "logprobs": 0, "detokenize": False},
        }
        if self._config.keep_cache:  # what was started under other weights has its own keys and values
            body["cache_salt"] = f"version {minimum_version}"
        url, started = f"{self._url}/inference/v1/generate", time.monotonic()
        async with self._session.post(url, json=body, headers={"x-session-id": session_id}) as response:
            if response.status in (400, 404, 413, 422):
                self.calls.num_failures += 1
                raise BadRequestError(f"{self._endpoint.name} refuses {request_id}: {(await response.text())[:2000]}")
            if response.status != 200:
                raise _Unavailable(f"status {response.status}: {(await response.text())[:500]}")
            answer = await response.json()
            return _read(answer, seconds=time.monotonic() - started)


def _open_session(config: ServingConfig) -> aiohttp.ClientSession:
    """No limit on connections (the default of 100 would throttle) and on idle ones, but one on every request's time."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=60),
        timeout=aiohttp.ClientTimeout(total=config.request_timeout_seconds, sock_connect=10),
    )


def _read(answer: dict[str, Any], *, seconds: float) -> Generation:
    choice = answer["choices"][0]
    output_ids = choice["token_ids"]
    if choice["finish_reason"] not in ("stop", "length"):
        raise _Unavailable(f"the server ended the generation: {choice['finish_reason']}")
    versions = [0] * len(output_ids)  # a server that never got a sync calls its version "default"
    for span in choice["weight_versions"] or ():
        if span["version"].isdigit():
            versions[span["start"] : span["end"]] = [int(span["version"])] * (span["end"] - span["start"])
    return Generation(
        output_ids=output_ids,
        logprobs=[token["logprob"] for token in choice["logprobs"]["content"]],
        weight_versions=versions,
        finish_reason=choice["finish_reason"],
        seconds=seconds,
    )
