"""Misuses a training service in every way that a client can, while others train on it.

    python tools/service_abuse.py [--bodies 10000] [--rounds 4] [--markdown results/service_abuse.md]

Two clients run a recipe each alone, and then beside two that flood the service and send it nonsense; their answers and weights
must be the same bits (`service.deterministic=true`). Then it gets random and mutated bodies over all of its routes: each must be
answered within 10 seconds, none by a status of 500 or above, and the memory must come back. The exit code is 1 if any of this
fails.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import orjson
from bench_rows import Result, circumstances
from service_client import Recorded, ServiceClient, record, training_body
from service_faults import WORDS, watched

from vime.service import wire
from vime.surroundings import settle

LIMIT_SECONDS, LIMIT_BYTES = 10.0, 50 * 2**20
PARALLEL, WARM_SHARE, SILENCE_SECONDS = 8, 10, 20.0
FLOODING = 16
"""Requests of the flood that are under way at the same time."""
POSTS = ["client/config", "create_session", "session_heartbeat", "telemetry", "create_model", "get_info", "unload_model"]
POSTS += ["forward_backward", "optim_step", "save_weights", "save_weights_for_sampler", "load_weights", "weights_info"]
POSTS += ["create_sampling_session", "asample", "retrieve_future", "cancel_future", "sessions/x/finish"]
GETS = ["healthz", "get_server_capabilities", "samplers/x", "sessions", "sessions/x", "training_runs?limit=x", "training_runs/x"]
GETS += ["training_runs/x/checkpoints", "checkpoints?offset=-1"]
NUMBERS: list[Any] = [None, True, -1, 0, 1, 7, 2**31, 2**63, 2**70, 1.5, -1e308, "", "x", "../../etc", [], [1], {}, {"type": "y"}]


@dataclass(kw_only=True, slots=True)
class Fuzzed:
    """The answers to bodies. Example: `Fuzzed(statuses=Counter({200: 4100, 400: 5900}), slowest=0.4, grown=2**20)`."""

    statuses: Counter[int]
    slowest: float
    grown: int
    """Bytes by which the service has grown between the first tenth of the bodies and the end."""


async def main() -> int:
    """Runs both parts; returns the exit code."""
    settle()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--bodies", type=int, default=10_000, help="random and mutated bodies (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of the recipe (default %(default)s)")
    parser.add_argument("--markdown", type=Path, help="write the page here")
    options = parser.parse_args()
    page = Result(title="The training service under misuse")
    words = [*WORDS, f"service.session_timeout_seconds={SILENCE_SECONDS}", "service.max_models=16"]
    with tempfile.TemporaryDirectory(prefix="vime-service-") as folder, watched(Path(folder) / "service", words) as service:
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=60), connector=aiohttp.TCPConnector(limit=0)
        ) as http:

            async def run(name: str, seed: int) -> tuple[Recorded, float]:
                started, client = time.monotonic(), ServiceClient(service.url, http, key=f"tml-{name}")
                await client.open()
                found = await record(client, service.folder, num_rounds=options.rounds, num_samples=2, seed=seed)
                await client.post(f"sessions/{client.session}/finish", {})
                return found, time.monotonic() - started

            names = {"first": 1, "second": 2}
            alone = {name: await run(name, seed) for name, seed in names.items()}
            sent: Counter[str] = Counter()
            bad = [asyncio.create_task(each(service.url, http, sent)) for each in (flood, nonsense)]
            try:
                beside = dict(zip(names, await asyncio.gather(*[run(*each) for each in names.items()]), strict=True))
            finally:
                for task in bad:
                    task.cancel()
                await asyncio.gather(*bad, return_exceptions=True)
            is_same = {name: alone[name][0].answers == beside[name][0].answers for name in names}
            is_same |= {name: is_same[name] and not alone[name][0].distance(beside[name][0]) for name in names}
            sys.stderr.write(f"{is_same} {sent}\n")
            process = service._run.driver
            fuzzed = await fuzz(service.url, http, options.bodies, lambda: process.memory_info().rss)
        num_starts = service.num_starts
    lines = [f"# {page.title}", "", *[f"- {line}" for line in circumstances(page)], f"- starts of the service: {num_starts}", ""]
    lines += ["| client | answers and weights beside two that misbehave | seconds alone | beside |", "|---|---|--:|--:|"]
    lines += [
        f"| {name} | {'the same bits' if is_same[name] else 'differ'} | {alone[name][1]:.0f} | {beside[name][1]:.0f} |"
        for name in names
    ]
    lines += ["", "Requests of those that misbehave meanwhile: " + ", ".join(f"{n} {what}" for what, n in sent.items()) + ".", ""]
    lines += ["| answers to random and mutated bodies | |", "|---|--:|"]
    lines += [f"| status {status} | {number} |" for status, number in sorted(fuzzed.statuses.items())]
    lines += [f"| slowest, s | {fuzzed.slowest:.1f} |", f"| growth of memory, MiB | {fuzzed.grown / 2**20:.0f} |"]
    sys.stdout.write("\n".join(lines) + "\n")
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    is_kept = fuzzed.slowest < LIMIT_SECONDS and fuzzed.grown < LIMIT_BYTES and max(fuzzed.statuses) < 500
    return 0 if all(is_same.values()) and is_kept and num_starts == 1 else 1


async def flood(url: str, http: aiohttp.ClientSession, sent: Counter[str]) -> None:
    """Trains and samples as fast as it can, on three models, and never asks for a result."""
    clients = [ServiceClient(url, http, key="tml-flood") for _ in range(3)]
    for number, client in enumerate(clients):
        await client.create_model(rank=16, seed=number)
    tokens = np.arange(1, 200)
    data = [{"tokens": tokens, "target_tokens": tokens, "weights": np.ones(len(tokens))}] * 8
    numbers = Counter[str]()

    async def one(client: ServiceClient) -> None:
        while True:
            numbers[client.model] += 1
            body = training_body(client.model, numbers[client.model], data, "cross_entropy")
            await client.post("forward_backward", body)
            asked = {"base_model": "tiny", "prompt": {"chunks": [{"tokens": [1, 2, 3]}]}, "sampling_params": {"max_tokens": 32}}
            await client.post("asample", asked)
            await client.post("session_heartbeat", {"session_id": client.session})
            sent["training calls and samples whose results nobody asks for"] += 2

    await asyncio.gather(*[one(clients[index % len(clients)]) for index in range(FLOODING)])


async def nonsense(url: str, http: aiohttp.ClientSession, sent: Counter[str]) -> None:
    """Sends large, malformed and impossible bodies in turn."""
    client = ServiceClient(url, http, key="tml-nonsense")
    await client.create_model(rank=4, seed=0)
    number = 0
    tokens = [1, 2, 3]
    wrong = [
        {"tokens": tokens, "target_tokens": [1, 2]},
        {"tokens": tokens, "target_tokens": tokens, "weights": [np.nan] * 3},
        {"tokens": tokens, "target_tokens": tokens, "weights": [1e38] * 3},
        {"tokens": [-5, 10**6, 1], "target_tokens": tokens},
    ]
    headers = {"X-API-Key": "tml-nonsense", "Content-Type": wire.CONTENT_TYPE}
    while True:
        for datum in wrong:
            number += 1
            await client.post("forward_backward", training_body(client.model, number, [datum], "cross_entropy"))
            sent["training calls with wrong shapes, weights that are not finite, and no tokens"] += 1
        about = {"session_id": client.session, "model_seq_id": number, "base_model": "tiny", "lora_config": {"rank": -number}}
        for path, body in (("forward_backward", bytes(100 * 10**6)), ("forward_backward", b"\xff" * 99), ("create_model", about)):
            given: dict[str, Any] = {"data": body} if isinstance(body, bytes) else {"json": body}
            try:
                async with http.post(f"{url}/api/v1/{path}", headers=headers, **given) as response:
                    assert 400 <= response.status < 500, (path, response.status, await response.text())
            except aiohttp.ClientError:  # the service closes a connection whose body is too large
                pass
            sent["bodies of 100 MB, malformed protobuf and negative ranks"] += 1


async def fuzz(url: str, http: aiohttp.ClientSession, number: int, memory: Any) -> Fuzzed:
    """Sends random and mutated bodies, a few at a time; then its sessions fall silent."""
    client, generator = ServiceClient(url, http, key="tml-fuzz"), random.Random(0)
    await client.create_model(rank=4, seed=0)
    found, before, ids = Fuzzed(statuses=Counter(), slowest=0.0, grown=0), 0, iter(range(number))

    async def sender() -> None:
        nonlocal before
        for index in ids:
            if index == number // WARM_SHARE:
                before = memory()
            path, body = drawn(generator, client)
            started = time.monotonic()
            headers = {
                "X-API-Key": "tml-fuzz",
                "Content-Type": wire.CONTENT_TYPE if path == "forward_backward" else "application/json",
            }
            method = "GET" if body is None else generator.choices(["POST", "DELETE"], [0.98, 0.02])[0]
            async with http.request(method, f"{url}/api/v1/{path}", data=body, headers=headers) as response:
                text = await response.read()
                found.statuses[response.status] += 1
                if response.status >= 500:
                    sys.stderr.write(f"{path}: {response.status} {text[:200]!r} to {(body or b'')[:300]!r}\n")
            found.slowest = max(found.slowest, time.monotonic() - started)

    await asyncio.gather(*[sender() for _ in range(PARALLEL)])
    await asyncio.sleep(2 * SILENCE_SECONDS)
    found.grown = memory() - before
    return found


def drawn(generator: random.Random, client: ServiceClient) -> tuple[str, bytes | None]:
    """A path and a body: that of a right request with up to three things changed, or bytes; None for a request without one."""
    if generator.random() < 0.1:
        return generator.choice(GETS), None
    path, number = generator.choice(POSTS), generator.randrange(40)
    if path == "forward_backward":
        datum = {"tokens": [1, 2, 3], "target_tokens": [2, 3, 4], "weights": [1.0, generator.choice([1.0, np.nan, -1e30]), 0.0]}
        body = training_body(
            client.model, number, [datum] * generator.randrange(3), generator.choice(["cross_entropy", "x", "ppo"])
        )
        return path, mutated(generator, body) if generator.random() < 0.7 else body
    fields: dict[str, Any] = {"session_id": client.session, "model_id": client.model, "seq_id": number, "base_model": "tiny"}
    fields |= {
        "adam_params": {"learning_rate": 1e-4},
        "lora_config": {"rank": 4},
        "model_seq_id": number,
        "path": f"name{number}",
    }
    fields |= {
        "request_id": f"{client.model}:{generator.choice(['0', 'x'])}",
        "sampling_session_seq_id": number,
        "num_samples": 1,
    }
    fields |= {"prompt": {"chunks": [{"tokens": [1, 2]}]}, "sampling_params": {"max_tokens": 2}, "ttl_seconds": 60}
    fields |= {"tinker_path": f"tinker://{client.model}/weights/name1", "optimizer": True, "user_metadata": {"a": "b"}}
    for _ in range(generator.randrange(4)):
        owner = generator.choice([fields, *[each for each in fields.values() if isinstance(each, dict)]])
        if owner:
            owner[generator.choice(list(owner))] = generator.choice(NUMBERS)
    body = orjson.dumps(fields, default=str) if 2**70 not in _leaves(fields) else str(fields).replace("'", '"').encode()
    return path, mutated(generator, body) if generator.random() < 0.15 else body


def _leaves(value: Any) -> list[Any]:
    return [leaf for each in value.values() for leaf in _leaves(each)] if isinstance(value, dict) else [value]


def mutated(generator: random.Random, body: bytes) -> bytes:
    """A body with some bytes changed, left out or put in."""
    data = bytearray(body)
    for _ in range(generator.randrange(1, 4)):
        place = generator.randrange(len(data) + 1)
        data[place : place + generator.randrange(3)] = generator.randbytes(generator.randrange(3))
    return bytes(data)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
