"""A GGUF file becomes a folder whose model says the same as the one in the file, and whose tokenizer splits numbers."""

import sys
from pathlib import Path

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from tools.from_gguf import from_gguf
from vime.errors import CheckpointError
from vime.model.load_tokenizer import load_tokenizer

pytestmark = pytest.mark.slow

HIDDEN, HEADS, KEY_VALUE_HEADS, INNER, LAYERS = 64, 4, 2, 96, 2
BYTES = [chr(n) for n in range(33, 127)] + ["Ġ"]
MERGES = ["1 2", "Ġ a"]
TOKENS = ["<|endoftext|>", *BYTES, "12", "Ġa"]
OF_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def interleaved(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """llama.cpp's order of the rows of a query or key projection."""
    return weight.view(num_heads, 2, -1, HIDDEN).transpose(1, 2).reshape(weight.shape)


def write_file(path: Path, model: LlamaForCausalLM) -> None:
    """The model as a GGUF file in float32, with a byte-level tokenizer."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_VALUE_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.CONTROL, *[gguf.TokenType.NORMAL] * (len(TOKENS) - 1)])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    writer.add_tensor("token_embd.weight", weights["model.embed_tokens.weight"].numpy())
    writer.add_tensor("output_norm.weight", weights["model.norm.weight"].numpy())
    writer.add_tensor("output.weight", weights["lm_head.weight"].numpy())
    for layer in range(LAYERS):
        for ours, theirs in OF_LAYER.items():
            weight = weights[f"model.layers.{layer}.{ours}.weight"]
            if theirs in ("attn_q", "attn_k"):
                weight = interleaved(weight, HEADS if theirs == "attn_q" else KEY_VALUE_HEADS)
            writer.add_tensor(f"blk.{layer}.{theirs}.weight", weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_the_folder_says_what_the_file_says(tmp_path: Path):
    config = LlamaConfig(
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_VALUE_HEADS,
        vocab_size=len(TOKENS),
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).eval()
    file, target = tmp_path / "tiny.gguf", tmp_path / "model"
    write_file(file, model)
    from_gguf(file, target)
    found = AutoModelForCausalLM.from_pretrained(target).eval()
    ids = torch.tensor([[5, 17, 80, 3]])
    with torch.no_grad():
        assert torch.allclose(found(ids).logits, model(ids).logits, atol=1e-5)
    tokenizer = load_tokenizer(target)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("x12 a", add_special_tokens=False)) == ["x", "1", "2", "Ġa"]
    assert "quantization_config" not in (target / "config.json").read_text()


def test_other_files_are_refused(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"no GGUF file: give a file whose name ends in \.gguf"):
        from_gguf(tmp_path / "model.safetensors", tmp_path / "out")
