"""A critic in each of its places: under every layout values and updates are those of one rank, and exactly resumed."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests import chosen
from tests.trainer import critic_ranks
from vime.config import CriticPlace, RunConfig
from vime.errors import CheckpointError
from vime.memory.processes import critic_memory
from vime.model.size import num_critic_parameters, num_parameters
from vime.trainer import manifest
from vime.types import Sample

Models = Callable[..., Path]
TENSOR, SEQUENCE = {"tensor_parallel_size": 2, "sequence_parallel": False}, {"tensor_parallel_size": 2}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "tensor": TENSOR,
    "sequence": SEQUENCE,
    "pipeline": {"pipeline_parallel_size": 2},
    "interleaved": {"pipeline_parallel_size": 2, "virtual_pipeline_parallel_size": 2},
    "data": {"data_parallel_size": 2},
    "context": {"context_parallel_size": 2},
}
FAMILIES = {"model": "qwen2_tied", "frozen_attention": "qwen3", "trunk": "qwen2_tied"}
CASES = [f"{place} {layout}" for place in FAMILIES for layout in LAYOUTS]
CONTAINED = {
    *(f"model {layout}" for layout in ("sequence", "pipeline")),
    *(f"frozen_attention {layout}" for layout in ("tensor", "interleaved", "data", "context")),
    *(f"trunk {layout}" for layout in ("sequence", "interleaved", "data")),
}
"""Places and layouts that stand in other pairs as well; only the long tests run each pair."""


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest,
    models: Models,
    run_ranks: Callable[..., None],
    tmp_path_factory: pytest.TempPathFactory,
    world: None,
) -> tuple[Path, list[dict[str, Any]]]:
    """The folder and the reports of two ranks, by the places and layouts of the chosen tests, with one rank of each place."""
    folder, layouts = tmp_path_factory.mktemp("critic"), []
    wanted = {name.split()[0]: None for name in chosen.values(request.session, request.module, "name")}
    cases = dict.fromkeys([*(f"{place} one" for place in wanted), *chosen.values(request.session, request.module, "name")])
    for name in cases:
        place, layout = name.split()
        family = FAMILIES[place]
        model = models(family.removesuffix("_tied"), tied=family.endswith("_tied"))
        layouts.append({"name": name, "place": place, "model": str(model), "trainer": LAYOUTS[layout]})
    job = folder / "job.json"
    job.write_text(json.dumps({"folder": str(folder), "num_ranks": 2, "layouts": layouts}))
    run_ranks("critic_ranks.py", job)
    return folder, [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def seen(results: Any, name: str) -> list[dict[str, Any]]:
    """Reports of all ranks of a place and layout."""
    return [reports[name] for reports in results[1] if name in reports]


@pytest.mark.parametrize("name", chosen.parameters(CASES, CONTAINED))
def test_values_and_updates_of_a_critic_are_those_of_one_rank(results: Any, name: str) -> None:
    (expected,) = seen(results, f"{name.split()[0]} one")
    for report in seen(results, name):
        for found, other, tolerance in zip(report["metrics"], expected["metrics"], (1e-4, 1e-3)):
            for key in ("train/value_loss", "train/grad_norm", "train/num_tokens"):
                assert found[key] == pytest.approx(other[key], rel=tolerance), key
        for moment, tolerance in (("before", 1e-5), ("between", 2e-3), ("after", 4e-3)):
            for own, one in zip(report["values"][moment], expected["values"][moment], strict=True):
                assert own == pytest.approx(one, abs=tolerance), moment
        assert report["values"]["before"] != report["values"]["between"] != report["values"]["after"]


@pytest.mark.parametrize("name", chosen.parameters(CASES, CONTAINED))
def test_a_critic_goes_on_bitwise_after_a_load(results: Any, name: str) -> None:
    for report in seen(results, name):
        _, uninterrupted, resumed = report["metrics"]
        for key in ("train/value_loss", "train/grad_norm"):
            assert resumed[key] == uninterrupted[key]
        assert report["values"]["restored"] == report["values"]["between"]
        assert report["values"]["again"] == report["values"]["after"]


@pytest.mark.parametrize("name", chosen.parameters(CASES, CONTAINED))
def test_no_value_head_is_exported(results: Any, models: Models, name: str) -> None:
    family = FAMILIES[name.split()[0]]
    read = load_file(models(family.removesuffix("_tied"), tied=family.endswith("_tied")) / "model.safetensors")
    assert {report["num_tensors"] for report in seen(results, name)} == {len(read)}


@pytest.fixture
def made(models: Models, make_config: Callable[..., RunConfig], engine: Callable[..., Any]) -> Callable[..., Any]:
    """`made(place, **trainer)`: the engine of a run with a critic, on qwen3."""

    def make(place: str, **trainer: Any) -> Any:
        config = make_config(models("qwen3"), max_tokens_per_micro_batch=60, clip_grad=1e6, **trainer)
        config.algorithm.critic.place = CriticPlace(place)
        return engine(config)

    return make


@cache
def lesson() -> list[Sample]:
    """Sequences that a critic learns from."""
    return critic_ranks.lessons(critic_ranks.load_fixtures(), 5, seed=2)


def hidden_states(folder: Path, sample: Sample) -> tuple[Any, torch.Tensor]:
    """transformers' model, and the states before the sampled tokens."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, dtype=torch.float32)
    states = model(torch.tensor([sample.tokens])).last_hidden_state[0, :-1][-sample.response_length :]
    return model, states[torch.from_numpy(sample.trained)]


@pytest.mark.parametrize("place", FAMILIES)
def test_gradients_are_those_of_plain_pytorch(made: Callable[..., Any], models: Models, place: str) -> None:
    policy = made(place)
    engine, (sample, *_) = policy.critic or policy, lesson()
    critic_ranks.fill_head(engine)
    model, states = hidden_states(models("qwen3"), sample)
    head = engine.model.parts[-1].value_head.weight[0].detach().clone().requires_grad_()
    loss = 0.5 * (states @ head - torch.from_numpy(np.asarray(sample.columns["returns"]))).square()
    scale = policy.config.algorithm.critic.coefficient if place == "trunk" else 1.0
    (scale * sample.columns["weight"] * loss).sum().backward()
    own = sample.with_columns(advantage=0.0)  # the policy's own term has no gradient
    metrics = engine.train([[own]], 0)
    expected = {"head": head.grad, **{name: parameter.grad for name, parameter in model.named_parameters()}}
    learned = {
        "model": list(expected),
        "frozen_attention": [name for name in expected if "self_attn" not in name],
        "trunk": ["head"],  # whose gradient stops there
    }[place]
    norm = torch.stack([expected[name].norm() for name in learned if expected[name] is not None]).norm()
    assert metrics["train/grad_norm"] == pytest.approx(float(norm), rel=1e-4)


def test_frozen_attention_stays_and_the_policy_learns_nothing_from_its_critic(made: Callable[..., Any]) -> None:
    policy = made("frozen_attention", lr=1e-2)
    first = {name: parameter.detach().clone() for name, parameter in policy.critic.model.named_parameters()}
    exported = {name: tensor.detach().clone() for name, tensor in policy.export()}
    for step in range(2):  # the head begins at 0, so that the layers have no gradient before it has moved
        policy.critic.train([lesson()], step)
    moved = {name for name, now in policy.critic.model.named_parameters() if not torch.equal(now, first[name])}
    assert moved == {name for name in first if ".self_attention." not in name}
    assert all(torch.equal(tensor, exported[name]) for name, tensor in policy.export())


def test_values_begin_at_zero_and_a_second_model_has_one_head(made: Callable[..., Any]) -> None:
    policy = made("model")
    assert {value for values in critic_ranks.values(policy, lesson()) for value in values} == {0.0}
    names = [name for name, _ in policy.critic.model.named_parameters()]
    assert any("value_head" in name for name in names) and not any("output_layer" in name for name in names)


@pytest.mark.parametrize("place", FAMILIES)
def test_the_plan_counts_its_parameters(made: Callable[..., Any], place: str) -> None:
    policy = made(place)
    whole, trained = num_critic_parameters(policy.config.model, CriticPlace(place))
    if place == "trunk":
        assert sum(p.numel() for p in policy.model.parameters()) - num_parameters(policy.config.model) == whole == trained
        return
    assert sum(p.numel() for p in policy.critic.model.parameters()) == whole
    assert sum(p.numel() for p in policy.critic.model.trained) == trained
    gradients = sum(buffer.grad_data.nbytes for chunk in policy.critic.wrapped for buffer in chunk.buffers)
    planned = critic_memory(policy.config)
    assert gradients == pytest.approx(planned["gradients"], rel=1e-3) and planned["weights"] == 4 * whole


def test_a_critic_leaves_and_returns_with_the_policy(made: Callable[..., Any]) -> None:
    policy = made("model")
    policy.critic.train([lesson()], 0)
    before = critic_ranks.values(policy, lesson())
    policy.offload(weights=False)
    assert all(parameter.untyped_storage().size() == 0 for parameter in policy.critic.model.parameters())
    assert all(parameter.untyped_storage().size() > 0 for parameter in policy.model.parameters())
    policy.offload(weights=True)
    policy.onload()
    assert critic_ranks.values(policy, lesson()) == before
    policy.critic.train([lesson()], 1)


def test_a_policy_with_a_value_head_is_read_without_it(made: Callable[..., Any], tmp_path: Path) -> None:
    from vime.trainer import bridge, checkpoint
    from vime.trainer.model import build_model

    policy = made("trunk")
    policy.train([lesson()], 0)
    policy.save(tmp_path / "trainer")
    assert manifest.has_value_head(manifest.read(tmp_path / "trainer"))
    plain = build_model(policy.architecture, policy.config.trainer)
    checkpoint.load_weights(tmp_path / "trainer", plain)
    found = dict(bridge.export_hugging_face(plain, policy.architecture))
    assert all(torch.equal(found.pop(name), tensor) for name, tensor in policy.export()) and not found


def test_a_checkpoint_without_a_critic_or_of_another_place_is_refused(made: Callable[..., Any], tmp_path: Path) -> None:
    plain, whole = made("none"), made("model")
    plain.save(tmp_path / "plain")
    with pytest.raises(CheckpointError, match="plain_critic is not a complete"):
        whole.load(tmp_path / "plain")
    whole.save(tmp_path / "whole")
    plain.load(tmp_path / "whole")
    with pytest.raises(CheckpointError, match=r"critic\.place is model there and frozen_attention here"):
        made("frozen_attention").load(tmp_path / "whole")
    with pytest.raises(CheckpointError, match=r"critic\.place is None there and trunk here"):
        made("trunk").load(tmp_path / "whole")
