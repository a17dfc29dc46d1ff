"""The trainer's memory and speed, on layers of real width; in a test on the CPU on tiny ones."""

import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import torch
from sample_lengths import PAPER, TINY

from gpu_checks.exactness import engine, release
from gpu_checks.finding import Finding, at_most, between, measured
from gpu_checks.setting import Setting
from vime.config import LoraConfig, Precision, RunConfig
from vime.memory.activations import activation_bytes
from vime.memory.processes import GIB, TRAINER_RESERVE, trainer_memory
from vime.model.size import BYTES
from vime.trainer.packing import sequence_flops

WARM_UP, REPEATS = 4, 3
"""Updates before the timed ones, in which kernels are compiled and the allocator learns the sizes, and timed ones."""
RANK = 16
"""Rank of the adapters, as in the recipes `memagent_lora_…`."""
WHOLE = {"Qwen2.5-7B": "qwen2", "Qwen3-8B": "qwen3"}
"""Models that are trained whole by adapters on one device, with their families."""
EQUAL = (3072, 1024)
"""Prompt and response of the sequences whose rate is measured."""


def activations(setting: Setting) -> Iterator[Finding]:
    """The memory that a row keeps for the backward pass, counted and as the device allocates it, beside the plan's estimate."""
    from vime.trainer.saved_tensors import forward, kept_bytes

    cases = {"wide": setting.wide_model(), "experts": setting.small_model("qwen3_moe")}
    for name, folder in cases.items():
        for recompute in (False, True):
            # on the CPU attention widens short bfloat16 sequences, which no device does
            precision = Precision.bfloat16 if setting.on_cuda else Precision.float32
            config = setting.config(folder, precision=precision, recompute=recompute)
            trained = engine(config)
            lengths = _row(setting)
            planned = _planned(config, sum(lengths))
            label = f"{name}{', recomputed' if recompute else ''}: "
            forward(trained.model, lengths)  # what is allocated once and kept does not count
            found = kept_bytes(trained.model, lengths)
            yield between("activations", label + "counted / planned", found / planned, 0.85, 1.15)
            if setting.on_cuda:
                before = torch.cuda.memory_allocated()
                hidden = forward(trained.model, lengths)
                allocated = torch.cuda.memory_allocated() - before - hidden.nbytes  # nor do the states themselves
                yield between("activations", label + "allocated / planned", allocated / planned, 0.85, 1.15)
                del hidden
            del trained
            release(setting)


def peak(setting: Setting) -> Iterator[Finding]:
    """The most that a training step has allocated at once, beside the plan's sum; only a device tells."""
    if not setting.on_cuda:
        return
    for recompute in (False, True):
        config = _wide(setting, recompute=recompute)
        trained = engine(config)
        prompt, response = EQUAL
        lengths = [EQUAL] * (setting.max_tokens // (prompt + response))
        samples = setting.samples(lengths, vocabulary=config.model.vocab_size)
        trained.train([samples], 0)
        torch.cuda.reset_peak_memory_stats()
        trained.train([samples], 1)
        found, planned = torch.cuda.max_memory_allocated(), sum(trainer_memory(config).values())
        label = "recomputed" if recompute else "all kept"
        yield measured("peak", f"{label}: planned", planned / GIB, unit="GiB")
        yield between("peak", f"{label}: allocated / planned", found / planned, 0.7, 1.05)
        reserved = torch.cuda.max_memory_reserved()
        free, total = torch.cuda.mem_get_info()
        beside = total - free - torch.cuda.memory_reserved()
        yield measured("peak", f"{label}: gaps, given back when wanted", (reserved - found) / GIB, unit="GiB")
        yield at_most("peak", f"{label}: context and libraries", beside / GIB, TRAINER_RESERVE / GIB, unit="GiB")
        del trained
        release(setting)


def speed(setting: Setting) -> Iterator[Finding]:
    """Tokens per second of an update, and its share of the rate of plain matrix products."""
    rate = matrix_rate(setting)
    yield measured("speed", "plain matrix products", rate / 1e12, unit="TFLOP/s")
    config = _wide(setting)
    trained = engine(config)
    lengths = [EQUAL] * 8 if not setting.tiny else [(48, 16)] * 8
    yield from _updates(setting, trained, lengths, rate, name="equal lengths")
    yield from _updates(setting, trained, _memagent(setting), rate, name="MemAgent's lengths")
    yield from _moves(setting, trained)
    del trained
    release(setting)
    trained = engine(_wide(setting, rank=RANK))
    yield from _updates(setting, trained, lengths, rate, name=f"LoRA {RANK}, equal lengths")
    del trained
    release(setting)
    config = setting.config(setting.wide_experts(), precision=Precision.bfloat16)
    config.trainer.lr = 1e-6
    trained = engine(config)
    yield from _updates(setting, trained, lengths, rate, name="experts, equal lengths")
    del trained
    release(setting)


def adapters(setting: Setting) -> Iterator[Finding]:
    """Whole models by adapters on one device, recomputed, with a KL to the reference: memory beside the plan, speed, syncs."""
    for name, family in WHOLE.items():
        config = setting.config(
            setting.whole_model(family), precision=Precision.bfloat16, recompute=True, lr=1e-5, lora=LoraConfig(rank=RANK)
        )
        config.algorithm.kl_coefficient = 0.001
        trained = engine(config)
        tokens = setting.max_tokens
        lengths = [(tokens * 3 // 16, tokens // 16)] * 8
        samples = setting.samples(lengths, vocabulary=config.model.vocab_size)
        trained.train([samples], 0)
        if setting.on_cuda:
            torch.cuda.reset_peak_memory_stats()
        results = [trained.train([samples], number) for number in range(1, REPEATS + 1)]
        if setting.on_cuda:
            found, planned = torch.cuda.max_memory_allocated(), sum(trainer_memory(config).values())
            yield measured("adapters", f"{name}: planned", planned / GIB, unit="GiB")
            yield between("adapters", f"{name}: allocated / planned", found / planned, 0.7, 1.05)
        seconds = median(result["train/seconds"] for result in results)
        yield measured("adapters", f"{name}: {len(lengths)} sequences", 2 * tokens / seconds, unit="tokens/s")
        sizes = []
        for way, export in (("merged weights", "export"), ("adapters", "export_adapter")):
            for turn in ("first", "second"):
                synchronize(setting)
                started = time.perf_counter()
                size = sum(tensor.nbytes for _, tensor in getattr(trained, export)())
                synchronize(setting)
                yield measured("adapters", f"{name}: {turn} export of {way}", time.perf_counter() - started, unit="s")
            sizes.append(size)
        limit = 1.0 if setting.tiny else 0.02
        yield at_most("adapters", f"{name}: bytes of a sync by adapters", sizes[1] / sizes[0], limit, unit="of the weights'")
        yield from _moves(setting, trained, check="adapters", name=f"{name}: ")
        del trained
        release(setting)


def matrix_rate(setting: Setting) -> float:
    """FLOP/s of square products in bfloat16."""
    size = 256 if setting.tiny else 8192
    one, other = (torch.randn(size, size, device=setting.device, dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(4):
        synchronize(setting)
        started = time.perf_counter()
        for _ in range(4):
            torch.mm(one, other)
        synchronize(setting)
        times.append((time.perf_counter() - started) / 4)
    return 2.0 * size**3 / median(times[1:])


def synchronize(setting: Setting) -> None:
    """Waits for the device."""
    if setting.on_cuda:
        torch.cuda.synchronize()


def _updates(setting: Setting, trained: Any, lengths: Sequence[tuple[int, int]], rate: float, *, name: str) -> Iterator[Finding]:
    samples = setting.samples(lengths, vocabulary=trained.config.model.vocab_size)
    results = [trained.train([samples], number) for number in range(WARM_UP + REPEATS)][WARM_UP:]
    seconds = median(result["train/seconds"] for result in results)
    tokens = sum(prompt + response for prompt, response in lengths)
    yield measured("speed", f"{name}: {len(lengths)} sequences", tokens / seconds, unit="tokens/s")
    yield measured("speed", f"{name}: useful tokens", 100 * results[-1]["train/useful_token_share"], unit="%")
    if not trained.config.trainer.lora.rank:
        share = _flops(trained.config, lengths) / seconds / rate
        yield measured("speed", f"{name}: of the matrix rate (MFU)", 100 * share, unit="%")
    yield at_most("speed", f"{name}: loss", abs(results[-1]["train/loss"]), 1e3)


def _moves(setting: Setting, trained: Any, *, check: str = "speed", name: str = "") -> Iterator[Finding]:
    """Seconds in which a rank's memory leaves the device and comes back; the first time host memory is page-locked for it."""
    if not setting.on_cuda:
        return
    before = torch.cuda.memory_allocated()
    for turn in ("first", "second"):
        seconds = []
        for call in (lambda: trained.offload(weights=True), trained.onload):
            synchronize(setting)
            started = time.perf_counter()
            call()
            synchronize(setting)
            seconds.append(time.perf_counter() - started)
        for move, one in zip(("offload", "onload"), seconds):
            yield measured(check, f"{name}{turn} {move} of {before / GIB:.1f} GiB with gradients", one, unit="s")


def _flops(config: RunConfig, lengths: Sequence[tuple[int, int]]) -> float:
    """Forward and backward, logits for responses only; recomputation does not count."""
    total = sum(sequence_flops(config.model, prompt + response) for prompt, response in lengths)
    prompts = sum(prompt for prompt, _ in lengths)
    return total - 6.0 * config.model.hidden_size * config.model.vocab_size * prompts


def _memagent(setting: Setting) -> list[tuple[int, int]]:
    return TINY["MemAgent"](2, 0) if setting.tiny else PAPER["MemAgent"](2, 0)


def _wide(setting: Setting, *, recompute: bool = False, rank: int = 0) -> RunConfig:
    lora = LoraConfig(rank=rank)
    config = setting.config(setting.wide_model(), precision=Precision.bfloat16, recompute=recompute, lora=lora)
    config.trainer.lr = 1e-6
    return config


def _planned(config: RunConfig, tokens: int) -> float:
    """The plan's activations without those after the layers; with recomputation without the layer that is whole."""
    import copy

    found = activation_bytes(config, tokens) - tokens * config.model.hidden_size * BYTES[config.trainer.precision]
    if not config.trainer.recompute:
        return found
    one, none = copy.deepcopy(config), copy.deepcopy(config)
    one.trainer.recompute = none.trainer.recompute = False
    one.model.num_layers, none.model.num_layers = 1, 0
    return found - activation_bytes(one, tokens) + activation_bytes(none, tokens)


def _row(setting: Setting) -> list[int]:
    """Lengths that fill a row, all different enough to be attended to one by one."""
    return [setting.max_tokens // 2, setting.max_tokens // 4, setting.max_tokens // 8, setting.max_tokens // 8]
