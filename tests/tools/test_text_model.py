"""The text model of a checkpoint that also sees images, as a checkpoint of its own."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tools.text_model import write_text_model
from vime.errors import CheckpointError, ConfigError
from vime.model.architecture import read_architecture

VOCABULARY = 96
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}


@pytest.mark.parametrize("shard_size", ["1GB", "20KB"])
def test_the_text_model_computes_what_it_does_within_the_checkpoint(tmp_path: Path, shard_size: str) -> None:
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen3_5Config(text_config=TEXT, vision_config=VISION, tie_word_embeddings=False)
    whole: Any = transformers.Qwen3_5ForConditionalGeneration(config).float()
    whole.save_pretrained(tmp_path / "whole", max_shard_size=shard_size)
    with pytest.raises(ConfigError, match="text-model"):
        read_architecture(tmp_path / "whole")
    write_text_model(tmp_path / "whole", tmp_path / "text")
    architecture = read_architecture(tmp_path / "text")
    assert (architecture.num_layers, architecture.linear_attention.full_every, architecture.rotary_share) == (2, 2, 0.25)
    kind: Any = transformers.AutoModelForCausalLM
    text, info = kind.from_pretrained(tmp_path / "text", output_loading_info=True, dtype=torch.float32)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    tokens = torch.randint(0, VOCABULARY, (1, 12))
    with torch.no_grad():
        torch.testing.assert_close(text(tokens).logits, whole(input_ids=tokens).logits, rtol=0, atol=1e-6)


def test_a_checkpoint_without_a_known_text_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llava", "text_config": {"model_type": "mamba"}}))
    with pytest.raises(CheckpointError, match="mamba"):
        write_text_model(tmp_path, tmp_path / "text")
