"""Effects of an update beside its arithmetic: each number once, no second copy of the weights, and an end that waits for all."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vime.config import RunConfig, TrainerConfig
from vime.types import Sample

Models = Callable[..., Path]
MakeConfig = Callable[..., RunConfig]
MakeSamples = Callable[..., list[Sample]]


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_the_gradient_norm_is_computed_once(
    engine: Callable[..., Any],
    models: Models,
    make_config: MakeConfig,
    make_samples: MakeSamples,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
) -> None:
    trained = engine(make_config(models(family), clip_grad=1e-3))
    calls: list[str] = []
    for name in ("prepare_grads", "get_grad_norm"):
        own = getattr(trained.optimizer, name)
        monkeypatch.setattr(trained.optimizer, name, lambda name=name, own=own: [calls.append(name), own()][1])
    before = trained.model.parts[0].decoder.final_layernorm.weight.detach().clone()
    metrics = trained.train([make_samples(3)], 0)
    assert calls == ["prepare_grads", "get_grad_norm"]
    after = trained.model.parts[0].decoder.final_layernorm.weight
    assert metrics["train/grad_norm"] > 1e-3 and not torch.equal(before, after)
    links = getattr(trained.optimizer, "chained_optimizers", [trained.optimizer])
    gradients = [parameter.grad.norm() for link in links for parameter in link.get_parameters() if parameter.grad is not None]
    assert float(torch.stack(gradients).norm()) == pytest.approx(1e-3, rel=1e-3), "gradients are not clipped"


def test_training_ends_when_the_device_has_written_the_weights(
    engine: Callable[..., Any],
    models: Models,
    make_config: MakeConfig,
    make_samples: MakeSamples,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained = engine(make_config(models("qwen3")))
    events: list[str] = []
    step = trained.optimizer.step_with_ready_grads
    monkeypatch.setattr(trained.optimizer, "step_with_ready_grads", lambda: [events.append("step"), step()][1])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: events.append("synchronize"))
    trained.train([make_samples(3), make_samples(2)], 0)
    assert events[-1] == "synchronize" and events.count("step") == 2


def test_the_reference_takes_the_place_of_the_weights_tensor_by_tensor(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vime.trainer.second_weights import SecondWeights

    trained = engine(make_config(models("qwen3")))
    parameters = list(trained.model.parameters())
    first = [parameter.detach().clone() for parameter in parameters]
    reference = SecondWeights(trained.model.trained)
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(1.0)
    later = [parameter.detach().clone() for parameter in parameters]
    for _ in range(2):
        with pytest.raises(KeyError), reference.in_place():
            assert all(torch.equal(one, other) for one, other in zip(first, parameters))
            raise KeyError("a forward that fails")
        assert all(torch.equal(one, other) for one, other in zip(later, parameters))
    profiled = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
    with profiled as profiler, reference.in_place():
        pass
    sizes: Any = [event.nbytes() for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]  # type: ignore[union-attr]
    live = [sum(sizes[: end + 1]) for end in range(len(sizes))]
    assert 0 < max(live) <= 2 * max(parameter.nbytes for parameter in parameters), "the weights are held a second time"


def test_threads_are_set_by_the_configuration_or_the_cores() -> None:
    from vime.trainer.parallel import num_threads

    assert num_threads(TrainerConfig(num_threads=3), 8) == 3
    assert num_threads(TrainerConfig(), 1) == len(os.sched_getaffinity(0))
    assert num_threads(TrainerConfig(), 10**6) == 1
