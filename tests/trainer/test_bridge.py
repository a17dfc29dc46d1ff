"""Hugging Face checkpoints in and out of Megatron: equal logits, bitwise round trips, clear errors."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from vime.config import RunConfig
from vime.errors import CheckpointError, ConfigError

Models = Callable[..., Path]
MakeConfig = Callable[..., RunConfig]

VOCAB = 160
FAMILIES = [("qwen2", False), ("qwen2", True), ("qwen3", False), ("llama", True), ("qwen3_moe", False), ("gemma3_text", True)]
FAMILIES += [("qwen3_5_text", False), ("qwen3_5_text", True), ("gpt_oss", False)]


def hugging_face_logprobs(folder: Path, sequences: list[list[int]]) -> list[list[float]]:
    """Logprob of every token after the first, one sequence at a time."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    result = []
    with torch.no_grad():
        for tokens in sequences:
            logprobs = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
            result.append(logprobs[:-1].gather(1, torch.tensor(tokens[1:]).unsqueeze(1)).squeeze(1).tolist())
    return result


def random_sequences(lengths: list[int]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, VOCAB, (length,), generator=generator).tolist() for length in lengths]


@pytest.mark.parametrize(("family", "tied"), FAMILIES)
def test_packed_logprobs_equal_hugging_faces(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, family: str, tied: bool
) -> None:
    folder = models(family, tied=tied)
    sequences = random_sequences([7, 90, 40, 41, 38, 2, 300])
    found = engine(make_config(folder)).logprobs(sequences, [len(tokens) - 1 for tokens in sequences], 1.0)
    expected = hugging_face_logprobs(folder, sequences)
    for index, values in enumerate(expected):
        torch.testing.assert_close(torch.tensor(found[index]), torch.tensor(values), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("family", "tied"), FAMILIES)
def test_a_saved_checkpoint_is_bitwise_the_loaded_one(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, tmp_path: Path, family: str, tied: bool
) -> None:
    folder = models(family, tied=tied)
    engine(make_config(folder)).save_hugging_face(tmp_path / "saved")
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "saved" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    sequences = random_sequences([20, 33])
    assert hugging_face_logprobs(tmp_path / "saved", sequences) == hugging_face_logprobs(folder, sequences)


def test_a_tied_head_is_not_exported(engine: Callable[..., Any], models: Models, make_config: MakeConfig) -> None:
    names = [name for name, _ in engine(make_config(models("qwen2", tied=True))).export()]
    assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names


def test_several_shards_are_written_with_an_index(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vime.trainer import bridge

    folder = models("qwen2")
    monkeypatch.setattr(bridge, "SHARD_BYTES", 60_000)
    engine(make_config(folder)).save_hugging_face(tmp_path / "saved")
    index = json.loads((tmp_path / "saved" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    sequences = random_sequences([20])
    assert hugging_face_logprobs(tmp_path / "saved", sequences) == hugging_face_logprobs(folder, sequences)


def test_temperature_divides_the_logits(engine: Callable[..., Any], models: Models, make_config: MakeConfig) -> None:
    from transformers import AutoModelForCausalLM

    folder = models("qwen3")
    (tokens,) = random_sequences([12])
    found = engine(make_config(folder)).logprobs([tokens], [4], 0.5)[0]
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([tokens])).logits[0]
    expected = (logits / 0.5).log_softmax(-1)[7:11].gather(1, torch.tensor(tokens[8:]).unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(torch.tensor(found), expected, rtol=0, atol=1e-4)


def test_a_checkpoint_of_another_shape_is_a_config_error_that_names_every_field(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig
) -> None:
    config = make_config(models("qwen2"))
    config.model.num_layers, config.model.vocab_size = 5, 7
    with pytest.raises(ConfigError) as caught:
        engine(config)
    assert {problem.key for problem in caught.value.problems} == {"model.num_layers", "model.vocab_size"}


def test_a_missing_tensor_is_a_checkpoint_error_that_names_it(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    folder = tmp_path / "broken"
    shutil.copytree(models("qwen2"), folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.up_proj"):
        engine(make_config(folder))


def test_unsupported_rotary_scaling_is_refused(models: Models, tmp_path: Path) -> None:
    from vime.model.architecture import read_architecture

    raw = json.loads((models("qwen2") / "config.json").read_text())
    raw["rope_parameters"] = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ConfigError, match="yarn"):
        read_architecture(tmp_path)


@pytest.mark.parametrize("field", [{"swiglu_alpha": 1.5}, {"quantization_config": {"quant_method": "mxfp4"}}])
def test_another_gate_and_experts_of_4_bit_floats_are_refused_by_their_fields(
    models: Models, tmp_path: Path, field: dict[str, Any]
) -> None:
    from vime.model.architecture import read_architecture

    raw = json.loads((models("gpt_oss") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | field))
    with pytest.raises(ConfigError, match=next(iter(field))):
        read_architecture(tmp_path)
