"""Beyond a checkpoint's original length: with scaled rotary embeddings the logits are Hugging Face's, without they are not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vime.config import RunConfig
from vime.errors import ConfigError
from vime.preflight.compose import compose_run
from vime.preflight.rules import machine_requirements

ORIGINAL, FACTOR = 64, 4.0
VOCAB = 160
SCALINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "yarn": ("qwen2", {"rope_type": "yarn", "rope_theta": 50000.0}),
    "llama3": ("llama", {"rope_type": "llama3", "rope_theta": 10000.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
}


def parameters(scaling: str) -> dict[str, Any]:
    return SCALINGS[scaling][1] | {"factor": FACTOR, "original_max_position_embeddings": ORIGINAL}


@pytest.fixture(params=SCALINGS)
def scaling(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def unscaled(models: Callable[..., Path], tmp_path: Path, scaling: str) -> Path:
    """A checkpoint of the original length, which knows of no scaling."""
    source, theta = models(SCALINGS[scaling][0]), SCALINGS[scaling][1]["rope_theta"]
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": theta}, "max_position_embeddings": ORIGINAL}
    return with_config(source, tmp_path / "unscaled", rope)


@pytest.fixture
def scaled(unscaled: Path, tmp_path: Path, scaling: str) -> Path:
    """The same weights with scaling in their configuration."""
    rope = {"rope_parameters": parameters(scaling), "max_position_embeddings": int(ORIGINAL * FACTOR)}
    return with_config(unscaled, tmp_path / "scaled", rope)


def with_config(source: Path, target: Path, fields: dict[str, Any]) -> Path:
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).symlink_to(file.resolve())
    (target / "config.json").unlink()
    config = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | fields))
    return target


def tokens() -> list[int]:
    return torch.randint(0, VOCAB, (int(ORIGINAL * FACTOR),), generator=torch.Generator().manual_seed(1)).tolist()


def hugging_faces(folder: Path) -> torch.Tensor:
    """Logprob of every token after the first."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logprobs = model(torch.tensor([tokens()])).logits[0].log_softmax(-1)
    return logprobs[:-1].gather(1, torch.tensor(tokens()[1:]).unsqueeze(1)).squeeze(1)


def ours(engine: Any) -> torch.Tensor:
    return torch.tensor(engine.logprobs([tokens()], [len(tokens()) - 1], 1.0)[0])


def test_logits_beyond_the_original_length_are_hugging_faces_and_differ_without_the_scaling(
    engine: Callable[..., Any], make_config: Callable[..., RunConfig], scaled: Path, unscaled: Path
) -> None:
    expected = hugging_faces(scaled)
    differences = (ours(engine(make_config(scaled))) - expected).abs()
    assert differences.max() < 1e-4
    control = (ours(engine(make_config(unscaled))) - expected).abs()
    assert control[ORIGINAL:].max() > 1e-2


def test_a_run_scales_a_checkpoint_that_knows_of_no_scaling_and_what_it_saves_knows_it(
    engine: Callable[..., Any],
    make_config: Callable[..., RunConfig],
    scaled: Path,
    unscaled: Path,
    tmp_path: Path,
    scaling: str,
) -> None:
    config = make_config(unscaled)
    config.model.rope_parameters, config.model.max_position_embeddings = parameters(scaling), int(ORIGINAL * FACTOR)
    trained = engine(config)
    assert (ours(trained) - hugging_faces(scaled)).abs().max() < 1e-4
    trained.save_hugging_face(tmp_path / "saved")
    assert torch.equal(hugging_faces(tmp_path / "saved"), hugging_faces(scaled))


def test_another_theta_than_the_checkpoints_is_refused(
    engine: Callable[..., Any], make_config: Callable[..., RunConfig], unscaled: Path, scaling: str
) -> None:
    config = make_config(unscaled)
    config.model.rope_parameters = parameters(scaling) | {"rope_theta": 12345.0}
    with pytest.raises(ConfigError, match=r"model\.rope_parameters\.rope_theta"):
        engine(config)


def test_a_longer_context_than_the_checkpoints_is_refused_before_anything_starts() -> None:
    config = compose_run(["+method=memagent"]).config
    assert machine_requirements.checkpoint(config) == []
    config.model.max_position_embeddings *= 4
    (problem,) = machine_requirements.checkpoint(config)
    assert problem.key == "model.max_position_embeddings" and "model.rope_parameters" in problem.remedy
