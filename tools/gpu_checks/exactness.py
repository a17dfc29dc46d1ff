"""The trainer's results: logits beside Hugging Face's, a step beside the CPU's, checkpoints and offloading bit for bit."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from gpu_checks.finding import Finding, at_most
from gpu_checks.setting import FAMILIES, Setting
from vime.config import LoraConfig, Precision, RunConfig

LENGTHS = [40, 33, 20, 12, 5]
STEP_LENGTHS = [(20, 30), (31, 9), (5, 45), (12, 12), (40, 3)]
STEPPED = {"qwen2": ("qwen2", 0), "qwen3_moe": ("qwen3_moe", 0), "qwen3, LoRA": ("qwen3", 4)}
"""Cases of a step: the family, and the rank of its adapters, 0 for training of all weights."""
SAVED = {"": 0, "LoRA: ": 4}
"""Cases of a checkpoint and of offloading, with the rank of their adapters."""
FLOAT32_TOLERANCE = 1e-4
"""A share of the largest logit; kernels that add in another order differ by about 1e-6 of it."""
BFLOAT16_RATIO = 2.0
"""Our mean distance from Hugging Face in float32, as a multiple of its own in bfloat16."""
HEAD = ("logprobs", "entropies", "gradient of the states", "gradient of the weight")
HEAD_TOLERANCE, BFLOAT16_TOLERANCE = 1e-5, 1e-2
"""Shares of the norm: for results in float32, and for results that are rounded to bfloat16, to 1/256 of each value."""
STEP_TOLERANCE = 1e-3
DIFFERING_SHARE = 0.01
"""Adam's first steps are close to the sign of the gradient, so a gradient near zero may go either way."""


def engine(config: RunConfig) -> Any:
    """A trainer rank without Ray."""
    from vime.trainer.lockstep import LockstepEngine

    return LockstepEngine(config)


def weights(trained: Any) -> dict[str, torch.Tensor]:
    """Copies of the exported weights, with the adapters' if there are any, on the CPU."""
    tensors = [*trained.export(), *(trained.export_adapter() if trained.config.trainer.lora.rank else [])]
    return {name: tensor.detach().float().cpu().clone() for name, tensor in tensors}


def logits(setting: Setting) -> Iterator[Finding]:
    """A packed row of random tokens through our model and through Hugging Face's, for each family and precision."""
    for family in FAMILIES:
        folder = setting.small_model(family)
        sequences = _sequences(setting.config(folder).model.vocab_size)
        wanted = _hugging_face(setting, folder, sequences, torch.float32)
        scale = float(wanted.abs().max())
        ours = _ours(setting, folder, sequences, Precision.float32)
        found = float((ours - wanted).abs().max()) / scale
        yield at_most("logits", f"{family} float32", found, FLOAT32_TOLERANCE, unit="of the largest")
        ours = _ours(setting, folder, sequences, Precision.bfloat16)
        theirs = _hugging_face(setting, folder, sequences, torch.bfloat16)
        ratio = float((ours - wanted).abs().mean() / (theirs - wanted).abs().mean())
        yield at_most("logits", f"{family} bfloat16", ratio, BFLOAT16_RATIO, unit="times Hugging Face's own distance")


def head(setting: Setting) -> Iterator[Finding]:
    """Logprobs, entropies and their gradients in chunks, in bfloat16, beside float64's from the same rounded logits."""
    from vime.trainer.head import chunked_logprobs

    generator = torch.Generator().manual_seed(0)
    num_tokens, hidden, vocabulary = (48, 16, 160) if setting.tiny else (1000, 256, 32000)
    states = torch.randn(num_tokens, hidden, generator=generator).to(setting.device, torch.bfloat16).requires_grad_()
    weight = (0.1 * torch.randn(vocabulary, hidden, generator=generator)).to(setting.device, torch.bfloat16).requires_grad_()
    target = torch.randint(vocabulary, (num_tokens,), generator=generator).to(setting.device)
    by_logprob, by_entropy = torch.randn(2, num_tokens, generator=generator).to(setting.device)
    logits = (states @ weight.t()).detach().double().requires_grad_()
    logprobs = (logits / 0.7).log_softmax(1)
    wanted = logprobs.gather(1, target.unsqueeze(1)).squeeze(1), -(logprobs.exp() * logprobs).sum(1)
    (wanted[0] * by_logprob + wanted[1] * by_entropy).sum().backward()
    assert logits.grad is not None
    wanted += logits.grad @ weight.double(), logits.grad.t() @ states.double()
    for chunk in (num_tokens, num_tokens // 3):
        states.grad = weight.grad = None
        logprobs, entropies = chunked_logprobs(states, weight, target.unsqueeze(1), temperature=0.7, chunk=chunk)
        found = logprobs[:, 0], entropies
        (found[0] * by_logprob + found[1] * by_entropy).sum().backward()
        for name, ours, exact in zip(HEAD, (*found, states.grad, weight.grad), wanted, strict=True):
            distance = float((ours.double() - exact).norm() / exact.norm())  # type: ignore[union-attr]
            limit = HEAD_TOLERANCE if ours.dtype is torch.float32 else BFLOAT16_TOLERANCE  # type: ignore[union-attr]
            yield at_most("head", f"{name}, {-(-num_tokens // chunk)} chunks", distance, limit, unit="of its norm")


def step(setting: Setting) -> Iterator[Finding]:
    """Two updates with a KL to the reference, here and in a process without the device."""
    for label, (family, rank) in STEPPED.items():
        folder = setting.small_model(family)
        path = setting.folder / f"{family}.pt"
        program = Path(__file__).resolve().parent.parent / "gpu_check.py"
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, str(program), "--device", "cpu", "--one-step", str(folder), str(path), str(rank)]
        found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert found.returncode == 0, f"the step on the CPU failed: {found.stderr[-2000:]}"
        expected = torch.load(path, weights_only=True)
        metrics, changed = take_step(setting, folder, rank)
        for name in ("train/loss", "train/grad_norm", "train/kl", "train/entropy"):
            difference = abs(metrics[name] - expected["metrics"][name]) / max(abs(expected["metrics"][name]), 1e-3)
            yield at_most("step", f"{label}: {name}", difference, STEP_TOLERANCE, unit="relative difference")
        differing = [(changed[name] - tensor).abs() > 1e-4 for name, tensor in expected["weights"].items()]
        share = sum(int(part.sum()) for part in differing) / sum(part.numel() for part in differing)
        yield at_most("step", f"{label}: weights that differ by more than 1e-4", share, DIFFERING_SHARE, unit="share")


def take_step(setting: Setting, folder: Path, rank: int) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Metrics of the second of two updates of all weights, or of adapters of a rank, and the weights after it."""
    config = setting.config(folder, lora=LoraConfig(rank=rank))
    config.algorithm.kl_coefficient, config.algorithm.entropy_coefficient = 0.05, 0.01
    samples = setting.samples(STEP_LENGTHS, vocabulary=config.model.vocab_size)
    trained = engine(config)
    trained.train([samples], 0)
    return trained.train([samples], 1), weights(trained)


def repeat(setting: Setting) -> Iterator[Finding]:
    """Two updates, twice from the same weights, with the settings of `deterministic=true`: bit for bit the same."""
    for label, (family, rank) in STEPPED.items():
        config = setting.config(setting.small_model(family), precision=Precision.bfloat16, lora=LoraConfig(rank=rank))
        samples = setting.samples(STEP_LENGTHS, vocabulary=config.model.vocab_size)
        found: list[dict[str, torch.Tensor]] = []
        torch.use_deterministic_algorithms(True)
        try:
            for _ in range(2):
                trained = engine(config)
                for step in range(2):
                    trained.train([samples], step)
                found.append(weights(trained))
                del trained
                release(setting)
        finally:
            torch.use_deterministic_algorithms(False)
        yield at_most("repeat", f"{label}: weights that differ", _differing(*found), 0, unit="values")


def checkpoint(setting: Setting) -> Iterator[Finding]:
    """A save, an update, and the save loaded again: weights as they were, and the same update from there."""
    for label, rank in SAVED.items():
        config, samples = _saved_case(setting, rank)
        trained = engine(config)
        trained.train([samples], 0)
        saved = weights(trained)
        trained.save(setting.folder / f"checkpoint_{rank}")
        first = trained.train([samples], 1)["train/loss"]
        trained.load(setting.folder / f"checkpoint_{rank}")
        differing = _differing(saved, weights(trained))
        yield at_most("checkpoint", f"{label}weights that differ after loading", differing, 0, unit="values")
        again = trained.train([samples], 1)["train/loss"]
        yield at_most("checkpoint", f"{label}loss of the update after it", abs(first - again), 1e-6, unit="difference")


def offload(setting: Setting) -> Iterator[Finding]:
    """Optimizer, gradients and weights away from the device and back: all as before, and training goes on."""
    for label, rank in SAVED.items():
        config, samples = _saved_case(setting, rank)
        release(setting)
        workspaces = torch.cuda.memory_allocated() if setting.on_cuda else 0  # of cuBLAS, which stay
        trained = engine(config)
        trained.train([samples], 0)
        before = weights(trained)
        held = torch.cuda.memory_allocated() - workspaces if setting.on_cuda else 0
        trained.offload(weights=True)
        if setting.on_cuda:
            left = (torch.cuda.memory_allocated() - workspaces) / held
            yield at_most("offload", f"{label}memory still allocated", left, 0.5, unit="share")
        trained.onload()
        differing = _differing(before, weights(trained))
        yield at_most("offload", f"{label}weights that differ afterwards", differing, 0, unit="values")
        loss = trained.train([samples], 1)["train/loss"]
        yield at_most("offload", f"{label}loss of the update after it", abs(loss), 1e3)
        del trained


def _saved_case(setting: Setting, rank: int) -> tuple[RunConfig, list[Any]]:
    config = setting.config(setting.small_model("qwen3"), precision=Precision.bfloat16, lora=LoraConfig(rank=rank))
    return config, setting.samples(STEP_LENGTHS, vocabulary=config.model.vocab_size)


def _sequences(vocabulary: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(vocabulary, (length,), generator=generator) for length in LENGTHS]


def _ours(setting: Setting, folder: Path, sequences: list[torch.Tensor], precision: Precision) -> torch.Tensor:
    from vime.trainer.packed_sequences import packed_sequences

    trained = engine(setting.config(folder, precision=precision))
    part = trained.model.parts[0]
    packed = packed_sequences([len(sequence) for sequence in sequences], device=setting.device)
    with torch.no_grad():  # not around the engine: Megatron's gradient buffers look for gradients as it is built
        hidden = part(torch.cat(sequences).to(setting.device).unsqueeze(0), None, None, packed_seq_params=packed)
        found = part.logits(hidden)[:, 0].float().cpu()
    del trained, part, hidden
    release(setting)
    return found


@torch.no_grad()
def _hugging_face(setting: Setting, folder: Path, sequences: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model = model.to(dtype).to(setting.device).eval()
    return torch.cat([model(sequence.to(setting.device).unsqueeze(0)).logits[0].float().cpu() for sequence in sequences])


def _differing(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return float(sum(int((tensor != other[name]).sum()) for name, tensor in one.items()))


def release(setting: Setting) -> None:
    """Gives memory of models that are gone back to the device."""
    gc.collect()
    if setting.on_cuda:
        torch.cuda.empty_cache()
