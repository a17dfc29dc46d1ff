"""Teachers that are weights in the trainer say what transformers says of the same weights, under every kind of layout."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.own_ranks import make_groups
from tests.trainer.teacher_ranks import DECAY, OF_STUDENT, question_of, with_teachers
from vime.algorithm.batch import build_updates
from vime.algorithm.choice import algorithm_of, second_weights
from vime.config import RunConfig, TopKOf
from vime.errors import ConfigError
from vime.memory.processes import second_weight_bytes

TEACHERS = ["solver", *OF_STUDENT]
LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "tensor": {"tensor_parallel_size": 2, "sequence_parallel": True},
    "pipeline": {"pipeline_parallel_size": 2},
    "context": {"context_parallel_size": 2},
    "data": {"data_parallel_size": 2},
}


@pytest.fixture(scope="module")
def solver(models: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model like the student, with other weights."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("solver")
    model = AutoModelForCausalLM.from_pretrained(models("qwen2"), dtype=torch.float32)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def results(
    models: Callable[..., Path],
    solver: Path,
    run_ranks: Callable[..., None],
    tmp_path_factory: pytest.TempPathFactory,
    world: None,
) -> Path:
    """The folder of what the ranks wrote."""
    folder = tmp_path_factory.mktemp("teachers")
    job = folder / "job.json"
    given = {"folder": str(folder), "model": str(models("qwen2")), "teacher": str(solver), "layouts": LAYOUTS}
    job.write_text(json.dumps(given))
    run_ranks("teacher_ranks.py", job)
    return folder


def weights_of(teacher: str, solver: Path, folder: Path) -> dict[str, torch.Tensor]:
    """The weights of a teacher after two steps."""
    if teacher == "solver":
        return load_file(solver / "model.safetensors")
    first, second, third = (load_file(folder / f"{step}.safetensors") for step in range(3))
    assert any(not torch.equal(first[name], third[name]) for name in first)
    if teacher == "average":
        return {name: DECAY * (DECAY * first[name] + (1 - DECAY) * second[name]) + (1 - DECAY) * third[name] for name in first}
    return first if teacher == "first" else third


@pytest.mark.parametrize("teacher", TEACHERS)
def test_columns_are_logprobs_of_the_hint_and_the_sequence_by_transformers(
    models: Callable[..., Path], make_config: Callable[..., RunConfig], solver: Path, results: Path, teacher: str
) -> None:
    from transformers import AutoModelForCausalLM

    network: Any = AutoModelForCausalLM.from_pretrained(models("qwen2"), dtype=torch.float32)
    question = question_of(algorithm_of(with_teachers(make_config(models("qwen2")), solver)), teacher)
    lengths = {len(read.tokens) - len(sample.tokens) for sample, read in zip(question.samples, question.sequences)}
    assert max(lengths) > 3, "some have a hint"
    for layout in LAYOUTS:
        network.load_state_dict(weights_of(teacher, solver, results / layout), strict=False)
        found = json.loads((results / layout / "found.json").read_text())
        for place, sample in enumerate(question.samples):
            ids = torch.tensor([*sample.columns["teacher_hint"], *sample.tokens]).long()
            kept = torch.tensor(sample.loss_mask, dtype=torch.bool)
            with torch.no_grad():
                logprobs = network(ids.unsqueeze(0)).logits[0, :-1].log_softmax(-1)[-len(kept) :][kept]
            own = logprobs.gather(1, ids[-len(kept) :][kept].unsqueeze(1))[:, 0]
            recorded = torch.from_numpy(sample.columns["top_ids"])[kept].long()
            by_teacher, by_student = (found[f"{teacher} {kind.value}"][place] for kind in TopKOf)
            likeliest = torch.tensor(by_teacher["teacher_ids"])
            pairs = [
                (by_teacher["teacher"], own),
                (by_student["teacher"], own),
                (by_teacher["teacher_logprobs"], logprobs.topk(likeliest.shape[1]).values),
                (by_teacher["teacher_logprobs"], logprobs.gather(1, likeliest)),
                (by_student["teacher_logprobs"], logprobs.gather(1, recorded)),
            ]
            for given, expected in pairs:
                assert float((torch.tensor(given) - expected).abs().max()) < 1e-4, layout


def test_an_average_goes_on_from_a_checkpoint_with_the_same_bits(
    engine: Callable[..., Any],
    models: Callable[..., Path],
    make_config: Callable[..., RunConfig],
    solver: Path,
    tmp_path: Path,
) -> None:
    trained = engine(with_teachers(make_config(models("qwen2"), lr=1e-2), solver))
    trained.train(build_updates(trained.algorithm, make_groups(0))[0], 0)
    trained.save(tmp_path / "trainer")
    resumed = engine(trained.config)
    resumed.load(tmp_path / "trainer")
    found = []
    for each in (trained, resumed):
        each.train(build_updates(each.algorithm, make_groups(1))[0], 1)
        questions = [question_of(each.algorithm, teacher) for teacher in TEACHERS]
        answers = [answer for q in questions for answer in each.answer(q, version=2)]
        found.append(np.concatenate([answer["teacher"] for answer in answers]))
    assert np.array_equal(*found)
    kinds = [need.weights.value for need in second_weights(trained.config)]
    assert sorted(kinds) == ["average", "checkpoint", "first"] and len(trained.second) == 3
    assert second_weight_bytes(trained.config, 10) == 10 * (4 + 4 + 4)


def test_weights_of_another_architecture_are_refused_by_the_trainer(
    engine: Callable[..., Any], models: Callable[..., Path], make_config: Callable[..., RunConfig]
) -> None:
    with pytest.raises(ConfigError, match="family qwen2 and qwen3"):
        engine(with_teachers(make_config(models("qwen2")), models("qwen3")))
