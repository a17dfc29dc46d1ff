"""The speed of a vLLM server on this machine, prefill and decode apart, and the effects of its settings.

    python tools/bench_generation.py [--sizes 1M 35M] [--precisions float32] [--settings block_128 …] [--rounds 3]
                                     [--checkpoint FOLDER] [--json PATH] [--markdown PATH]

Two real servers of one model take turns, each with one core for the model: one as a run starts it, and one with another setting.
Their requests go straight to them. The models are random but for `trained`, the tiny MemAgent model of `--checkpoint`, which
reads the chunks of its task. For speculation a note says whether the logprobs of sampled tokens are those of a server that does
not speculate. `matrix products alone` are the products that a load needs, at the rate of 1024 × 1024 ones on all cores.
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import aiohttp
from bench_rows import Result, add_options, finish, save
from rollout_case import TINY
from trainer_case import SHAPES, draw_case, flops, write_case

from agentic.memagent.chunks import ChunkAt, Splitter
from agentic.memagent.prompts import MEMORY_PROMPT, NO_MEMORY
from agentic.memagent.tiny.task import generate_rows
from vime.config import RunConfig
from vime.preflight.compose import compose_run
from vime.report.machine_description import matrix_product_rate
from vime.runtime import Runtime
from vime.serving import flags, programs
from vime.workers.agents import launched

TRAINED = "trained"
AS_STARTED, OTHER = "actor", "other"
CHUNK_TOKENS, MEMORY_TOKENS = 96, 24
"""Sizes of the tiny task."""
COMPILED, SPECULATES, ALL_CORES = "compiled", "speculates", "all_cores"
SETTINGS: dict[str, dict[str, Any]] = {
    ALL_CORES: {},
    "block_128": {"block_size": 128},
    "no_prefix_cache": {"enable_prefix_caching": False},
    "prefill_8192": {"max_num_batched_tokens": 8192},
    COMPILED: {"enforce_eager": False},
    SPECULATES: {
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    },
}
"""vLLM's arguments of the second server. With `all_cores` it has all cores instead of one; with `compiled` both servers have
PyTorch's compiler."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Requests that are sent at once.

    Example: `Load(name="prefill", prompts=[[5, 9, …], …], max_tokens=1, unit="read tokens/s")`.
    """

    name: str
    prompts: list[list[int]] = field(repr=False)
    max_tokens: int
    num_samples: int = 1
    """Samples of each prompt."""
    temperature: float = 1.0
    as_one: bool = False
    """True if the samples of a prompt are one request."""
    unit: str = "sampled tokens/s"

    @property
    def num_counted(self) -> int:
        """Tokens that the rate counts: prompt tokens if prompts are measured, otherwise sampled ones."""
        if self.unit == "read tokens/s":
            return sum(map(len, self.prompts))
        return len(self.prompts) * self.num_samples * self.max_tokens

    def requests(self) -> Iterator[dict[str, Any]]:
        """The bodies."""
        for prompt in self.prompts:
            for _ in range(1 if self.as_one else self.num_samples):
                sampling = {"temperature": self.temperature, "max_tokens": self.max_tokens, "ignore_eos": True, "logprobs": 0}
                sampling |= {"detokenize": False, "n": self.num_samples if self.as_one else 1}
                yield {"token_ids": prompt, "sampling_params": sampling}


def loads_of(size: str) -> list[Load]:
    """Loads: long prompts, long replies and groups for a random model, the first turn of its task for the trained one."""
    if size == TRAINED:
        return [Load(name="MemAgent's first turn", prompts=task_prompts(64), max_tokens=MEMORY_TOKENS)]

    def prompts(count: int, length: int) -> list[list[int]]:
        generator = random.Random(length)
        return [generator.choices(range(16, 1000), k=length) for _ in range(count)]

    return [
        Load(name="prefill", prompts=prompts(16, 1024), max_tokens=1, unit="read tokens/s"),
        Load(name="decode", prompts=prompts(64, 16), max_tokens=96),
        Load(name="groups", prompts=prompts(8, 512), max_tokens=16, num_samples=8),
    ]


def task_prompts(count: int) -> list[list[int]]:
    """The first turn of MemAgent on generated documents."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY)
    prompts = []
    for row in generate_rows(split="train", num_docs=20, num_items=count, seed=0):
        chunks = Splitter().split(
            row["context"], tokenizer=tokenizer, chunk_tokens=CHUNK_TOKENS, max_chunks=1, chunk_at=ChunkAt.paragraph
        )
        content = MEMORY_PROMPT.format(problem=row["extra_info"]["question"], memory=NO_MEMORY, chunk=chunks[0])
        message = [{"role": "user", "content": content}]
        prompts.append(tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False))
    return prompts


async def ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> dict[str, Any]:
    """The reply of a server."""
    async with session.post(f"{url}/inference/v1/generate", json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def seconds_of(session: aiohttp.ClientSession, url: str, load: Load) -> float:
    """Seconds from the first request to the last reply, with nothing cached before."""
    async with session.post(f"{url}/reset_prefix_cache") as response:
        assert response.status == 200, await response.text()
    started = time.monotonic()
    replies = await asyncio.gather(*[ask(session, url, body) for body in load.requests()])
    seconds = time.monotonic() - started
    counts = [len(choice["token_ids"]) for reply in replies for choice in reply["choices"]]
    assert counts == [load.max_tokens] * len(load.prompts) * load.num_samples, f"{load.name}: {counts}"
    return seconds


async def largest_difference(session: aiohttp.ClientSession, urls: dict[str, str], load: Load) -> float:
    """Largest difference in nats between the second server's logprobs and those that the first gives the same tokens."""

    async def difference(body: dict[str, Any]) -> float:
        (choice,) = (await ask(session, urls[OTHER], body))["choices"]
        tokens, returned = choice["token_ids"], [entry["logprob"] for entry in choice["logprobs"]["content"]]
        sampling = {"max_tokens": 1, "prompt_logprobs": 0, "temperature": 1.0}
        again = await ask(session, urls[AS_STARTED], {"token_ids": body["token_ids"] + tokens, "sampling_params": sampling})
        known = again["prompt_logprobs"][len(body["token_ids"]) :]
        found = [entry[str(token)]["logprob"] for token, entry in zip(tokens, known, strict=True)]
        return max(abs(a - b) for a, b in zip(returned, found, strict=True))

    return max(await asyncio.gather(*map(difference, load.requests())))


def configuration(checkpoint: Path, *, precision: str, setting: str) -> RunConfig:
    """Two servers of one checkpoint, the second with a setting."""
    config = compose_run(
        [
            "+method=memagent",
            f"model.checkpoint={checkpoint}",
            f"trainer.precision={precision}",
            f"+serving.models.{OTHER}={{checkpoint: {checkpoint}, max_model_len: 2048, gpu_memory_utilization: 0.05}}",
        ]
    ).config
    actor, other = config.serving.models[AS_STARTED], config.serving.models[OTHER]
    other.vllm_args = actor.vllm_args | SETTINGS[setting]
    return config


def needed_flops(size: str, load: Load) -> float:
    """FLOPs of the forward passes: every token is read once, those before the last of a sequence are not projected."""
    total = 0.0
    for prompt in load.prompts:
        total += flops(size, [(len(prompt) + load.max_tokens - 1, load.max_tokens)]) / 3
    return total


async def measure_pair(
    size: str, precision: str, setting: str, checkpoint: Path, folder: Path, rounds: int, result: Result, *, is_first: bool
) -> None:
    """Rows of one setting; those of the server as a run starts it once for each model."""
    config = configuration(checkpoint, precision=precision, setting=setting)
    every = sorted(os.sched_getaffinity(0))

    def cores(position: int, _: int) -> list[int]:
        return every if position and setting == ALL_CORES else every[-1:]

    vocabulary = 0 if setting == COMPILED else flags.SMALL_VOCABULARY
    with (
        patch.object(programs, "_cpus", cores),
        patch.object(flags, "SMALL_VOCABULARY", vocabulary),
        Runtime(config, say=lambda text: None) as runtime,
    ):
        async with launched(config, folder, runtime, policy=None) as agents:
            await agents.ready(lambda text: None)
            endpoints = agents.serving.endpoints()
            urls = {name: endpoints[name].worker_urls[0] for name in (AS_STARTED, OTHER)}
            await compare(size, precision, setting, urls, rounds, result, is_first=is_first)


async def compare(
    size: str, precision: str, setting: str, urls: dict[str, str], rounds: int, result: Result, *, is_first: bool
) -> None:
    """The loads on both servers, which take turns."""
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        for load in loads_of(size):
            seconds: dict[str, list[float]] = {AS_STARTED: [], OTHER: [], "one request": []}
            as_one = replace(load, as_one=True)
            for number in range(rounds + 1):  # the first does not count
                names = (AS_STARTED, OTHER) if number % 2 else (OTHER, AS_STARTED)
                for name in names:
                    seconds[name].append(await seconds_of(session, urls[name], load))
                if is_first and load.num_samples > 1:
                    seconds["one request"].append(await seconds_of(session, urls[AS_STARTED], as_one))
            rates = {name: load.num_counted / median(found[1:]) for name, found in seconds.items() if found}
            case = f"{size} {precision}, {load.name}"
            if is_first and size != TRAINED and load.num_samples == 1:
                products = load.num_counted / (needed_flops(size, load) / (1e9 * matrix_product_rate(dtype=precision)))
                result.add(
                    "generation",
                    f"{case}: beside matrix products alone",
                    ours=rates[AS_STARTED],
                    reference=products,
                    unit=load.unit,
                )
            if "one request" in rates:
                result.add(
                    "generation",
                    f"{case}: {load.num_samples} samples as one request",
                    ours=rates["one request"],
                    reference=rates[AS_STARTED],
                    unit=load.unit,
                )
            result.add("generation", f"{case}: {setting}", ours=rates[OTHER], reference=rates[AS_STARTED], unit=load.unit)
            if setting == SPECULATES and load.num_samples == 1:
                difference = await largest_difference(session, urls, load)
                result.notes.append(
                    f"{case}: logprobs of sampled tokens differ by at most {difference:.0e} nats between the server that "
                    "speculates and one that does not"
                )


async def measure(options: argparse.Namespace, folder: Path) -> Result:
    """Every model, precision and setting."""
    result = Result(title="Generation on one server", columns=("with the setting", "one core"))
    result.notes += [f"`{setting}`: {SETTINGS[setting] or 'the second server has all cores'}" for setting in options.settings]
    result.notes.append(f"Medians of {options.rounds} rounds after one that does not count.")
    for size in options.sizes:
        checkpoint = options.checkpoint if size == TRAINED else folder / size
        if size != TRAINED:
            write_case(draw_case(size, "float32", []), checkpoint)
            for file in TINY.glob("*token*"):
                (checkpoint / file.name).write_bytes(file.read_bytes())
        for precision in options.precisions:
            for number, setting in enumerate(options.settings):
                place = folder / f"{size}-{precision}-{setting}"
                await measure_pair(size, precision, setting, checkpoint, place, options.rounds, result, is_first=number == 0)
                save(result, options)
    return result


def main() -> None:
    """Measures and shows the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = [name for name in SHAPES if name != "7B"]
    parser.add_argument("--sizes", nargs="+", choices=[TRAINED, *sizes], default=[TRAINED, "1M", "35M"])
    parser.add_argument("--precisions", nargs="+", choices=["float32", "bfloat16"], default=["float32"])
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--checkpoint", type=Path, default=TINY, help="of the tiny MemAgent model, for `trained`")
    add_options(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vime-generation-") as folder:
        result = asyncio.run(measure(options, Path(folder)))
    finish(result, options)


if __name__ == "__main__":
    sys.exit(main())
