"""Real servers beyond a checkpoint's original length: with scaled rotary embeddings their logprobs are Hugging Face's.

`tests/trainer/test_rotary.py` shows the same of the trainer.
"""

import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest

from vime.config import ModelConfig, Precision, RunConfig, ServedModelConfig, ServingConfig, TrainerConfig
from vime.serving.client import TokenClient

ORIGINAL, FACTOR, VOCAB_SIZE = 64, 8.0, 320
LENGTH = int(ORIGINAL * FACTOR)
PROMPT = [(7 * i * i + 3 * i) % 256 for i in range(400)]
SCALING = {"rope_theta": 10000.0, "factor": FACTOR, "original_max_position_embeddings": ORIGINAL}
SCALINGS: dict[str, dict[str, Any]] = {
    "yarn": {"rope_type": "yarn", **SCALING},
    "llama3": {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **SCALING},
}


@pytest.fixture
def checkpoint_folders(checkpoints: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    """Checkpoints of the original length, which know of no scaling: Qwen2.5 for yarn, Llama for llama3."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folders = {name: tmp_path / name for name in SCALINGS}
    for folder in folders.values():
        shutil.copytree(checkpoints["tied"], folder)
    raw = json.loads((folders["yarn"] / "config.json").read_text())
    (folders["yarn"] / "config.json").write_text(json.dumps(raw | {"max_position_embeddings": ORIGINAL}))
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    shape = {name: raw[name] for name in (*names, "rope_parameters", "initializer_range", "eos_token_id", "pad_token_id")}
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(**shape, bos_token_id=None, max_position_embeddings=ORIGINAL))
    llama.save_pretrained(folders["llama3"])
    return folders


def hugging_faces(folder: Path, tokens: list[int], num_sampled: int, rope: dict[str, Any] | None) -> list[float]:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    if rope is not None:
        config.rope_parameters, config.max_position_embeddings = rope, LENGTH
    model = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32)
    with torch.no_grad():
        logprobs = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    return logprobs[range(len(tokens) - 1), tokens[1:]][-num_sampled:].tolist()


@pytest.mark.long
async def test_servers_agree_with_hugging_face_beyond_the_original_length_and_not_without_the_scaling(
    checkpoint_folders: dict[str, Path], ray_cluster: None, tmp_path: Path
) -> None:
    from vime.serving.topology import Serving
    from vime.weights.policy import Policy

    small: dict[str, Any] = {"gpu_memory_utilization": 0.01, "max_num_seqs": 4, "max_model_len": LENGTH}
    config = RunConfig(
        model=ModelConfig(
            checkpoint=str(checkpoint_folders["yarn"]),
            vocab_size=VOCAB_SIZE,
            max_position_embeddings=LENGTH,
            rope_parameters=SCALINGS["yarn"],
        ),
        trainer=TrainerConfig(precision=Precision.float32),
        serving=ServingConfig(
            models={
                "yarn": ServedModelConfig(trained=True, **small),
                "llama3": ServedModelConfig(
                    checkpoint=str(checkpoint_folders["llama3"]), rope_parameters=SCALINGS["llama3"], **small
                ),
            }
        ),
    )
    serving = Serving(config, tmp_path / "run", uuid.uuid4().hex[:8], policy=Policy())
    serving.start()
    try:
        await serving.ready()
        for name, rope in SCALINGS.items():
            client = TokenClient(serving.endpoints()[name], config.serving)
            sampling = {"temperature": 1.0, "max_tokens": 40, "ignore_eos": True, "seed": 1}
            turn = await client.generate(PROMPT, sampling=sampling, session_id="s", request_id="r")
            await client.close()
            tokens, found = [*PROMPT, *turn.output_ids], list(turn.logprobs)
            expected = hugging_faces(checkpoint_folders[name], tokens, len(found), rope)
            control = hugging_faces(checkpoint_folders[name], tokens, len(found), None)
            assert len(found) == 40 and max(abs(a - b) for a, b in zip(found, expected)) < 1e-4, name
            assert max(abs(a - b) for a, b in zip(found, control)) > 1e-2, name
    finally:
        await serving.stop()
