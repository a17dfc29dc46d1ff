"""Routing replay on a mixture of experts: the difference between server and trainer without and with it, and what it costs.

    python tools/bench_routing_replay.py [--conversations 32] [--rounds 5] [--json PATH] [--markdown results/routing_replay.md]

A server in bfloat16 samples conversations of two turns, the second behind a cached prefix; a trainer of one rank in float32
computes the logprobs of their tokens, once as its own routers choose and once with the experts of the server (R3, arXiv
2510.11370). Two servers, one with and one without the report of experts, take turns, and so do updates of both kinds. The
models are random.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from bench_rows import Result, add_options, finish
from rollout_case import TINY

from vime.chat.served_model import ServedModel
from vime.config import RoutingReplay, RunConfig
from vime.memory.tokens import experts_bytes
from vime.preflight.compose import compose_run
from vime.serving.client import TokenClient
from vime.system import evaluation
from vime.trajectory.trajectory import Trajectory
from vime.types import Sample

VOCABULARY, PROMPT_TOKENS, REPLY_TOKENS, TOOL_TOKENS = 1024, 48, 64, 12
SHAPES: dict[str, dict[str, int]] = {
    "8 experts, 2 of them a token": {"num_experts": 8, "num_experts_per_tok": 2},
    "64 experts, 8 of them a token": {"num_experts": 64, "num_experts_per_tok": 8},
}
LAYERS, WIDTH, EXPERT_WIDTH = 4, 128, 64
WITH, WITHOUT = RoutingReplay.rollout, RoutingReplay.none


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """The distance of the trainer's logprobs from the server's, in nats, over all sampled tokens."""

    mean: float
    maximum: float
    mean_of_changed: float
    """Over the tokens that the trainer's own routers send to other experts in some layer."""


def save_experts(folder: Path, **experts: int) -> None:
    """Writes a random Qwen3-MoE with the tiny model's tokenizer."""
    import torch
    from transformers import AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    more: dict[str, Any] = {"head_dim": 32} | experts
    shape = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        moe_intermediate_size=EXPERT_WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        norm_topk_prob=True,
        initializer_range=0.1,
        eos_token_id=None,
        **more,
    )
    Qwen3MoeForCausalLM(shape).save_pretrained(folder)
    AutoTokenizer.from_pretrained(TINY).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


def configured(checkpoint: Path, replay: RoutingReplay, **experts: int) -> RunConfig:
    """A run of the model with one server in bfloat16 and a trainer in float32."""
    model = {"family": "qwen3_moe", "num_layers": LAYERS, "hidden_size": WIDTH, "num_attention_heads": 4}
    model |= {"num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 2 * WIDTH, "vocab_size": VOCABULARY}
    model |= {"moe_intermediate_size": EXPERT_WIDTH, "num_experts": experts["num_experts"], "tie_word_embeddings": "false"}
    model |= {"num_experts_per_token": experts["num_experts_per_tok"], "max_position_embeddings": 2048}
    words = [
        "+method=memagent",
        f"model.checkpoint={checkpoint}",
        *(f"model.{name}={value}" for name, value in model.items()),
        "serving.models.actor.max_model_len=2048",
        "serving.models.actor.gpu_memory_utilization=0.02",
        "+serving.models.actor.vllm_args.dtype=bfloat16",
        "trainer.precision=float32",
        "trainer.num_threads=1",
        f"trainer.routing_replay={replay.value}",
        "algorithm.kl_coefficient=0",
    ]
    return compose_run(words).config


async def sample(endpoint: Any, config: RunConfig, count: int) -> list[Sample]:
    """Conversations of two turns with random tokens of a tool between them, as the agent of a rollout has them."""
    from transformers import AutoTokenizer

    client, draw = TokenClient(endpoint, config.serving), np.random.default_rng(0)
    tokenizer = AutoTokenizer.from_pretrained(config.model.checkpoint)
    prompts = [draw.integers(16, 1000, PROMPT_TOKENS).tolist() for _ in range(-(-count // 4))]

    async def converse(number: int) -> list[Sample]:
        trajectory, tool = Trajectory(), np.random.default_rng(number).integers(16, 1000, TOOL_TOKENS).tolist()
        model = ServedModel(
            client=client,
            tokenizer=tokenizer,
            max_model_len=endpoint.max_model_len,
            trajectory=trajectory,
            session=f"s{number}",
            records_experts=True,
        )
        first = await model.complete(prompts[number % len(prompts)], max_tokens=REPLY_TOKENS)
        await model.complete([*first.prompt_ids, *first.output_ids, *tool], max_tokens=REPLY_TOKENS)
        return trajectory.samples(Sample())

    try:
        found = [each for samples in await asyncio.gather(*map(converse, range(count))) for each in samples]
    finally:
        await client.close()
    for each in found:
        each.to_columns()
        each.validate(routed_experts=True)
    return [each.with_columns(advantage=0.5, weight=1.0 / each.num_trained_tokens / len(found)) for each in found]


async def streamed(url: str, *, num: int, round_number: int) -> tuple[float, int]:
    """Seconds and bytes of this many requests at once, each with a prompt of its own."""
    draw = np.random.default_rng([round_number, num])
    sampling = {"temperature": 1.0, "max_tokens": REPLY_TOKENS, "logprobs": 0, "detokenize": False, "ignore_eos": True}
    prompts = [draw.integers(16, 1000, PROMPT_TOKENS).tolist() for _ in range(num)]

    async def ask(session: aiohttp.ClientSession, prompt: list[int]) -> int:
        body = {"model": "actor", "token_ids": prompt, "sampling_params": sampling | {"stream_interval": 64}, "stream": True}
        async with session.post(f"{url}/inference/v1/generate", json=body) as response:
            assert response.status == 200, await response.text()
            return len(await response.read())

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(None), connector=connector) as session:
        started = time.monotonic()
        sizes = await asyncio.gather(*[ask(session, prompt) for prompt in prompts])
        return time.monotonic() - started, sum(sizes)


async def serve(configs: dict[RoutingReplay, RunConfig], folder: Path, options: Any) -> tuple[list[Sample], dict[Any, Any]]:
    """Conversations with their experts, and seconds and bytes of the same requests to both servers in turn."""
    measured: dict[Any, Any] = {(kind, num): [] for kind in configs for num in (1, 64)}
    async with AsyncExitStack() as stack:
        endpoints = {}
        for kind, config in configs.items():
            agents = await stack.enter_async_context(evaluation(config, folder / kind.value, say=lambda text: None))
            endpoints[kind] = agents.serving.trained_endpoint()
        samples = await sample(endpoints[WITH], configs[WITH], options.conversations)
        for round_number in range(options.rounds + 1):
            for kind, num in measured:
                found = await streamed(endpoints[kind].worker_urls[0], num=num, round_number=round_number)
                if round_number:  # the first is a warm-up
                    measured[kind, num].append(found)
    return samples, measured


def compared(engine: Any, config: RunConfig, samples: list[Sample]) -> tuple[float, dict[RoutingReplay, Difference]]:
    """Share of the tokens that the trainer's routers send to other experts than the server's, and both differences."""
    from vime.trainer import passes
    from vime.trainer.routing_replay import Routing
    from vime.trainer.shard import PackedUpdate

    packed = PackedUpdate.of(config, engine.algorithm, samples, version=0)
    batches = engine._micro_batches(packed.shard(0), only_trained=True)
    own = [Routing(records=True) for _ in range(len(batches))]
    distances, changed, num_changed, num_known = {}, [], 0, 0
    for kind, routings in ((WITHOUT, own), (WITH, [Routing() for _ in own])):
        logprobs = passes.forward(engine.wrapped, batches.routed(routings), temperature=1.0)
        sampled = [batch.columns["logprob"] for batch in batches]
        distances[kind] = np.concatenate([(ours - theirs).abs().numpy() for ours, theirs in zip(logprobs, sampled, strict=True)])
    for routing, batch in zip(own, batches.routed(own)):
        chosen = np.stack([routing.chosen[layer].numpy() for layer in range(config.model.num_layers)], 1)
        given = batch.packed.experts_TLK.numpy()
        differs = (np.sort(chosen, -1) != np.sort(given, -1)).any((1, 2))
        known = given[:, 0, 0] != np.iinfo(given.dtype).max
        num_changed, num_known = num_changed + int((differs & known).sum()), num_known + int(known.sum())
        changed.append(differs[batch.wanted.predict_M.numpy()])
    is_changed = np.concatenate(changed)
    found = {
        kind: Difference(
            mean=float(each.mean()),
            maximum=float(each.max()),
            mean_of_changed=float(each[is_changed].mean()) if is_changed.any() else 0.0,
        )
        for kind, each in distances.items()
    }
    return num_changed / num_known, found


def timed(
    engines: dict[RoutingReplay, Any], configs: dict[RoutingReplay, RunConfig], samples: Any, rounds: int
) -> dict[Any, float]:
    """Median milliseconds of the gradients of an update, of both kinds in turn."""
    from vime.trainer.shard import PackedUpdate

    seconds: dict[Any, list[float]] = {kind: [] for kind in engines}
    for _ in range(rounds + 1):
        for kind, engine in engines.items():
            shard = PackedUpdate.of(configs[kind], engine.algorithm, samples, version=0).shard(0)
            started = time.perf_counter()
            engine.forward_backward(shard, engine.algorithm)
            seconds[kind].append(time.perf_counter() - started)
            engine._drop_gradients()
    return {kind: 1000 * statistics.median(values[1:]) for kind, values in seconds.items()}


def measure(result: Result, name: str, options: Any, folder: Path) -> None:
    """The rows of one model."""
    from vime.trainer.lockstep import LockstepEngine

    experts = SHAPES[name]
    save_experts(folder / "model", **experts)
    configs = {kind: configured(folder / "model", kind, **experts) for kind in (WITHOUT, WITH)}
    samples, measured = asyncio.run(serve(configs, folder, options))
    engines = {kind: LockstepEngine(config) for kind, config in configs.items()}
    share, found = compared(engines[WITH], configs[WITH], samples)
    replayed, own = found[WITH], found[WITHOUT]
    num_tokens = sum(sample.num_trained_tokens for sample in samples)
    for label, field in (("mean", "mean"), ("largest", "maximum"), ("mean where experts differ", "mean_of_changed")):
        pair = {"ours": getattr(replayed, field), "reference": getattr(own, field)}
        result.add("routing_replay", f"{name}: logprob difference, {label}", **pair, unit="nats")
    for num in (1, 64):
        rates = {
            kind: statistics.median(num * REPLY_TOKENS / seconds for seconds, _ in measured[kind, num])
            for kind in (WITH, WITHOUT)
        }
        case = f"{name}: server, {num} at once" if num > 1 else f"{name}: server, one alone"
        result.add("routing_replay", case, ours=rates[WITH], reference=rates[WITHOUT], unit="tokens/s")
    tokens = PROMPT_TOKENS + REPLY_TOKENS - 1
    sizes = {kind: statistics.median(size / 64 / tokens for _, size in measured[kind, 64]) for kind in (WITH, WITHOUT)}
    result.add("routing_replay", f"{name}: stream of a reply", ours=sizes[WITH], reference=sizes[WITHOUT], unit="bytes/token")
    taken = timed(engines, configs, samples, options.rounds)
    result.add("routing_replay", f"{name}: gradients of an update", ours=taken[WITH], reference=taken[WITHOUT], unit="ms")
    result.notes.append(
        f"{name}: {len(samples)} conversations with {num_tokens:,} sampled tokens; without replay the trainer's routers send "
        f"{100 * share:.1f} % of all tokens to other experts than the server did, in at least one of {LAYERS} layers. The column "
        f"has {experts_bytes(configs[WITH])} bytes for each token."
    )


def main() -> int:
    """Writes a table of both models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    add_options(parser)
    options = parser.parse_args()
    result = Result(title="Routing replay: a server in bfloat16, a trainer in float32", columns=("replayed (R3)", "not replayed"))
    with tempfile.TemporaryDirectory() as folder:
        prepare()
        for number, name in enumerate(SHAPES):
            measure(result, name, options, Path(folder) / str(number))
    finish(result, options)
    return 0


def prepare() -> None:
    """Makes this process a trainer's world of one rank."""
    from vime.config import TrainerConfig
    from vime.trainer import megatron_setup

    megatron_setup.set_up()
    from vime.trainer import parallel

    parallel.initialize(TrainerConfig(num_threads=1), rank=0, seed=0)


if __name__ == "__main__":
    sys.exit(main())
