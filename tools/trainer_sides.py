"""Two sides of the trainer's benchmark: this project's engine, and a plain Hugging Face step; `bench_trainer.py` starts them.

    python tools/trainer_sides.py ours|profile|hugging_face|rate NUM_THREADS

`ours` is `vime.trainer.lockstep.LockstepEngine.train`, as a run makes a step: packing, forward, loss, backward, clipping, Adam,
metrics; `profile` is the same under PyTorch's profiler. `hugging_face` is the simplest implementation: right-padded batches,
logits of all places, a clipped policy loss, AdamW; in bfloat16 its weights and moments are bfloat16 too, which is less work than
float32 masters. `rate` multiplies matrices.
"""

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench_rows
from side_turns import serve
from trainer_case import LR, SHAPES, Case, padded_batches, read_case
from trainer_profile import profiled

MATRIX_SIZE, NUM_PRODUCTS = 1024, 8
RATE_FLOPS = 2 * MATRIX_SIZE**3 * NUM_PRODUCTS


def ours(case: Case, folder: Path, num_threads: int) -> Callable[[], None]:
    """A step of the engine, on one rank."""
    assert bench_rows.ROOT  # importing it makes this project's packages known
    from vime.config import AlgorithmConfig, Family, ModelConfig, Precision, RunConfig, TrainerConfig
    from vime.trainer import megatron_setup

    megatron_setup.set_up()
    from vime.trainer import parallel
    from vime.trainer.lockstep import LockstepEngine
    from vime.types import Sample

    shape = SHAPES[case.size]
    names = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size")
    model = ModelConfig(
        checkpoint=str(folder),
        family=Family["qwen3"],
        num_layers=shape["num_hidden_layers"],
        **{name: shape[name] for name in names},
    )
    trainer = TrainerConfig(
        lr=LR, precision=Precision(case.precision), max_tokens_per_micro_batch=case.max_tokens, num_threads=num_threads
    )
    gc.freeze()  # as a rank does
    parallel.shutdown()
    parallel.initialize(trainer, rank=0, seed=0)
    engine = LockstepEngine(RunConfig(model=model, trainer=trainer, algorithm=AlgorithmConfig()))
    num_trained = sum(len(sequence["response"]) for sequence in case.sequences)
    samples = [
        Sample(
            tokens=sequence["prompt"] + sequence["response"],
            loss_mask=[1] * len(sequence["response"]),
            columns={
                "logprob": [-7.0] * len(sequence["response"]),
                "advantage": sequence["advantage"],
                "weight": 1.0 / num_trained,
            },
        )
        for sequence in case.sequences
    ]
    return lambda: _checked(engine.train([samples], 0)["train/grad_norm"])


def profile(case: Case, folder: Path, num_threads: int) -> Callable[[], dict[str, float]]:
    """The engine's step, with its seconds by kind of work."""
    return profiled(ours(case, folder, num_threads))


def hugging_face(case: Case, folder: Path, num_threads: int) -> Callable[[], None]:
    """Padded batches, gradients added up, one step of AdamW."""
    import torch
    import transformers

    torch.set_num_threads(num_threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, case.precision))
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    num_trained = sum(len(sequence["response"]) for sequence in case.sequences)

    def step() -> None:
        for batch in padded_batches(case):
            width = max(len(sequence["prompt"]) + len(sequence["response"]) for sequence in batch)
            ids, mask = torch.zeros(2, len(batch), width, dtype=torch.int64, device=device).unbind()
            trained = torch.zeros(len(batch), width, device=device)
            for row, sequence in enumerate(batch):
                tokens = sequence["prompt"] + sequence["response"]
                ids[row, : len(tokens)] = torch.tensor(tokens)
                mask[row, : len(tokens)] = 1
                trained[row, len(sequence["prompt"]) : len(tokens)] = 1.0
            advantage = torch.tensor([sequence["advantage"] for sequence in batch], device=device).unsqueeze(1)
            logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1].float()
            logprob = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
            ratio = (logprob - logprob.detach()).exp()
            loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            ((loss * trained[:, 1:]).sum() / num_trained).backward()
        _checked(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        optimizer.zero_grad()

    return step


def rate(case: Case, folder: Path, num_threads: int) -> Callable[[], None]:
    """`RATE_FLOPS` of matrix products in the case's precision."""
    import torch

    torch.set_num_threads(num_threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    a, b = (torch.randn(MATRIX_SIZE, MATRIX_SIZE, dtype=getattr(torch, case.precision), device=device) for _ in range(2))

    @torch.inference_mode()
    def step() -> None:
        for _ in range(NUM_PRODUCTS):
            product = torch.mm(a, b)
        float(product[0, 0])  # waits for the device

    return step


def _checked(grad_norm: float) -> None:
    assert 0 < grad_norm < float("inf"), f"gradient norm {grad_norm}"


if __name__ == "__main__":
    build = {"ours": ours, "profile": profile, "hugging_face": hugging_face, "rate": rate}[sys.argv[1]]
    serve(lambda folder: build(read_case(folder), folder, int(sys.argv[2])))
