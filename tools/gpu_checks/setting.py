"""The setting of all checks: the device, random models of each family, configurations, and sequences to train on.

Nothing here or below needs Ray, vLLM, Hydra, OmegaConf or a network.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vime.config import ClusterConfig, Family, ModelConfig, Precision, RunConfig, TrainerConfig
from vime.types import Sample

FAMILIES = ("qwen2", "qwen3", "llama", "qwen3_moe")
SMALL = {
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
}
TINY = SMALL | {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 160}
QWEN_7B = {
    "num_hidden_layers": 4,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
}
"""Qwen2.5-7B's layers and vocabulary, with just enough layers to show a rate."""
WHOLE = {
    "qwen2": QWEN_7B | {"num_hidden_layers": 28},
    "qwen3": {
        "num_hidden_layers": 36,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
    },
}
"""Qwen2.5-7B and Qwen3-8B."""
QWEN_30B_A3B = {
    "num_hidden_layers": 2,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
}
"""Qwen3-30B-A3B's attention and vocabulary; `EXPERTS_30B_A3B` has its experts."""
EXPERTS = {"head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
EXPERTS_30B_A3B = EXPERTS | {"head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
LLAMA_ROPE = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@dataclass(kw_only=True, slots=True)
class Setting:
    """Device, scratch folder, and whether shapes are those of a test on the CPU or real ones.

    Example: `Setting(device=torch.device("cuda"), folder=Path("/tmp/x"), tiny=False)`.
    """

    device: torch.device
    folder: Path
    tiny: bool
    made: dict[str, Path] = field(default_factory=dict)
    """Models that were written already."""

    @property
    def on_cuda(self) -> bool:
        """True if there is a CUDA device."""
        return self.device.type == "cuda"

    @property
    def max_tokens(self) -> int:
        """Tokens of a full row."""
        return 512 if self.tiny else 16384

    def small_model(self, family: str) -> Path:
        """Folder of a random model with a few small layers, no parameter at a value that would hide a mistake."""
        if family not in self.made:
            shape = TINY if self.tiny else SMALL
            self.made[family] = _write_model(self.folder / family, family, shape, device="cpu", dtype=torch.float32)
        return self.made[family]

    def wide_model(self) -> Path:
        """Folder of a random Qwen2 with Qwen2.5-7B's layers, in bfloat16; small ones in a test."""
        if "wide" not in self.made:
            shape = TINY if self.tiny else QWEN_7B
            device = str(self.device)
            self.made["wide"] = _write_model(self.folder / "wide", "qwen2", shape, device=device, dtype=torch.bfloat16)
        return self.made["wide"]

    def whole_model(self, family: str) -> Path:
        """Folder of a random Qwen2.5-7B (`qwen2`) or Qwen3-8B (`qwen3`), in bfloat16; a small one in a test."""
        if self.tiny:
            return self.small_model(family)
        name, device = f"whole_{family}", str(self.device)
        if name not in self.made:
            self.made[name] = _write_model(
                self.folder / name, family, WHOLE[family], device=device, dtype=torch.bfloat16, head_dim=128
            )
        return self.made[name]

    def wide_experts(self) -> Path:
        """Folder of a random Qwen3-MoE with Qwen3-30B-A3B's layers, in bfloat16; small ones in a test."""
        if "wide experts" not in self.made:
            folder, device = self.folder / "wide_experts", str(self.device)
            shape, experts = (TINY, EXPERTS) if self.tiny else (QWEN_30B_A3B, EXPERTS_30B_A3B)
            self.made["wide experts"] = _write_model(
                folder, "qwen3_moe", shape, device=device, dtype=torch.bfloat16, experts=experts
            )
        return self.made["wide experts"]

    def config(self, model: Path, **trainer: Any) -> RunConfig:
        """A run of the model in a folder, in float32 unless `trainer` says otherwise."""
        from vime.model.architecture import read_architecture

        shape = read_architecture(model)
        names = ("num_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size")
        names += ("vocab_size", "tie_word_embeddings", "num_experts", "num_experts_per_token", "moe_intermediate_size")
        fields = {"precision": Precision.float32, "lr": 1e-3, "max_tokens_per_micro_batch": self.max_tokens} | trainer
        cluster = ClusterConfig(gpus_per_node=1, num_trainer_gpus=1) if self.on_cuda else ClusterConfig()
        return RunConfig(
            model=ModelConfig(
                checkpoint=str(model), family=Family(shape.family), **{name: getattr(shape, name) for name in names}
            ),
            trainer=TrainerConfig(**fields),
            cluster=cluster,
        )

    def samples(self, lengths: Sequence[tuple[int, int]], *, vocabulary: int, seed: int = 0) -> list[Sample]:
        """Random sequences of (prompt, response) tokens, with advantages and weights."""
        generator = random.Random(seed)
        return [
            Sample(
                tokens=[generator.randrange(vocabulary) for _ in range(prompt + response)],
                loss_mask=[1] * response,
                columns={
                    "logprob": [-generator.uniform(4.0, 6.0) for _ in range(response)],
                    "advantage": generator.gauss(0.0, 1.0),
                    "weight": 1.0 / sum(part for _, part in lengths),
                },
            )
            for prompt, response in lengths
        ]


def _write_model(
    folder: Path,
    family: str,
    shape: dict[str, int],
    *,
    device: str,
    dtype: torch.dtype,
    experts: dict[str, Any] = EXPERTS,
    head_dim: int = 32,
) -> Path:
    import transformers

    torch.manual_seed(0)
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "qwen2": (transformers.Qwen2Config, {"rope_theta": 50000.0}),
        "qwen3": (transformers.Qwen3Config, {"head_dim": head_dim}),
        "llama": (transformers.LlamaConfig, {"rope_scaling": {"rope_type": "llama3", **LLAMA_ROPE}}),
        "qwen3_moe": (transformers.Qwen3MoeConfig, dict(experts)),
    }
    kind, options = kinds[family]
    if int(transformers.__version__.split(".")[0]) >= 5:
        options = _with_rope_parameters(options)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(kind(**shape, **options, tie_word_embeddings=False))
        model = model.to(dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * (0.1 if dtype is torch.float32 else 0.02))
    model.save_pretrained(folder)
    return folder


def _with_rope_parameters(options: dict[str, Any]) -> dict[str, Any]:
    """Options for Transformers 5, which has one dictionary in place of two fields."""
    rope = {"rope_type": "default", "rope_theta": options.pop("rope_theta", 10000.0), **options.pop("rope_scaling", {})}
    return options | {"rope_parameters": rope}
