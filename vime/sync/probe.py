"""The proof that servers hold the trainer's weights: logprobs of both on the same tokens, after every sync.

The prompts are the same every time. So a sync that forgot the prefix cache is found out: the keys and values that the last
probe left under these very prompts are then those of the old weights.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

from vime.config import Precision, ServingConfig
from vime.errors import ServerError, WeightSyncError
from vime.serving.client import TokenClient
from vime.serving.topology import Endpoint

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tolerance:
    """The distance that servers may have from the trainer, in nats. Example: `Tolerance(largest=5e-4, mean=2.5e-5)`."""

    largest: float
    mean: float

    @classmethod
    def of(
        cls, precision: Precision, largest: float | None = None, *, has_experts: bool = False, is_quantized: bool = False
    ) -> "Tolerance":
        """The distance that rounding explains in a precision, or else `largest`, in which case the mean follows in proportion.

        Rounding has a longer tail in float32: between float32 and float64 the largest difference was 35 times the mean (7e-5 and
        2e-6 nats over 15,000 tokens behind random prompts, two layers on a CPU), in bfloat16 three times (0.051 and 0.018 nats).
        A pretrained model is further apart in bfloat16, because its logits are large and vLLM rounds them (SmolLM2-135M: 0.33 and
        0.068 nats). Servers that have missed a sync are found by the mean.

        For a mixture of experts in bfloat16 a single difference says nothing: where two experts have nearly the same weight,
        rounding may choose another one on each side, and the logprob of that token is another expert's. So only the mean is
        bounded; nor of servers with 8-bit weights or caches, where `largest` bounds the mean: a trained model is 0.02 nats away
        in the mean and more than 1 in its tail, a random one with large logits 0.4 in the mean.
        """
        usual = _BY_PRECISION[precision]
        if is_quantized:
            return cls(largest=math.inf, mean=QUANTIZED_MEAN if largest is None else largest)
        if has_experts and precision is Precision.bfloat16 and largest is None:
            return replace(usual, largest=math.inf)
        return usual if largest is None else cls(largest=largest, mean=largest * usual.mean / usual.largest)


_BY_PRECISION = {
    Precision.float32: Tolerance(largest=5e-4, mean=2.5e-5),
    Precision.bfloat16: Tolerance(largest=1.0, mean=0.2),
}
QUANTIZED_MEAN = 0.5
"""Largest mean difference of a server with 8-bit weights or caches; the proof has compared each of its layers before."""
TrainerLogprobs = Callable[[list[list[int]], list[int]], Awaitable[list[list[float]]]]
"""`(tokens of each sequence, length of each response) -> logprobs of the response tokens`, at the run's temperature."""

NUM_PROMPTS = 4
PROMPT_TOKENS = 72
"""More than two blocks of the prefix cache (32 tokens on the CPU, 16 on a GPU), so that there is a prefix to cache."""
OUTPUT_TOKENS = 8
SILENCE_TIMEOUT_SECONDS = 60.0
CACHED_TOKENS = 2
"""Tokens generated with the prefix cached: its keys and values affect the first token's logprob, and a busy server is slow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The sample of a server behind one prompt. Example: `Answer(tokens=(5, 9, 2), logprobs=[-0.1], is_cached=False)`."""

    tokens: tuple[int, ...]
    logprobs: list[float]
    is_cached: bool


async def probe(
    endpoint: Endpoint,
    trainer_logprobs: TrainerLogprobs,
    *,
    temperature: float,
    tolerance: Tolerance,
    vocab_size: int,
    seed: int,
    minimum_version: int = 0,
    serving: ServingConfig | None = None,
) -> dict[str, float]:
    """Compares every server of `endpoint` with the trainer, with the cache as the sync left it and with the prefix cached.

    Returns `probe/max_difference_cold` and `_cached` and `probe/mean_difference`, in nats, `probe/num_servers`, and
    `probe/seconds`; raises WeightSyncError if a difference, or the mean of a server's, is above `tolerance`. A server that has
    just restarted and is still without its weights answers with an older version than `minimum_version`: it is asked again, for
    `serving.recovery_timeout_seconds`. After that it is left out while there are others; raises ServerError if there is none.
    With no server at all there is nothing to compare.
    """
    started = time.monotonic()
    prompts = probe_prompts(vocab_size, max_model_len=endpoint.max_model_len, seed=seed)
    config = replace(serving or ServingConfig(), silence_timeout_seconds=SILENCE_TIMEOUT_SECONDS)
    ask = partial(_generate, prompts, config, temperature=temperature, seed=seed, minimum_version=minimum_version)
    answers = await asyncio.gather(*[ask(worker) for worker in endpoint.workers()], return_exceptions=True)
    found: dict[str, list[Answer]] = {}
    for url, answer in zip(endpoint.worker_urls, answers, strict=True):
        if isinstance(answer, ServerError):
            logger.warning("the probe leaves out %s: %s", url, answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found[url] = answer
    if not found and (lost := [answer for answer in answers if isinstance(answer, ServerError)]):
        raise lost[0]
    metrics = {"probe/num_servers": float(len(found))}
    if not found:
        return metrics
    expected = await _expected([answer for some in found.values() for answer in some], trainer_logprobs)
    differences = {url: _differences(some, expected) for url, some in found.items()}
    cold, cached, mean = (max(of_server[index] for of_server in differences.values()) for index in range(3))
    _check(endpoint.name, differences, tolerance=tolerance)
    return {
        **metrics,
        "probe/max_difference_cold": cold,
        "probe/max_difference_cached": cached,
        "probe/mean_difference": mean,
        "probe/seconds": time.monotonic() - started,
    }


def probe_prompts(vocab_size: int, *, max_model_len: int, seed: int) -> list[list[int]]:
    """The probe's prompts: random tokens, the same in every call with the same arguments."""
    generator = random.Random(seed)
    length = min(PROMPT_TOKENS, max_model_len - OUTPUT_TOKENS)
    return [[generator.randrange(vocab_size) for _ in range(length)] for _ in range(NUM_PROMPTS)]


async def _generate(
    prompts: list[list[int]], config: ServingConfig, worker: Endpoint, *, temperature: float, seed: int, minimum_version: int
) -> list[Answer]:
    """Returns one server's answers to every prompt, with a cold prefix and then with a cached one."""
    client, found = TokenClient(worker, config), []
    try:
        for max_tokens, is_cached in ((OUTPUT_TOKENS, False), (CACHED_TOKENS, True)):
            # Not min_tokens, which takes the end token out of the distribution and so changes the logprobs.
            sampling = {"temperature": temperature, "max_tokens": max_tokens, "ignore_eos": True, "seed": seed}
            calls = [
                client.generate(
                    prompt, sampling=sampling, session_id="probe", request_id=f"probe-{index}", minimum_version=minimum_version
                )
                for index, prompt in enumerate(prompts)
            ]
            found += [
                Answer(tokens=(*prompt, *turn.output_ids), logprobs=list(turn.logprobs), is_cached=is_cached)
                for prompt, turn in zip(prompts, await asyncio.gather(*calls), strict=True)
            ]
        return found
    finally:
        await client.close()


async def _expected(answers: list[Answer], trainer_logprobs: TrainerLogprobs) -> dict[tuple[int, ...], list[float]]:
    """The trainer's logprobs of the sampled tokens, by an answer's tokens.

    With one seed, servers that agree sample the same tokens, and a short answer is the beginning of a long one, so one sequence
    serves for all.
    """
    lengths = {answer.tokens: len(answer.logprobs) for answer in sorted(answers, key=lambda answer: -len(answer.tokens))}
    holder = {tokens: next(other for other in lengths if other[: len(tokens)] == tokens) for tokens in lengths}
    asked = list(dict.fromkeys(holder.values()))
    logprobs = await trainer_logprobs([list(tokens) for tokens in asked], [lengths[tokens] for tokens in asked])
    known = dict(zip(asked, logprobs, strict=True))
    return {tokens: known[longest][: lengths[tokens]] for tokens, longest in holder.items()}


def _differences(answers: list[Answer], expected: dict[tuple[int, ...], list[float]]) -> tuple[float, float, float]:
    """The largest difference with a cold and with a cached prefix, and the mean of all."""
    found: dict[bool, list[float]] = {False: [], True: []}
    for answer in answers:
        pairs = zip(answer.logprobs, expected[answer.tokens], strict=True)
        found[answer.is_cached] += [abs(ours - theirs) for ours, theirs in pairs]
    cold, cached = (math.nan if any(map(math.isnan, some)) else max(some) for some in (found[False], found[True]))
    everything = found[False] + found[True]
    return cold, cached, sum(everything) / len(everything)


def _check(name: str, differences: dict[str, tuple[float, float, float]], *, tolerance: Tolerance) -> None:
    limits = (tolerance.largest, tolerance.largest, tolerance.mean)
    if all(found <= limit for of_server in differences.values() for found, limit in zip(of_server, limits)):  # which no NaN is
        return
    lines = [
        f"  {url}: largest difference {cold:.3g} with a cold, {cached:.3g} with a cached prefix, mean {mean:.3g}"
        for url, (cold, cached, mean) in differences.items()
    ]
    raise WeightSyncError(
        f"servers of {name} and the trainer disagree on logprobs by more than {limits[0]:.3g}, or {limits[2]:.3g} in the mean:\n"
        + "\n".join(lines)
        + "\nAll alike: weights were not or only partly loaded (a tied head?), or the temperature differs. "
        "One server only: it missed the sync. Raise serving.probe_tolerance only if lower precision explains it."
    )
