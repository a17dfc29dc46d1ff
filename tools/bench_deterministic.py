"""The tokens of a seeded request, alone and among others, on real servers on a CPU, and the cost of their being the same.

    python tools/bench_deterministic.py [--requests 33] [--rounds 3] [--precision float32 bfloat16] [--json PATH]

Each request goes to the server alone, then in every round together with all others in another order; prompts have several
lengths, some with a common beginning. A request repeats if its tokens, or its logprobs to the last bit, are those that it had
alone. Three ways of serving: as usual, with `deterministic=true`, and one request at a time without a prefix cache, the way in
which repetition needs no proof.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from bench_rows import Result, add_options, finish
from rollout_case import configuration, save_random_model

from vime.config import Precision, RunConfig
from vime.system import evaluation

USUAL, DETERMINISTIC, ONE = "as usual", "deterministic=true", "one request at a time"
WAYS: dict[str, dict[str, Any]] = {
    USUAL: {},
    DETERMINISTIC: {},
    ONE: {"max_num_seqs": 1, "enable_prefix_caching": False},
}
VOCABULARY = range(16, 1000)
COMMON_TOKENS, PROMPT_TOKENS, OUTPUT_TOKENS = (0, 64, 200), (3, 17, 150, 600), (8, 24, 64)
STEP_TOKENS = 512
"""Tokens of prompts that a server reads in one step, so that long prompts are read in parts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A prompt with its seed and length."""

    prompt: list[int]
    seed: int
    max_tokens: int


@dataclass(kw_only=True, slots=True)
class Measured:
    """Results of one way of serving: how many requests repeated their tokens and their logprobs, and how long it took."""

    tokens: int = 0
    logprobs: int = 0
    largest: float = 0.0
    """Difference of two logprobs of the same token."""
    together_seconds: float = 0.0
    alone_seconds: float = 0.0


def requests_of(count: int) -> list[Request]:
    """Requests that are the same every time."""
    draw = random.Random(0)
    common = draw.choices(VOCABULARY, k=max(COMMON_TOKENS))
    return [
        Request(
            prompt=common[: draw.choice(COMMON_TOKENS)] + draw.choices(VOCABULARY, k=draw.choice(PROMPT_TOKENS)),
            seed=number,
            max_tokens=draw.choice(OUTPUT_TOKENS),
        )
        for number in range(count)
    ]


async def ask(session: aiohttp.ClientSession, url: str, request: Request) -> tuple[list[int], list[float]]:
    """Tokens and logprobs."""
    sampling = {"temperature": 1.0, "seed": request.seed, "max_tokens": request.max_tokens, "logprobs": 0, "detokenize": False}
    body = {"model": "actor", "token_ids": request.prompt, "sampling_params": {**sampling, "ignore_eos": True}}
    async with session.post(f"{url}/inference/v1/generate", json=body) as response:
        choice = (await response.json())["choices"][0]
    return choice["token_ids"], [token["logprob"] for token in choice["logprobs"]["content"]]


async def measure(urls: dict[str, str], requests: list[Request], *, rounds: int) -> dict[str, Measured]:
    """Alone, then together in other orders; the ways take turns, so that a busy machine slows all of them down."""
    found = {way: Measured() for way in urls}
    alone: dict[tuple[str, int], tuple[list[int], list[float]]] = {}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(None)) as session:
        for index, request in enumerate(requests):
            for way, url in urls.items():
                started = time.monotonic()
                alone[way, index] = await ask(session, url, request)
                found[way].alone_seconds += time.monotonic() - started
        for number in range(rounds):
            order = random.Random(number).sample(range(len(requests)), k=len(requests))
            for way, url in urls.items():
                started, measured = time.monotonic(), found[way]
                replies = await asyncio.gather(*[ask(session, url, requests[index]) for index in order])
                measured.together_seconds += time.monotonic() - started
                for index, (ids, values) in zip(order, replies):
                    known_ids, known = alone[way, index]
                    measured.tokens += ids == known_ids
                    measured.logprobs += values == known
                    same = [abs(a - b) for a, b, x, y in zip(values, known, ids, known_ids) if x == y]
                    measured.largest = max(measured.largest, *same)
    return found


def configured(checkpoint: Path, precision: str, way: str) -> RunConfig:
    """One server of the model in this way."""
    config = configuration(checkpoint, policy="sticky_least_loaded")
    config.deterministic = way == DETERMINISTIC
    config.trainer.precision = Precision(precision)
    actor = config.serving.models["actor"]
    actor.num_replicas = 1
    actor.vllm_args = {**actor.vllm_args, "max_num_batched_tokens": STEP_TOKENS, **WAYS[way]}
    if "max_num_seqs" in WAYS[way]:
        actor.max_num_seqs = actor.vllm_args.pop("max_num_seqs")
    return config


@asynccontextmanager
async def served(checkpoint: Path, precision: str, folder: Path) -> AsyncIterator[dict[str, str]]:
    """Addresses of servers, one for each way; only one works at a time."""
    urls: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        for way in WAYS:
            config = configured(checkpoint, precision, way)
            run_dir = folder / f"{precision}-{way.replace(' ', '_')}"
            agents = await stack.enter_async_context(evaluation(config, run_dir, say=lambda text: None))
            (urls[way],) = agents.serving.trained_endpoint().worker_urls
        yield urls


async def compare(options: argparse.Namespace, folder: Path) -> Result:
    """Every way of serving for every precision."""
    shape = f"{options.hidden} hidden, {options.layers} layers"
    result = Result(title=f"Repeatable sampling on a CPU ({shape})", columns=("this way", USUAL))
    checkpoint = folder / "model"
    save_random_model(checkpoint, hidden=options.hidden, layers=options.layers)
    requests = requests_of(options.requests)
    num_tokens, count = sum(request.max_tokens for request in requests), options.rounds * len(requests)
    for precision in options.precision:
        async with served(checkpoint, precision, folder) as urls:
            found = await measure(urls, requests, rounds=options.rounds)
        for way, of in found.items():
            together, alone = (
                [tokens / getattr(one, name) for one in (of, found[USUAL])]
                for name, tokens in (("together_seconds", options.rounds * num_tokens), ("alone_seconds", num_tokens))
            )
            case, unit = f"{precision}, {way}", f"tokens/s, {len(requests)} requests together"
            if way != USUAL:
                result.add("deterministic", case, ours=together[0], reference=together[1], unit=unit)
                result.add("deterministic", case, ours=alone[0], reference=alone[1], unit="tokens/s, one after another")
            repeat = f"tokens {of.tokens / count:.1%}, logprobs {of.logprobs / count:.1%}"
            result.notes.append(f"{case}: of {count} requests as alone: {repeat}; largest difference {of.largest:.2g}")
    return result


def main() -> None:
    """Measures and shows the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=33)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6)
    add_options(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vime-deterministic-") as folder:
        result = asyncio.run(compare(options, Path(folder)))
    finish(result, options)


if __name__ == "__main__":
    sys.exit(main())
