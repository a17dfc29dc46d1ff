"""The proof that servers hold the trainer's weights: logprobs of both on the same tokens, after every sync.

The prompts are the same every time. So a sync that forgot the prefix cache is found out: the keys and values that the last
probe left under these very prompts are then those of the old weights.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial

from vime.config import ServingConfig
from vime.errors import WeightSyncError
from vime.serving.client import Generation, TokenClient
from vime.serving.topology import Endpoint

TrainerLogprobs = Callable[[list[list[int]], list[int]], Awaitable[list[list[float]]]]
"""`(tokens of each sequence, length of each response) -> logprobs of the response tokens`, at the run's temperature."""

NUM_PROMPTS = 4
PROMPT_TOKENS = 96
"""More than two blocks of the prefix cache (32 tokens on the CPU, 16 on a GPU), so that there is a prefix to cache."""
OUTPUT_TOKENS = 8
CACHED_TOKENS = 2
"""With the prefix cached: its keys and values show in the first token's logprob, and a busy server takes a while per token."""


async def probe(
    endpoint: Endpoint,
    trainer_logprobs: TrainerLogprobs,
    *,
    temperature: float,
    tolerance: float,
    vocab_size: int,
    seed: int,
    minimum_version: int = 0,
    keep_cache: bool = False,
) -> dict[str, float]:
    """Compares every server of `endpoint` with the trainer, with the cache as the sync left it and with the prefix cached.

    Returns `probe/max_difference_cold` and `_cached`, in nats; raises WeightSyncError if one is above `tolerance`.
    A server that has just restarted and is still without its weights answers with an older version than `minimum_version`: it
    is asked again.
    """
    prompts = probe_prompts(vocab_size, max_model_len=endpoint.max_model_len, seed=seed)
    config = ServingConfig(recovery_timeout_seconds=300.0, request_timeout_seconds=60.0, keep_cache=keep_cache)
    generate = partial(
        _generate_everywhere, endpoint, prompts, config, temperature=temperature, seed=seed, minimum_version=minimum_version
    )
    cold, cached = await generate(max_tokens=OUTPUT_TOKENS), await generate(max_tokens=CACHED_TOKENS)
    tokens = [(*prompt, *generation.output_ids) for prompt, generation in cold + cached]
    lengths = {sequence: len(generation.output_ids) for sequence, (_, generation) in zip(tokens, cold + cached)}
    unique = list(lengths)  # with one seed, servers that agree sample the same
    expected = await trainer_logprobs([list(sequence) for sequence in unique], list(lengths.values()))
    by_tokens = dict(zip(unique, expected, strict=True))
    differences = [
        max(abs(ours - theirs) for ours, theirs in zip(generation.logprobs, by_tokens[sequence], strict=True))
        for (_, generation), sequence in zip(cold + cached, tokens)
    ]
    metrics = {
        "probe/max_difference_cold": max(differences[: len(cold)]),
        "probe/max_difference_cached": max(differences[len(cold) :]),
    }
    _check(endpoint, metrics, differences, tolerance=tolerance, num_prompts=len(prompts))
    return metrics


def probe_prompts(vocab_size: int, *, max_model_len: int, seed: int) -> list[list[int]]:
    """The probe's prompts: random tokens, the same in every call with the same arguments."""
    generator = random.Random(seed)
    length = min(PROMPT_TOKENS, max_model_len - OUTPUT_TOKENS)
    return [[generator.randrange(vocab_size) for _ in range(length)] for _ in range(NUM_PROMPTS)]


async def _generate_everywhere(
    endpoint: Endpoint,
    prompts: list[list[int]],
    config: ServingConfig,
    *,
    temperature: float,
    seed: int,
    minimum_version: int,
    max_tokens: int,
) -> list[tuple[list[int], Generation]]:
    """One generation per server and prompt, in that order."""
    clients = [TokenClient(worker, config) for worker in endpoint.workers()]
    # Not min_tokens, which takes the end token out of the distribution and so changes the logprobs.
    sampling = {"temperature": temperature, "max_tokens": max_tokens, "ignore_eos": True, "seed": seed}
    try:
        calls = [
            client.generate(
                prompt, sampling=sampling, session_id="probe", request_id=f"probe-{index}", minimum_version=minimum_version
            )
            for client in clients
            for index, prompt in enumerate(prompts)
        ]
        return list(zip(prompts * len(clients), await asyncio.gather(*calls)))
    finally:
        await asyncio.gather(*[client.close() for client in clients])


def _check(
    endpoint: Endpoint, metrics: dict[str, float], differences: list[float], *, tolerance: float, num_prompts: int
) -> None:
    if max(metrics.values()) <= tolerance:
        return
    num_servers = len(endpoint.worker_urls)
    lines = []
    for index, url in enumerate(endpoint.worker_urls):
        cold, cached = (
            max(differences[start : start + num_prompts]) for start in (index * num_prompts, (num_servers + index) * num_prompts)
        )
        lines.append(f"  {url}: largest difference {cold:.3g} with a cold, {cached:.3g} with a cached prefix")
    raise WeightSyncError(
        f"servers of {endpoint.name} and the trainer disagree on logprobs by more than {tolerance:.3g}:\n"
        + "\n".join(lines)
        + "\nAll alike: weights were not or only partly loaded (a tied head?), or the temperature differs. "
        "One server only: it missed the sync. Raise serving.probe_tolerance only if lower precision explains it."
    )
