"""The layouts of the trainer that are driven on the device that is not there, and the checkpoints that they take."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """One rank of a family's small model under settings of the trainer.

    Example: `Layout(family="qwen2", rank=3, trainer={"tensor_parallel_size": 2, "data_parallel_size": 2})`.
    """

    family: str
    rank: int = 0
    trainer: dict[str, Any] = field(default_factory=dict)
    kl_coefficient: float = 0.0
    critic: str = "none"
    """The place of a critic."""
    lora_rank: int = 0
    """Rank of adapters, which then are all that is trained."""
    is_quick: bool = False
    """True if it is part of `make test`; the others are long tests."""

    @property
    def name(self) -> str:
        """For example `qwen2-tensor2-data2-rank3`."""
        words = []
        for name, value in self.trainer.items():
            shown = ("" if value else "_off") if isinstance(value, bool) else str(value)
            words.append(name.removesuffix("_parallel_size").removeprefix("quantization") + shown)
        words += ["kl"] if self.kl_coefficient else []
        words += [self.critic] if self.critic != "none" else []
        words += [f"lora{self.lora_rank}"] if self.lora_rank else []
        return "-".join([self.family, *words, f"rank{self.rank}"])


def _tensor(size: int) -> dict[str, Any]:
    return {"tensor_parallel_size": size}


def _data(size: int) -> dict[str, Any]:
    return {"data_parallel_size": size}


def _experts(size: int) -> dict[str, Any]:
    return {"expert_parallel_size": size}


def _stages(size: int) -> dict[str, Any]:
    return {"pipeline_parallel_size": size}


def _context(size: int) -> dict[str, Any]:
    return {"context_parallel_size": size}


RECOMPUTE = {"recompute": True}
UNSPLIT = {"sequence_parallel": False}
FLOAT32 = {"precision": "float32"}

LAYOUTS = [
    Layout(family="qwen2", is_quick=True),
    Layout(family="qwen3_moe"),
    Layout(family="qwen2", trainer=FLOAT32),
    Layout(family="qwen3_moe", trainer=FLOAT32),
    Layout(family="qwen2", trainer=RECOMPUTE),
    Layout(family="qwen2", kl_coefficient=0.01),
    Layout(family="qwen2", critic="model"),
    Layout(family="qwen3", trainer=_tensor(2) | _data(2), rank=3, critic="frozen_attention"),
    Layout(family="llama", trainer=_stages(2) | _tensor(2), rank=3, critic="model"),
    Layout(family="qwen2", trainer=_context(2), rank=1, critic="trunk"),
    Layout(family="qwen3_moe", trainer=_tensor(2) | _experts(2), critic="frozen_attention"),
    Layout(family="qwen2", trainer=_tensor(2) | _data(2) | {"quantization": "int8"}, rank=1),
    Layout(family="qwen3_moe", trainer=_tensor(2) | _experts(2) | {"quantization": "int4"}),
    Layout(family="qwen3", lora_rank=8),
    Layout(family="llama", trainer=_tensor(2) | _data(2) | RECOMPUTE, rank=3, lora_rank=8),
    Layout(family="qwen2", trainer=_stages(2), rank=1, kl_coefficient=0.01, lora_rank=8),
    Layout(family="qwen3_moe", trainer=_tensor(2) | _experts(2), lora_rank=8),
    Layout(family="qwen3", trainer=_tensor(2) | UNSPLIT, rank=1),
    Layout(family="qwen2", trainer=_tensor(2) | _data(2), rank=3),
    Layout(family="qwen3", trainer=_tensor(2) | _data(2) | RECOMPUTE),
    Layout(family="llama", trainer=_tensor(2) | _data(2), kl_coefficient=0.01),
    Layout(family="qwen2", trainer=_data(4) | RECOMPUTE, rank=2),
    Layout(family="qwen2", trainer=_stages(2)),
    Layout(family="qwen2", trainer=_stages(2), rank=1),
    Layout(family="llama", trainer=_stages(2) | _tensor(2), rank=3),
    Layout(family="qwen3_moe", trainer=_stages(2), rank=1),
    Layout(family="qwen3", trainer=_context(2)),
    Layout(family="qwen2", trainer=_context(2) | FLOAT32, rank=1),
    Layout(family="llama", trainer=_tensor(2) | _context(2) | RECOMPUTE, rank=3),
    Layout(family="qwen3_moe", trainer=_context(2) | _data(2) | _experts(2)),
    Layout(family="qwen3_moe", trainer=_experts(2) | _data(2)),
    Layout(family="qwen3_moe", trainer=_tensor(2) | _data(2) | _experts(4) | RECOMPUTE, is_quick=True),
]
"""The table. A feature that takes another branch on CUDA adds its rows here."""

DEPTHS = (2, 4)
"""Layers of the two checkpoints of each family: what happens once a layer happens more often in the deeper one."""
FAULTY = Layout(family="qwen2", trainer=_tensor(2))
"""The layout in which faults are made."""
