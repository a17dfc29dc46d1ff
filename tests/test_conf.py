"""Every file under `conf/` composes into a configuration that vime accepts."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vime.config import CriticPlace, RunConfig
from vime.preflight.compose import CONF, compose_run
from vime.preflight.validation import find_problems

pytestmark = pytest.mark.usefixtures("some_strands_python")

ROOT = CONF.parent
PLAN = "mode=plan"


def options(group: str) -> list[str]:
    """The choices of a group."""
    return sorted(file.stem if file.suffix == ".yaml" else file.name for file in (CONF / group).glob("*.yaml"))


def pairs(first: list[str], second: list[str]) -> list[Any]:
    """All pairs; `make test` has as many of them as have each option once, and `make long` the others."""
    shorter = min(len(first), len(second))
    return [
        pytest.param(one, other, marks=pytest.mark.slow if row % shorter == column % shorter else pytest.mark.long)
        for row, one in enumerate(first)
        for column, other in enumerate(second)
    ]


def composed(*words: str) -> RunConfig:
    """The configuration of a command line."""
    return compose_run(list(words)).config


@pytest.mark.parametrize(("model", "method"), pairs(options("model"), options("method")))
def test_every_model_composes_with_every_method_that_fits_its_context_and_needs_no_further_word(model: str, method: str):
    config = composed(f"+method={method}", f"model={model}", PLAN)
    assert (config.model.name, config.method.name) == (model, method)
    assert config.name == f"{method}_{model}"
    found = {problem.key for problem in find_problems(config)}
    is_too_short = config.model.max_position_embeddings < config.serving.models["actor"].max_model_len
    assert found == ({"serving.models.actor.max_model_len"} if is_too_short else set())


@pytest.mark.parametrize("method", sorted({*options("method")} & {*options("preset")} - {"harbor"}))  # whose data are folders
def test_the_data_follow_the_model(method: str):
    tiny, large = composed(f"+method={method}", PLAN), composed(f"+method={method}", "model=qwen2.5-7b", PLAN)
    assert tiny.data.train.generator and tiny.data.train.path is None
    assert large.data.train.path and large.data.train.generator is None
    names = {dataset.name for dataset in tiny.data.evaluation}
    assert names and not names & {dataset.name for dataset in large.data.evaluation}


@pytest.mark.parametrize(
    ("group", "option"), [(group, option) for group in ("algorithm", "cluster", "logger") for option in options(group)]
)
def test_every_other_option_composes(group: str, option: str):
    config = composed("+method=memagent", "model=qwen2.5-7b", f"{group}={option}", PLAN)
    chosen = {"algorithm": config.algorithm.name, "logger": config.logger.tracker}
    named = chosen[group].value if group in chosen else config.cluster.name
    if group == "algorithm" and config.algorithm.object is not None:  # a class under a name of its own
        named = option
    assert named == option or (option == "auto" and named.startswith("laptop ("))


@pytest.mark.parametrize(("algorithm", "method"), pairs(options("algorithm"), options("method")))
def test_every_algorithm_is_accepted_and_the_same_under_every_method_and_model(algorithm: str, method: str):
    alone = composed(f"algorithm={algorithm}", PLAN)
    larger = (
        ["trainer.tensor_parallel_size=4", "trainer.recompute=true"]
        if alone.algorithm.critic.place is not CriticPlace.none
        else []
    )
    for model, words in (("tiny", []), ("qwen2.5-7b", larger)):  # a second model of 7B does not fit beside the first on two GPUs
        config = composed(f"+method={method}", f"model={model}", f"algorithm={algorithm}", PLAN, *words)
        if algorithm != "sft" or config.data.demonstrations:  # only the tiny model has some
            lacks = ["algorithm.distillation.teachers"] if algorithm == "on_policy_distillation" else []  # which the user names
            assert [problem.key for problem in find_problems(config)] == lacks
        if algorithm not in ("paper", "slime_agentic"):  # these are the method's
            own = dataclasses.replace(config.algorithm, constant_tokens=alone.algorithm.constant_tokens)
            assert own == alone.algorithm
            assert config.rollout.filter == alone.rollout.filter


@pytest.mark.parametrize("cluster", options("cluster"))
def test_a_model_that_asks_for_gpus_plans_on_every_cluster_that_has_them(cluster: str):
    words = "model=qwen2.5-3b", "trainer.tensor_parallel_size=1"  # with recomputation it fits one card
    config = composed("+method=memagent", *words, f"cluster={cluster}", PLAN)
    keys = {problem.key for problem in find_problems(config)}
    assert keys <= {"serving.models.actor.urls"}  # servers that run elsewhere have no addresses of ours


@pytest.mark.parametrize("experiment", options("experiment"))
def test_every_experiment_composes_validates_and_names_its_command(experiment: str):
    config = composed(f"+experiment={experiment}", PLAN)
    assert find_problems(config) == [] and config.name == experiment
    head = (CONF / "experiment" / f"{experiment}.yaml").read_text().splitlines()[:2]
    assert f"# python -m vime.run +experiment={experiment}" in head, head


@pytest.mark.parametrize("sweep", options("sweep"))
def test_every_sweep_lists_values(sweep: str):
    assert compose_run(["+method=memagent", f"+sweep={sweep}", PLAN]).sweep


def test_the_command_line_wins_over_the_recipe():
    config = composed("+experiment=memagent_paper_7b", "trainer.num_steps=7", "name=mine", PLAN)
    assert (config.trainer.num_steps, config.name) == (7, "mine")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_pretrained_model_has_the_precision_of_the_processor_unless_there_are_gpus(
    precision: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("vime.preflight.compose.fast_precision", lambda: precision)
    assert composed("+experiment=smollm2_sst2", PLAN).trainer.precision.value == precision
    assert composed("+experiment=smollm2_sst2", "cluster=one_gpu", PLAN).trainer.precision.value == "bfloat16"


@pytest.mark.parametrize(
    ("flags", "precision"),
    [("avx2 avx512f", "float32"), ("avx512f avx512_bf16", "bfloat16"), ("amx_tile amx_bf16", "bfloat16"), (None, "float32")],
)
def test_the_precision_of_a_processor(flags: str | None, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    processor = tmp_path / "cpuinfo"
    if flags is not None:
        processor.write_text(f"processor\t: 0\nflags\t\t: fpu {flags} sse\n\n")
    monkeypatch.setattr("vime.preflight.compose.PROCESSOR", processor)
    assert composed("+experiment=smollm2_sst2", PLAN).trainer.precision.value == precision


def test_composing_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    config = composed("+method=memagent")
    assert Path(str(config.output_dir)).parent == tmp_path / "outputs" / config.name
    assert list(tmp_path.iterdir()) == []


def test_resume_finds_the_newest_run_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for time in ("2025-01-01_00-00-00", "2025-02-01_00-00-00", "2025-03-01_00-00-00"):
        (tmp_path / "outputs" / "mine" / time).mkdir(parents=True)
    for started in ("2025-01-01_00-00-00", "2025-02-01_00-00-00"):
        (tmp_path / "outputs" / "mine" / started / "config.yaml").write_text("mode: train\n")
    config = composed("+method=memagent", "name=mine", "resume=true")
    assert config.output_dir == str(tmp_path / "outputs" / "mine" / "2025-02-01_00-00-00")
    assert len(list((tmp_path / "outputs" / "mine").iterdir())) == 3


def test_the_readme_names_every_group_and_option():
    text = (CONF / "README.md").read_text()
    for group in ("model", "method", "algorithm", "cluster", "logger", "experiment", "benchmark", "sweep"):
        for option in options(group):
            assert re.search(rf"`?{re.escape(option)}\b", text), f"{group}={option}"


def test_help_shows_commands_and_every_option_without_importing_torch():
    code = "import sys, runpy; sys.argv[1:] = ['--help']\ntry: runpy.run_module('vime.run', run_name='__main__')\n"
    code += "except SystemExit: pass\nassert not {'torch', 'vllm', 'ray', 'megatron'} & set(sys.modules), 'slow import'"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert shown.returncode == 0, shown.stderr
    assert "python -m vime.run +method=memagent" in shown.stdout
    for group in ("model", "method", "algorithm", "cluster", "logger", "experiment", "benchmark", "sweep"):
        for option in options(group):
            assert option in shown.stdout, f"{group}={option}"
