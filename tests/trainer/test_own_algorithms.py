"""Gradients of algorithms of a user (`own/`, at most 45 lines each) and of teachers, under tensor and data parallelism."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.own_ranks import make_groups
from vime.algorithm.batch import build_updates
from vime.config import Divergence

OWN = Path(__file__).parent / "own"
ALGORITHMS = {"turns": "PerTurn", "bonus": "Bonus", "averaged": "Averaged"}
TAUGHT: dict[str, str | None] = {"advantages of a teacher": None} | {kind.value: kind.value for kind in Divergence}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "tensor": {"tensor_parallel_size": 2, "sequence_parallel": False},
    "data": {"data_parallel_size": 2},
}


@pytest.fixture(scope="module")
def results(
    models: Callable[..., Path], run_ranks: Callable[..., None], tmp_path_factory: pytest.TempPathFactory, world: None
) -> tuple[Path, Path]:
    """The model, and the folder of what the ranks wrote."""
    folder, model = tmp_path_factory.mktemp("own"), models("qwen2")
    algorithms: dict[str, Any] = {name: f"{OWN / name}.py:{kind}" for name, kind in ALGORITHMS.items()}
    algorithms |= {name: {"divergence": divergence} for name, divergence in TAUGHT.items()}
    job = folder / "job.json"
    job.write_text(json.dumps({"folder": str(folder), "model": str(model), "algorithms": algorithms, "layouts": LAYOUTS}))
    run_ranks("own_ranks.py", job)
    return model, folder


def expected(name: str, first: dict[str, torch.Tensor], model: Path, folder: Path) -> dict[str, torch.Tensor]:
    """Gradients of the second batch in plain PyTorch, one sequence at a time."""
    from transformers import AutoModelForCausalLM

    def loaded(weights: dict[str, torch.Tensor]) -> Any:
        network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        network.load_state_dict(weights, strict=False)
        return network

    present = load_file(folder / f"{name}-one" / "before.safetensors")
    network, mean = loaded(present), loaded({key: (present[key] + first[key]) / 2 for key in present})

    def whole(of: Any, sample: Any) -> torch.Tensor:
        kept = torch.tensor(sample.loss_mask, dtype=torch.bool)
        return of(torch.tensor([sample.tokens])).logits[0, :-1].log_softmax(-1)[-sample.response_length :][kept]

    def logprobs(of: Any, sample: Any) -> torch.Tensor:
        kept = torch.tensor(sample.loss_mask, dtype=torch.bool)
        ids = torch.tensor(sample.tokens)[-sample.response_length :][kept]
        return whole(of, sample).gather(1, ids[:, None])[:, 0]

    pairs = []
    for group in make_groups(1):
        rewards = torch.tensor([rollout.reward for rollout in group.rollouts])
        values = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        pairs += [(value, sample) for value, rollout in zip(values, group.rollouts) for sample in rollout.samples]
    num_tokens = sum(sum(sample.loss_mask) for _, sample in pairs)
    num_taught = sum(sum(sample.loss_mask) for _, sample in pairs if sample.columns)
    for advantage, sample in pairs:
        current = logprobs(network, sample)
        if name == "turns":
            turn = torch.tensor([m and not p for m, p in zip(sample.loss_mask, [0, *sample.loss_mask])]).cumsum(0)
            shares = 0.5 ** (turn.max() - turn)[torch.tensor(sample.loss_mask, dtype=torch.bool)]
            loss = (-(current - current.detach()).exp() * advantage * shares).sum() / num_tokens
        elif name == "bonus":
            targets = -1.0 - torch.arange(len(current))
            loss = (-(current - current.detach()).exp() * advantage).sum() / num_tokens
            loss = loss + 0.3 / 100 * (current - targets).square().sum()
        elif name in TAUGHT:
            loss = (-(current - current.detach()).exp() * advantage).sum() / num_tokens
            if sample.columns:
                given = {key: torch.tensor(value) for key, value in sample.columns.items()}
                loss = loss + 0.7 / num_taught * taught(TAUGHT[name], current, whole(network, sample), given)
        else:
            pull = (current - logprobs(mean, sample).detach()).square() / 2
            loss = (-advantage * current + 2.0 * pull).sum() / num_tokens
        loss.backward()
    return {key: parameter.grad for key, parameter in network.named_parameters() if parameter.grad is not None}


def taught(divergence: str | None, current: torch.Tensor, whole: torch.Tensor, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """The teacher's term of a sequence, summed over its trained tokens."""
    if divergence is None:
        return (-(current - current.detach()).exp() * (given["teacher"] - current.detach())).sum()

    def outcomes(logprobs: torch.Tensor) -> torch.Tensor:
        probabilities = logprobs.exp()
        return torch.cat([probabilities, 1 - probabilities.sum(1, keepdim=True)], 1)

    p, q = outcomes(whole.gather(1, given["teacher_ids"])), outcomes(given["teacher_logprobs"])
    if divergence == "reverse_kl":
        return (p * (p / q).log()).sum()
    if divergence == "forward_kl":
        return (q * (q / p).log()).sum()
    mean = (p + q) / 2
    return ((q * (q / mean).log()).sum() + (p * (p / mean).log()).sum()) / 2


@pytest.mark.parametrize("name", [*ALGORITHMS, *TAUGHT])
def test_gradients_are_those_of_plain_pytorch_under_every_layout(results: tuple[Path, Path], name: str) -> None:
    model, folder = results
    gradients = expected(name, load_file(model / "model.safetensors"), model, folder)
    one = load_file(folder / f"{name}-one" / "gradients.safetensors")
    for layout in LAYOUTS:
        found = load_file(folder / f"{name}-{layout}" / "gradients.safetensors")
        for key, gradient in gradients.items():
            scale = float(gradient.abs().max())
            assert float((found[key] - gradient).abs().max()) < 3e-4 * scale + 5e-7, f"{layout} {key}"
            assert float((found[key] - one[key]).abs().max()) < 3e-4 * scale + 5e-7, f"{layout} {key}"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_they_are_short(name: str) -> None:
    assert len((OWN / f"{name}.py").read_text().splitlines()) <= 45


def test_a_running_average_is_kept_in_checkpoints(
    engine: Callable[..., Any], models: Callable[..., Path], make_config: Callable[..., Any], tmp_path: Path
) -> None:
    config = make_config(models("qwen2"), lr=1e-2)
    config.algorithm.object = f"{OWN / 'averaged.py'}:Averaged"
    trained = engine(config)
    for step in range(2):
        trained.train(build_updates(trained.algorithm, make_groups(step))[0], step)
    trained.save(tmp_path / "trainer")
    (average,) = trained.second.values()
    kept, present = [tensor.clone() for tensor in average.kept], [tensor.clone() for tensor in trained.model.parameters()]
    assert any(not torch.equal(one, other) for one, other in zip(kept, present))
    uninterrupted = trained.train(build_updates(trained.algorithm, make_groups(2))[0], 2)
    assert any(not torch.equal(one, other) for one, other in zip(kept, average.kept))
    resumed = engine(config)
    resumed.load(tmp_path / "trainer")
    (other,) = resumed.second.values()
    assert all(torch.equal(one, two) for one, two in zip(kept, other.kept))
    metrics = resumed.train(build_updates(resumed.algorithm, make_groups(2))[0], 2)
    assert metrics["train/loss"] == uninterrupted["train/loss"] and metrics["train/grad_norm"] == uninterrupted["train/grad_norm"]
