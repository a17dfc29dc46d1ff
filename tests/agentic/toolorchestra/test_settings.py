"""ToolOrchestra's settings: what is refused with which key, the published numbers, and the places of servers."""

from pathlib import Path
from typing import Any

import pytest

from agentic.toolorchestra.config import TAU2_ROWS, ToolOrchestraConfig, _uses_tau2
from agentic.toolorchestra.rewards import Variant
from agentic.toolorchestra.settings import (
    ExpertConfig,
    LimitsConfig,
    PreferenceConfig,
    RandomizationConfig,
    RewardConfig,
    ToolsConfig,
)
from agentic.toolorchestra.tau2_splits import SPLITS
from agentic.toolorchestra.training_data import rows
from vime.cluster.placement import server_places
from vime.config import DatasetConfig, Mode, RetrievalConfig, RunConfig, ServedModelConfig, ServingConfig
from vime.errors import ConfigError
from vime.preflight.compose import compose_run
from vime.preflight.plan import show_plan
from vime.preflight.rules.numbers import ranges
from vime.preflight.validation import find_problems

SERVED = {"actor": ServedModelConfig(trained=True), "base": ServedModelConfig()}
EXPERTS = {"one": ExpertConfig(model="base")}
TOOLS = ToolsConfig(search=["one"], answer=["one"])
SLIME = "+experiment=toolorchestra_slime_agentic_8b"


def problems(*, retrieval: RetrievalConfig | None = None, **settings: Any) -> dict[str, str]:
    """Remedies by key."""
    method = ToolOrchestraConfig(**{"experts": EXPERTS, "tools": TOOLS, **settings})
    retrieval = retrieval or RetrievalConfig(url="http://127.0.0.1:8000")
    config = RunConfig(mode=Mode.plan, method=method, serving=ServingConfig(models=SERVED), retrieval=retrieval)
    return {problem.key: problem.remedy for problem in [*method.problems(config), *ranges(config)]}


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"experts": {"one": ExpertConfig(model="nobody")}}, "method.experts.one.model"),
        ({"experts": {"one": ExpertConfig(model="actor")}}, "method.experts.one.model"),
        ({"experts": {"one": ExpertConfig(seconds=-1)}}, "method.experts.one.seconds"),
        (
            {"experts": {"one": ExpertConfig(dollars_per_million_input_tokens=-1)}},
            "method.experts.one.dollars_per_million_input_tokens",
        ),
        ({"tools": ToolsConfig(answer=["two"])}, "method.tools.answer"),
        ({"tools": ToolsConfig(search=["one"])}, "method.tools.answer"),
        ({"tools": ToolsConfig(answer=["one", "one"])}, "method.tools.answer"),
        ({"retrieval": RetrievalConfig()}, "method.tools.search"),
        ({"preference": PreferenceConfig(cost=-0.3)}, "method.preference.cost"),
        ({"preference": PreferenceConfig(tools={"two": 0.5})}, "method.preference.tools.two"),
        ({"shaping": RewardConfig(share=1.0)}, "method.shaping.share"),
        ({"shaping": RewardConfig(dollars=0.0)}, "method.shaping.dollars"),
        ({"shaping": RewardConfig(judge="actor")}, "method.shaping.judge"),
        ({"customer": "nobody"}, "method.customer"),
        ({"limits": LimitsConfig(turns=0)}, "method.limits.turns"),
        ({"limits": LimitsConfig(seconds=0)}, "method.limits.seconds"),
        ({"randomization": RandomizationConfig(price_factor=0.5)}, "method.randomization.price_factor"),
    ],
)
def test_wrong_settings_are_refused_by_key(settings: dict[str, Any], key: str):
    assert problems() == {}
    found = problems(**settings)
    assert set(found) == {key} and found[key]


def test_the_tiny_run_has_three_servers_of_shipped_models_and_its_own_passages():
    config = compose_run(["+method=toolorchestra"], check=find_problems).config
    folders = {name: Path(str(model.checkpoint or config.model.checkpoint)) for name, model in config.serving.models.items()}
    assert {name: folder.name for name, folder in folders.items()} == {
        "actor": "orchestrator",
        "base": "junior",
        "strong": "senior",
    }
    assert all((folder / "model.safetensors").is_file() for folder in folders.values())
    assert config.retrieval.is_started and config.model.name == "tiny"


def test_the_slime_agentic_plan_shows_every_server_and_port(capsys: pytest.CaptureFixture[str]):
    config = compose_run([SLIME, "cluster=one_node", "mode=plan"], check=find_problems).config
    show_plan(config)
    shown = capsys.readouterr().out
    assert all(str(port) in shown for port in (8000, *range(30001, 30008)))
    models = config.serving.models
    assert {model.port: model.checkpoint for model in models.values() if model.port} == {
        30001: "Qwen/Qwen3-32B-FP8",
        30002: "Qwen/Qwen2.5-Coder-32B-Instruct",
        30003: "Qwen/Qwen2.5-Math-7B-Instruct",
        30004: "Qwen/Qwen2.5-Math-72B-Instruct",
        30005: "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
        30006: "Qwen/Qwen3-30B-A3B",
        30007: "Qwen/Qwen3-14B",
    }
    gpus = {name: [place.gpus for place in places] for name, places in server_places(config).items()}
    assert gpus["actor"] == [(0, 1), (2, 3)] and gpus["math_72b"] == [(7,)]
    assert gpus["base"] == gpus["math_7b"] == [(4,)] and gpus["r1_32b"] == gpus["moe_30b"] == [(5,)]
    assert gpus["coder_32b"] == gpus["qwen3_14b"] == [(6,)]


def test_experiments_have_the_published_numbers():
    paper, slime = (
        compose_run([f"+experiment=toolorchestra_{name}_8b", "mode=plan"], check=find_problems).config
        for name in ("paper", "slime_agentic")
    )
    assert isinstance(paper.method, ToolOrchestraConfig) and isinstance(slime.method, ToolOrchestraConfig)
    assert (paper.method.shaping.variant, slime.method.shaping.variant) == (Variant.paper, Variant.paper)
    assert (paper.method.limits.turns, slime.method.limits.turns) == (50, 12)
    assert (paper.rollout.num_prompts, paper.rollout.temperature) == (16, 1.0)
    assert (slime.rollout.num_prompts, slime.rollout.temperature) == (32, 0.7)
    assert (paper.algorithm.kl_coefficient, paper.algorithm.clip_high, paper.algorithm.dual_clip) == (1e-4, 0.28, 10.0)
    assert (slime.algorithm.kl_coefficient, slime.algorithm.clip_high, slime.algorithm.dual_clip) == (1e-3, 0.3, None)
    assert slime.rollout.num_prompts * slime.rollout.num_samples_per_prompt // slime.trainer.num_updates_per_batch == 128
    for config in (paper, slime):
        assert config.model.chat_template_args["enable_thinking"] and config.trainer.lr == 1e-6
        method = ToolOrchestraConfig.of(config)
        assert method.shaping.judge == "base" and method.orchestrator_dollars_per_million_output_tokens == 0.2
    shown, steps = (
        [tuple(getattr(ToolOrchestraConfig.of(config).limits, name) for name in names) for config in (paper, slime)]
        for names in (
            ("document_characters", "findings_tokens"),
            ("environment_steps", "evaluation_environment_steps", "seconds"),
        )
    )
    assert shown == [(4000, 24000), (500, 0)] and steps == [(40, 200, 3500.0), (48, 48, 360.0)]
    assert not paper.method.tools.call_expert_for_questions and slime.method.tools.call_expert_for_questions
    assert paper.data.train.generator_args["preferences"] and "preferences" not in slime.data.train.generator_args


def test_frozen_servers_that_do_not_share_need_a_gpu_each():
    config = compose_run([SLIME, "mode=plan", "cluster.share_frozen_gpus=false"]).config
    assert "cluster.num_frozen_gpus" in {problem.key for problem in find_problems(config)}
    crowded = compose_run([SLIME, "mode=plan", "serving.models.math_7b.gpu_memory_utilization=0.6"]).config
    assert [problem.key for problem in find_problems(crowded)] == ["serving.models.math_7b.gpu_memory_utilization"]


def test_training_rows_leave_out_what_cannot_be_played(tmp_path: Path):
    file = tmp_path / "train.jsonl"
    file.write_text('{"problem": "2+2?", "answer": "4", "category": "qa"}\n{"problem": "x", "category": "func_call"}\n')
    assert [row["problem"] for row in rows(num_items=9, seed=0, file=str(file))] == ["2+2?"]
    with pytest.raises(ConfigError, match="--only qa"):
        rows(num_items=9, seed=0, file=str(tmp_path / "none.jsonl"))


def test_a_run_trained_on_tau2_is_scored_on_its_test_split_and_the_papers_run_on_the_base_split():
    paper, slime = (
        compose_run([f"+experiment=toolorchestra_{name}_8b", "mode=plan"]).config for name in ("paper", "slime_agentic")
    )
    splits = [
        {d.generator_args["split"] for d in config.data.evaluation if d.generator == TAU2_ROWS} for config in (paper, slime)
    ]
    assert splits == [{"base"}, {"test"}]
    assert "tau2_domains" not in paper.data.train.generator_args
    sizes = {d.name: d.num_items for d in slime.data.evaluation if d.generator == TAU2_ROWS}
    assert sizes == {f"tau2_test_{domain}": number for domain, number in SPLITS["test"].items()}


def test_training_on_what_is_evaluated_is_refused_in_the_plan_with_counts():
    words = [SLIME, "mode=plan", "data.evaluation.0.generator_args.split=base"]
    (problem,) = find_problems(compose_run(words).config)
    assert problem.key == "data.evaluation.0.generator_args.split" and "30 of the 50 tasks of airline" in problem.remedy


def test_the_base_split_of_tau2_is_its_training_and_test_split():
    assert sum(SPLITS["base"].values()) == 278
    assert all(SPLITS["train"][name] + SPLITS["test"][name] == number for name, number in SPLITS["base"].items())


def test_tasks_of_tau2_may_occur_several_times_among_the_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "train.jsonl"
    file.write_text('{"problem": "2+2?", "answer": "4", "category": "qa"}\n')
    task = {"prompt": "I want a refund.", "answer": "0", "domain": "retail", "task_id": "0", "category": "func_call"}
    monkeypatch.setattr("agentic.toolorchestra.training_data.tau2_rows", lambda **_: [task])
    for times in (1, 3):
        found = rows(num_items=9, seed=0, file=str(file), tau2_domains=["retail"], tau2_times=times)
        assert sum(row.get("task_id") == "0" for row in found) == times and len(found) == times + 1


def test_tasks_of_tau2_with_a_preference_need_the_package_as_well():
    source = {"generator": TAU2_ROWS, "generator_args": {"domains": ["retail"], "split": "base"}}
    wished = DatasetConfig(
        name="w", generator="agentic.toolorchestra.preferences.rows", generator_args={"source": source}, num_items=9
    )
    plain = DatasetConfig(name="q", generator="agentic.toolorchestra.preferences.rows", generator_args={"source": {"path": "x"}})
    assert _uses_tau2(wished) and not _uses_tau2(plain)
