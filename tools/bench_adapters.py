"""Gradients of several adapters on one model: a micro-batch for each adapter, and micro-batches that mix them.

    python tools/bench_adapters.py [--size 3M] [--adapters 4] [--rank 8] [--threads 1] [--rounds 7] [--lengths short middle long]

The trainer computes one adapter after another. Here the sequences of all adapters are also packed together: the narrow products
of all A stand side by side, those of other adapters than a token's own are set to zero, and the B of all are multiplied at once.
Both ways take turns; a line says how many passes over all adapters a second the median of each is, and how far the gradients are
apart. One rank, float32, random model.
"""

import argparse
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import bench_rows
from trainer_case import SHAPES, draw_case, write_case

assert bench_rows.ROOT  # importing it makes this project's packages known

from vime.config import Family, LoraConfig, ModelConfig, Precision, RunConfig, TrainerConfig  # noqa: E402
from vime.trainer import megatron_setup  # noqa: E402

megatron_setup.set_up()

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from vime.trainer import lora, parallel, passes  # noqa: E402
from vime.trainer.engine import Engine  # noqa: E402
from vime.trainer.shard import PackedUpdate  # noqa: E402
from vime.types import Sample  # noqa: E402

LENGTHS = {"short": (16, 48), "middle": (64, 192), "long": (256, 768)}
"""Prompt and response of a sequence."""
MAX_TOKENS = 4096


def samples_of(size: str, lengths: tuple[int, int], number: int, seed: int) -> list[Sample]:
    """Random sequences of one adapter."""
    case = draw_case(size, "float32", [lengths] * number, seed=seed)
    sampled = -math.log(SHAPES[size]["vocab_size"])  # what a random model says, so that no ratio is clipped
    return [
        Sample(
            tokens=each["prompt"] + each["response"],
            loss_mask=[1] * len(each["response"]),
            columns={"logprob": [sampled] * len(each["response"]), "advantage": each["advantage"], "weight": 1.0 / number},
        )
        for each in case.sequences
    ]


class Mixture:
    """The adapters of several engines in one pass; `owners` says whose each sequence of the pass is."""

    def __init__(self, engines: list[Any], samples: list[list[Sample]]) -> None:
        self.owners = [number for number, own in enumerate(samples) for _ in own]
        self.lengths = [len(sample.tokens) for own in samples for sample in own]
        self._adapters = {
            id(layer): [engine._adapters[at][1] for engine in engines] for at, (layer, _) in enumerate(engines[0]._adapters)
        }
        self.mask: Any = None

    def begin(self, batch: Any, rank: int) -> None:
        """Notes whose the tokens of a row are."""
        owners = [torch.full((self.lengths[at],), self.owners[at]) for at in batch.sample_indices]
        owner_T = torch.cat(owners)
        assert len(owner_T) == batch.tokens_T.numel(), "a row is its sequences, one after the other"
        one_hot_TK = F.one_hot(owner_T, max(self.owners) + 1).float()
        self.mask = one_hot_TK.repeat_interleave(rank, 1).unsqueeze(1)

    def forward(self, layer: Any, input_: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        """The output of an adapted layer."""
        kind = next(base for base in type(layer).__mro__ if base.__module__.startswith("megatron"))
        output, bias = kind.forward(layer, input_, *arguments, **options)
        found = self._adapters.get(id(layer))
        if found is None or found[0] is None:
            return output, bias
        pairs = [adapter.matrices() for adapter in found]
        repeats = pairs[0][0].shape[0] // (self.mask.shape[-1] // len(found))
        blocks = self.mask.unflatten(-1, (len(found), -1)).repeat(1, 1, 1, repeats).flatten(-2)
        low = F.linear(input_, torch.cat([a for a, _ in pairs])) * blocks
        return torch.add(output, F.linear(low, torch.cat([b for _, b in pairs], 1)), alpha=found[0].scale), bias


def main() -> int:
    """Prints a line for each length and number of sequences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=[*SHAPES], default="3M")
    for name, value in (("adapters", 4), ("rank", 8), ("threads", 1), ("rounds", 7)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lengths", nargs="+", choices=[*LENGTHS], default=[*LENGTHS])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_case(draw_case(options.size, "float32", [(8, 8)]), Path(folder))
        measure(options, Path(folder))
    return 0


def measure(options: Any, folder: Path) -> None:
    """Measures all cases on one model."""
    shape = SHAPES[options.size]
    names = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size")
    about = {name: shape[name] for name in names}
    model = ModelConfig(checkpoint=str(folder), family=Family["qwen3"], num_layers=shape["num_hidden_layers"], **about)
    trainer = TrainerConfig(precision=Precision.float32, num_threads=options.threads, max_tokens_per_micro_batch=MAX_TOKENS)
    trainer.lora = LoraConfig(rank=options.rank)
    parallel.initialize(trainer, rank=0, seed=0)
    engines: list[Any] = [Engine(RunConfig(model=model, trainer=trainer))]
    engines += [
        Engine(RunConfig(model=model, trainer=trainer, seed=seed), beside=engines[0]) for seed in range(1, options.adapters)
    ]
    with torch.no_grad():
        for engine in engines:
            for buffer in (parameter for _, adapter in engine._adapters if adapter for parameter in adapter.B.parameters()):
                buffer.normal_(std=0.02)
    for name in options.lengths:
        lengths = LENGTHS[name]
        for number in (1, 4):
            samples = [samples_of(options.size, lengths, number, seed) for seed in range(options.adapters)]
            apart, mixed, difference = compare(engines, samples, options)
            words = f"{options.size}, {options.adapters} adapters x {number} {name} sequences of {sum(lengths)} tokens"
            sys.stdout.write(
                f"{words}: apart {1 / apart:.2f}, mixed {1 / mixed:.2f} passes a second; {apart / mixed:.2f} times; "
            )
            sys.stdout.write(f"gradients within {difference:.1e}\n")
            sys.stdout.flush()


def compare(engines: list[Any], samples: list[list[Sample]], options: Any) -> tuple[float, float, float]:
    """Median seconds of a pass over all adapters, apart and mixed, and the largest relative difference of a gradient."""
    adapted: Any = lora._Adapted
    mixture, forward, hidden = Mixture(engines, samples), adapted.forward, passes._hidden
    shards = [PackedUpdate(engine.config, own).shard(0) for engine, own in zip(engines, samples)]
    whole = PackedUpdate(engines[0].config, [sample for own in samples for sample in own]).shard(0)

    def begin(chunk: Any, batch: Any) -> torch.Tensor:
        mixture.begin(batch, options.rank)
        return hidden(chunk, batch)

    def apart() -> None:
        for engine, shard in zip(engines, shards):
            engine.activate()
            engine.forward_backward(shard, engine.algorithm)
            engine._passes = []

    def mixed() -> None:
        for engine in engines[1:]:
            for chunk in engine.wrapped:
                chunk.zero_grad_buffer()
        engines[0].activate()
        adapted.forward = lambda layer, *arguments, **more: mixture.forward(layer, *arguments, **more)
        passes._hidden = begin
        try:
            engines[0].forward_backward(whole, engines[0].algorithm)
        finally:
            adapted.forward, passes._hidden = forward, hidden
        engines[0]._passes = []

    found: dict[Any, list[torch.Tensor]] = {}
    seconds: dict[Any, list[float]] = {apart: [], mixed: []}
    for _ in range(options.rounds + 1):
        for way in (apart, mixed):
            started = time.perf_counter()
            way()
            seconds[way].append(time.perf_counter() - started)
            found[way] = [buffer.clone() for engine in engines for buffer in engine._gradients()]
    pairs = list(zip(found[apart], found[mixed], strict=True))
    assert all(one.abs().max() > 0 for one, _ in pairs), "an adapter has no gradient"
    difference = max(float((one - other).abs().max() / one.abs().max()) for one, other in pairs)
    return statistics.median(seconds[apart][1:]), statistics.median(seconds[mixed][1:]), difference


if __name__ == "__main__":
    sys.exit(main())
