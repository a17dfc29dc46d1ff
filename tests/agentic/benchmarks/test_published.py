"""Every benchmark's configuration, and what is said where a file is absent or another one."""

import re
from pathlib import Path

import pytest

from agentic.benchmarks.maths_problems import Gsm8k
from agentic.benchmarks.published import drawn
from tests.agentic.benchmarks.asking import generated, written
from vime.config import RunConfig
from vime.data.dataset import load_rows, to_prompt
from vime.errors import ConfigError
from vime.preflight.compose import CONF, compose_run
from vime.preflight.validation import find_problems

NAMES = sorted(file.stem for file in (CONF / "benchmark").glob("*.yaml"))
WITH_A_FILE = ["gsm8k", "math500", "aime24", "aime25", "humaneval", "mbpp", "ifeval", "bfcl"]


def composed(*words: str) -> RunConfig:
    return compose_run([*words, "mode=plan"]).config


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_composes_validates_and_names_its_command(name: str):
    config = composed(f"+benchmark={name}", "model=smollm2-135m")
    assert find_problems(config) == [] and config.name == f"benchmark_{name}_smollm2-135m"
    assert all(dataset.name == name or dataset.name.startswith(f"{name}_") for dataset in config.data.evaluation)
    assert (config.evaluation.temperature, config.evaluation.num_runs) == (0.0, 1)
    assert f"# python -m vime.run +benchmark={name} model=smollm2-135m" in (CONF / "benchmark" / f"{name}.yaml").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_evaluates_and_trains_on_nothing_else(name: str):
    assert compose_run([f"+benchmark={name}", "model=qwen2.5-7b"]).config.mode.value == "eval"
    data = composed(f"+benchmark={name}").data
    for dataset in data.evaluation:  # a run that trains is refused for sharing its items
        settings = {key: value for key, value in dataset.generator_args["settings"].items() if key != "categories"}
        assert data.train.generator_args == dataset.generator_args | {"settings": settings}


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_has_every_benchmark(name: str):
    assert re.search(rf"\| `{name}` \|", (CONF.parent / "agentic" / "benchmarks" / "README.md").read_text())


@pytest.mark.parametrize("name", [name for name in WITH_A_FILE if name != "ifeval"])
def test_an_absent_file_is_named_with_its_folder_and_the_way_to_get_it(name: str, tmp_path: Path):
    config = composed(f"+benchmark={name}", f"method.settings.folder={tmp_path}")
    with pytest.raises(ConfigError) as caught:
        load_rows(config.data.evaluation[0], key="data.evaluation.0")
    (problem,) = caught.value.problems
    assert problem.key == "method.settings.folder" and problem.value == str(tmp_path)
    assert "holds none of" in problem.remedy and re.search(r"take |pip download", problem.remedy)


def test_a_file_of_another_layout_is_refused(tmp_path: Path):
    folder = written(tmp_path, "gsm8k.jsonl", [{"question": "2 + 2?", "answer": "4"}])
    with pytest.raises(ConfigError, match="another layout than the published ones"):
        generated("agentic.benchmarks.maths_problems.Gsm8k", None, folder=folder)


def test_an_item_is_a_prompt_with_the_published_row(tmp_path: Path):
    item = {"question": "2 + 2?", "answer": "It is <<2+2=4>>4.\n#### 4"}
    (row,) = generated("agentic.benchmarks.maths_problems.Gsm8k", None, folder=written(tmp_path, "gsm8k.jsonl", [item]))
    prompt = to_prompt(row, index=0, row_number=0, dataset="gsm8k")
    assert prompt.messages[0]["content"].startswith("2 + 2?\nPlease reason") and prompt.ground_truth == ["4"]
    assert prompt.metadata["item"] == item


def test_some_items_are_drawn_by_the_seed_in_their_order(tmp_path: Path):
    items = [{"question": f"{n}?", "answer": f"it is\n#### {n}"} for n in range(40)]
    benchmark = Gsm8k(folder=written(tmp_path, "gsm8k.jsonl", items))
    few = [[row["answer"] for row in benchmark.rows(split="eval", num_items=5, seed=seed)] for seed in (0, 0, 1)]
    assert few[0] == few[1] != few[2] and few[0] == sorted(few[0], key=int)
    assert len(drawn(items, 50, 0)) == len(drawn(items, None, 0)) == 40


def test_the_hubs_file_is_read_at_its_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[str, str, str | None]] = []
    file = Path(written(tmp_path, "test.jsonl", [{"question": "2 + 2?", "answer": "so\n#### 4"}])) / "test.jsonl"

    def download(repository: str, name: str, *, repo_type: str, revision: str | None) -> str:
        assert repo_type == "dataset"
        asked.append((repository, name, revision))
        return str(file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    (row,) = generated("agentic.benchmarks.maths_problems.Gsm8k", None, hub=True, folder="/no/such/folder")
    assert row["answer"] == "4"
    assert asked == [("openai/gsm8k", "main/test-00000-of-00001.parquet", "cc7b047b6e5bb11b4f1af84efc572db110a51b3c")]
