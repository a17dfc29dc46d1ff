"""Peak memory of the logprob pass: it grows with tokens × hidden, never with tokens × vocabulary."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from vime.config import RunConfig
from vime.types import Sample

HIDDEN, LENGTH = 64, 256
SMALL, LARGE = 1024, 8192
CHUNK = 2**17
"""Logits in a chunk, 0.5 MiB; those of all 2,048 tokens are 64 MiB with the large vocabulary."""


@pytest.fixture
def make_engine(
    engine: Callable[[RunConfig], Any],
    make_config: Callable[..., RunConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[int], Any]:
    """The engine of a one-layer model with a vocabulary of the given size."""
    import transformers

    from vime.trainer import logprob

    monkeypatch.setattr(logprob, "LOGITS_IN_CHUNK", CHUNK)

    def make(vocab_size: int) -> Any:
        shape: dict[str, Any] = {"num_hidden_layers": 1, "hidden_size": HIDDEN, "intermediate_size": HIDDEN, "head_dim": 32}
        heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 512}
        folder = tmp_path / str(vocab_size)
        config = transformers.Qwen3Config(vocab_size=vocab_size, tie_word_embeddings=False, **shape, **heads)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        return engine(make_config(folder, max_tokens_per_micro_batch=2**14))

    return make


def peak_bytes(call: Callable[[], object]) -> int:
    """The most that `call` had allocated at once, beyond what was there before."""
    call()  # what is allocated once and kept does not count
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    events: list[Any] = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert events, "the profiler saw no memory"
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def passes(made: Any, num_sequences: int) -> dict[str, int]:
    """Peaks of scoring and of training on `num_sequences` sequences, in one row."""
    tokens = [torch.arange(number, number + LENGTH).tolist() for number in range(num_sequences)]
    samples = [
        Sample(tokens=ids, loss_mask=[1] * (LENGTH - 1), columns={"logprob": -7.0, "advantage": 1.0, "weight": 1e-4})
        for ids in tokens
    ]
    score = peak_bytes(lambda: made.logprobs(tokens, [LENGTH - 1] * num_sequences, 1.0))
    return {"score": score, "train": peak_bytes(lambda: made.train([samples], 0))}


def test_peak_memory_grows_with_tokens_times_hidden_and_not_with_tokens_times_vocabulary(make_engine: Callable[[int], Any]):
    small, large = make_engine(SMALL), make_engine(LARGE)
    few, many = 4, 8
    peaks = {(name, count): passes(made, count) for name, made in (("small", small), ("large", large)) for count in (few, many)}
    head = 4 * HIDDEN * (LARGE - SMALL)
    all_logits = 4 * many * LENGTH * LARGE
    for kind, copies_of_head in (("score", 0.05), ("train", 2)):
        by_vocabulary = peaks["large", many][kind] - peaks["small", many][kind]
        assert by_vocabulary <= copies_of_head * head, f"{kind}: {peaks}"
        by_tokens = peaks["large", many][kind] - peaks["large", few][kind]
        in_hidden = by_tokens / (4 * (many - few) * LENGTH * HIDDEN)
        assert 0 < in_hidden < 60, f"{kind}: {in_hidden:.1f} hidden states a token; {peaks}"
        assert peaks["large", many][kind] < all_logits / 4, f"{kind}: {peaks}"
