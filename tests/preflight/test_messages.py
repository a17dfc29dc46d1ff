"""Messages about common mistakes: the setting that was meant, and the correction."""

from pathlib import Path
from typing import Any

import pytest

from vime.errors import ConfigError
from vime.preflight import compose
from vime.preflight.compose import compose_run, why_finished
from vime.preflight.rules import vllm_arguments
from vime.preflight.sweep import expand, scores_of, show
from vime.preflight.validation import find_problems
from vime.report.summary import RunScore, summarize_runs, write_summary

PLAN = ["+method=memagent", "mode=plan"]


def remedies(*words: str) -> dict[str, str]:
    """The remedy of each problem of a command line."""
    try:
        compose_run([*PLAN, *words], check=find_problems)
    except ConfigError as error:
        return {problem.key: problem.remedy for problem in error.problems}
    return {}


def test_a_key_is_found_by_the_name_of_the_setting_or_its_initials() -> None:
    found = remedies("lr=1e-3", "num_steps=3", "trainer.learning_rate=1", "trainer.num_step=3", "zzzz=1")
    assert (
        "did you mean trainer.lr or algorithm.critic.lr?" in found["lr"]
        and "did you mean trainer.num_steps?" in found["num_steps"]
    )
    assert "did you mean trainer.lr or algorithm.critic.lr?" in found["trainer.learning_rate"]
    assert "did you mean trainer.num_steps?" in found["trainer.num_step"] and "did you mean" not in found["zzzz"]


def test_a_checkpoint_in_place_of_a_model_names_its_file_or_how_to_choose_it() -> None:
    assert remedies("model=Qwen/Qwen2.5-7B-Instruct")["model"].endswith("this checkpoint is model=qwen2.5-7b")
    assert "model=qwen2.5-7b model.checkpoint=mine/Qwen2.5-7B-x" in remedies("model=mine/Qwen2.5-7B-x")["model"]


def test_a_method_beside_an_experiment_that_chooses_another_is_said_in_our_words() -> None:
    found = remedies("+experiment=agentflow_tiny_sft")["method"]
    assert "chooses method=agentflow: leave out +method=memagent" in found and "override" not in found


def test_a_path_of_data_replaces_the_generator_that_the_preset_brings(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text('{"question": "2+2?", "answer": "4"}\n')
    train = compose_run([*PLAN, f"data.train.path={file}"], check=find_problems).config.data.train
    assert (train.path, train.generator, train.num_items) == (str(file), None, None)
    both = remedies(f"data.train.path={file}", "data.train.generator=agentic.memagent.tiny.task.generate_rows")
    assert "is also set" in both["data.train.path"], "nobody knows which of two words is meant"


@pytest.mark.parametrize("path", ["hf://datasts/a/b/c.jsonl", "hf://datasets/a/b", "s3://bucket/file.jsonl"])
def test_an_address_that_is_none_of_the_hub_is_refused(path: str) -> None:
    assert "hf://datasets/OWNER/NAME@REVISION/FILE" in remedies(f"data.train.path={path}")["data.train.path"]


def test_an_argument_that_vllm_does_not_know_is_refused_with_the_one_that_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"enable_prefix_caching": None, "kv_cache_dtype": ["auto", "fp8"]}
    monkeypatch.setattr(vllm_arguments, "known_flags", lambda: known)
    arguments = "+serving.models.actor.vllm_args"
    key = "serving.models.actor.vllm_args"
    assert (
        "did you mean enable_prefix_caching?" in remedies(f"{arguments}.enable-prefix-cachin=true")[f"{key}.enable-prefix-cachin"]
    )
    assert "use one of auto, fp8" in remedies(f"{arguments}.kv_cache_dtype=fp9")[f"{key}.kv_cache_dtype"]
    assert list(remedies(f"{arguments}.kv-cache-dtype=fp8")) == ["algorithm.correction.mode"], "vLLM knows it"
    monkeypatch.setattr(vllm_arguments, "known_flags", lambda: None)
    assert not remedies(f"{arguments}.anything=1"), "where vLLM cannot be asked, its server says it"


def test_a_launcher_is_refused_without_a_sweep_and_an_interval_with_one() -> None:
    assert "add --multirun" in remedies("hydra/launcher=joblib")["hydra/launcher"]
    with pytest.raises(ConfigError, match="an interval has no list of values"):
        expand([*PLAN, "trainer.lr=interval(1e-4,1e-3)"])


def test_a_finished_run_is_not_opened_again_unless_there_is_more_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose_run(["+method=memagent", f"output_dir={tmp_path}"]).config
    monkeypatch.setattr(compose, "read_config", lambda folder: compose.plain(config))
    assert why_finished(tmp_path, config) is None, "there is no summary yet"
    monkeypatch.setattr(compose, "read_summary", lambda folder: {"num_steps": config.trainer.num_steps})
    found = why_finished(tmp_path, config)
    assert found is not None and f"trainer.num_steps={2 * config.trainer.num_steps}" in found
    monkeypatch.setattr(compose, "read_summary", lambda folder: {"num_steps": config.trainer.num_steps - 1})
    assert why_finished(tmp_path, config) is None


def test_the_table_of_a_sweep_shows_scores_and_breaks_no_line_in_a_pipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"dataset": "docs_20", "num_items": 2, "temperature": 1.0, "lenient": [1.0, 1.0], "num_failed": 0, "run": 0}
    strict = {"scaffold": [0.0, 0.0], "trained": [1.0, 0.0]}
    rows = {name: summarize_runs([RunScore(row=name, strict=values, **row)]) for name, values in strict.items()}
    (tmp_path / "0").mkdir()
    write_summary(tmp_path / "0", {"mode": "train", "datasets": {"docs_20": rows}})
    assert scores_of(tmp_path / "0") == {"docs_20": "50.0 (trained scaffold)"} and scores_of(tmp_path / "1") == {}
    long = "trainer.lr=" + "1" * 300
    show([["seed=0", long], ["seed=0", "trainer.lr=2"]], [0, 1], tmp_path)
    shown = capsys.readouterr().out
    assert long in shown and "50.0 (trained scaffold)" in shown and "failed" in shown and "seed=0" not in shown


@pytest.mark.parametrize("plus", ["", "+"])
@pytest.mark.parametrize(
    "key",
    [
        "model.chat_template_args",
        "model.rope_parameters",
        "trainer.megatron_args",
        "serving.router_args",
        "serving.models.actor.vllm_args",
        "data.train.generator_args",
    ],
)
def test_a_whole_dictionary_goes_into_a_free_one_with_or_without_a_plus(key: str, plus: str) -> None:
    found: Any = compose_run(["+method=memagent", "mode=plan", f"{plus}{key}={{mine: {{a: 1}}, b: x}}"]).config
    for name in key.split("."):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    assert (found["mine"], found["b"]) == ({"a": 1}, "x")


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("trainer={lrr: 1e-4}", "there is no such key; did you mean trainer.lr"),
        ("serving.models.actor={chekpoint: x}", "did you mean serving.models.actor.checkpoint"),
        ("serving.models.actor={chat: {bdy: {}}}", "did you mean serving.models.actor.chat.body"),
        ("model.chat_template_args=[1]", "write model.chat_template_args={name: value}"),
    ],
)
def test_a_dictionary_with_a_key_that_is_none_names_the_one_that_was_meant(word: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as raised:
        compose_run(["+method=memagent", "mode=plan", word])
    assert remedy in str(raised.value)
