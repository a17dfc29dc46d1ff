"""The material of `tools/bench_rollout.py`: a random model, two servers of it, and prompts without end."""

import itertools
from pathlib import Path

from bench_rows import ROOT

from vime.config import RunConfig
from vime.preflight.compose import compose_run
from vime.types import Prompt

TINY = ROOT / "agentic" / "memagent" / "tiny" / "actor"
GROUP_SIZE = 8


class Source:
    """Prompts without end; the agents make their own tokens."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def next(self) -> Prompt:
        """The next prompt."""
        number = next(self._numbers)
        return Prompt(index=number, row=number, messages=[], ground_truth=[])


def save_random_model(folder: Path, *, hidden: int, layers: int) -> None:
    """A Qwen3-shaped checkpoint with the tiny model's tokenizer."""
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    shape = Qwen3Config(
        vocab_size=1024,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        eos_token_id=None,
    )
    Qwen3ForCausalLM(shape).save_pretrained(folder)
    AutoTokenizer.from_pretrained(TINY).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


def configuration(checkpoint: Path, *, policy: str) -> RunConfig:
    """Two servers of the model behind a router."""
    words = [
        "+method=memagent",
        f"model.checkpoint={checkpoint}",
        "serving.models.actor.num_replicas=2",
        "serving.models.actor.gpu_memory_utilization=0.04",
        f"serving.router_policy={policy}",
        "trainer.precision=float32",
        f"rollout.num_samples_per_prompt={GROUP_SIZE}",
        f"method.reward={ROOT / 'tools' / 'bench_agents.py'}:reward",
    ]
    return compose_run(words).config
