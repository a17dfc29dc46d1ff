"""Every experiment can be rehearsed: its small configuration passes every check, and only sizes and places differ."""

import json
from dataclasses import asdict, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from vime.config import Mode, RunConfig
from vime.errors import ConfigError
from vime.model.size import num_parameters
from vime.preflight.compose import CONF, compose_run
from vime.preflight.validation import find_problems
from vime.rehearsal.local_data import Shrunk, data_folder
from vime.rehearsal.scripted_client import rehearsal_of
from vime.rehearsal.shrink import FROZEN, NUM_STEPS, model_folder, shrink
from vime.run import run

pytestmark = pytest.mark.usefixtures("some_strands_python")

SEVERAL = ["memagent_tiny_adapters", "smollm2_adapters"]
"""Experiments with several adapters, each of which is rehearsed in a run of its own."""
PACKAGES = {"smollm2_reasoning_gym": "reasoning_gym", "smollm2_adapters": "reasoning_gym"}
"""Experiments that need a package which is not everywhere."""
ABSENT = {*SEVERAL, *(name for name, package in PACKAGES.items() if find_spec(package) is None)}
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml") if path.stem not in ABSENT)
LARGE = [name for name in EXPERIMENTS if "tiny" not in name]
KEPT = ("method", "algorithm", "sandbox", "workspace", "reward_service", "name", "seed", "mode", "deterministic")
"""Settings that a rehearsal leaves unchanged."""


@cache
def composed(name: str) -> RunConfig:
    return compose_run([f"+experiment={name}", "rehearse=true"], check=find_problems).config


@cache
def shrunk(name: str) -> Shrunk:
    return shrink(composed(name))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_a_rehearsal_that_passes_the_checks(name: str):
    small = shrunk(name).config
    assert not find_problems(replace(small, mode=Mode.plan))
    assert small.cluster.gpus_per_node == 0 and small.trainer.num_steps <= NUM_STEPS
    assert num_parameters(small.model) < 100e6


def test_a_critic_warms_up_for_less_than_the_rehearsal():
    words = ["+experiment=memagent_paper_7b", "algorithm=sao", "algorithm.critic.warmup_steps=10", "mode=plan"]
    small = shrink(compose_run(words).config).config
    assert small.algorithm.critic.warmup_steps == small.trainer.num_steps - 1
    assert not find_problems(small)


def test_a_teacher_in_the_trainer_gets_the_weights_of_the_small_model():
    words = ["+experiment=memagent_paper_7b", "algorithm=on_policy_distillation", "mode=plan"]
    teachers = "{solver: {place: trainer, checkpoint: /no/such/folder}, self: {place: trainer, decay: 0.5, hint: os.path.join}}"
    found = shrink(compose_run([*words, f"algorithm.distillation.teachers={teachers}"]).config)
    own, small = found.config.algorithm.distillation.teachers, found.config.model.checkpoint
    assert own["solver"].checkpoint == small and own["self"].checkpoint is None and not find_problems(found.config)
    assert [line for line in found.replaced if "teacher solver" in line and "/no/such/folder" in line]


@pytest.mark.parametrize("name", SEVERAL)
def test_several_adapters_are_not_rehearsed_together(name: str):
    if find_spec(PACKAGES.get(name, "vime")) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed")
    with pytest.raises(ConfigError, match="give the words of one of them"):
        shrunk(name)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_only_sizes_and_places_differ_from_the_experiment(name: str):
    own, small = composed(name), shrunk(name).config
    for key in KEPT:
        assert getattr(own, key) == getattr(small, key), key
    for key in ("temperature", "top_p", "max_staleness", "generate_timeout_seconds", "filter", "producer"):
        assert getattr(own.rollout, key) == getattr(small.rollout, key), key
    for key in ("lr", "lr_schedule", "max_tokens_per_micro_batch", "recompute", "clip_grad", "weight_decay"):
        assert getattr(own.trainer, key) == getattr(small.trainer, key), key
    assert {model: served.max_model_len for model, served in own.serving.models.items()} == {
        model: served.max_model_len for model, served in small.serving.models.items() if model != FROZEN
    }
    assert [dataset.name for dataset in own.data.evaluation] == [dataset.name for dataset in small.data.evaluation]
    assert own.evaluation.rows == small.evaluation.rows and own.model.vocab_size == small.model.vocab_size


@pytest.mark.parametrize("name", LARGE)
def test_every_file_that_is_not_there_is_made_by_the_method(name: str):
    found = shrunk(name)
    if not found.files:
        return
    made = rehearsal_of(found.config).files(composed(name))
    assert set(found.files) <= set(made) and all(made.values())
    assert all(json.dumps(rows) for rows in made.values())


@pytest.mark.parametrize("name", LARGE)
def test_one_server_answers_for_all_frozen_models(name: str):
    models = shrunk(name).config.serving.models
    frozen = [model for name, model in models.items() if not model.trained and name != FROZEN]
    addresses = {url.removesuffix("/v1") for model in frozen for url in model.urls}
    started = [name for name, model in models.items() if not model.urls]
    assert all(model.urls for model in frozen) or (name == "memagent_four_models" and len(addresses) <= 1)
    assert started[:1] in ([], ["actor"], [FROZEN]) and len(addresses) == bool(frozen)


def test_the_experiment_itself_stays_as_it_is():
    own = compose_run(["+experiment=toolorchestra_slime_agentic_8b", "rehearse=true"]).config
    before = asdict(own)
    shrink(own)
    assert asdict(own) == before


def test_a_rehearsal_has_a_folder_that_no_run_resumes_from():
    config = composed("memagent_paper_7b")
    assert Path(str(config.output_dir)).parts[-3:-1] == ("rehearsals", "memagent_paper_7b")
    assert model_folder(config).is_relative_to(str(config.output_dir)) and data_folder(config) != model_folder(config)


def test_the_plan_of_a_rehearsal_says_what_is_replaced_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "run"
    assert run(["+experiment=agentflow_paper", "rehearse=true", "mode=plan", f"output_dir={folder}"]) == 0
    shown = capsys.readouterr().out
    assert "rehearsal: model: Qwen/Qwen2.5-7B-Instruct is a random qwen2 model" in shown and "2 steps: 16 rollouts" in shown
    assert not folder.exists()
