"""From the published files to a training batch: each set is prepared from a fixture in its published layout, read by the
experiment that trains or evaluates on it, graded by its method, and made into weighted samples.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from rich.console import Console

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from agentic.agentflow.benchmarks import BENCHMARKS
from agentic.memagent.reward import score
from agentic.toolorchestra.config import ToolOrchestraConfig
from agentic.toolorchestra.outcome import answer_is_right
from agentic.toolorchestra.reward import preference_of
from agentic.toolorchestra.rewards import Preference
from tools import prepare_data
from tools.prepare_data import main, read_table
from vime.algorithm.batch import build_updates
from vime.algorithm.choice import algorithm_of
from vime.config import RunConfig
from vime.data.dataset import load_rows, to_prompt
from vime.data.source import RowSource
from vime.grading.grade import grade
from vime.preflight.compose import compose_run
from vime.retrieval.corpus import Corpus
from vime.types import Group, Prompt, Rollout, Sample, Status, StopReason

Row = dict[str, Any]


def parquet(path: Path, rows: list[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def lines(path: Path, rows: list[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all prepared data; checksums are not compared, because the fixtures are not the published files."""
    table = {name: {**entry, "sha256": {}} for name, entry in read_table().items()}
    for name in ("ruler_hqa_12800", "ruler_hqa_25600"):
        table[name] = {**table[name], "options": {**table[name]["options"], "size": 5}}
    monkeypatch.setattr(prepare_data, "read_table", lambda: table)
    for variable in ("VIME_AGENTFLOW_DATA", "VIME_MEMAGENT_DATA", "VIME_TOOLORCHESTRA_DATA"):
        monkeypatch.setenv(variable, str(tmp_path / "data"))
    return tmp_path


def prepare(folder: Path, name: str, *sources: Path) -> Row:
    given = ["--from", *map(str, sources)] if sources else []
    main([name, *given, "--out", str(folder / "data")], Console(quiet=True))
    return json.loads((folder / "data" / f"{name}.manifest.json").read_text())


def experiment(name: str, *words: str) -> RunConfig:
    return compose_run([f"+experiment={name}", "mode=plan", *words]).config


def batch(config: RunConfig, prompts: list[Prompt], right: Callable[[Prompt], float]) -> list[Sample]:
    """A right and a wrong rollout of each prompt as weighted samples; `right` grades the gold answer of a prompt."""
    groups = []
    for number, prompt in enumerate(prompts):
        group = Group(prompt=prompt, rollouts=[])
        for member, reward in enumerate((right(prompt), 0.0)):
            sample = Sample(prompt=prompt.messages, label=prompt.ground_truth, rollout_id=2 * number + member)
            sample.tokens, sample.response_length, sample.loss_mask, sample.rollout_log_probs = [1, 2, 3], 2, [1, 1], [-0.5, -0.5]
            status = {"status": Status.COMPLETED, "stop_reason": StopReason.ANSWERED}
            group.rollouts.append(
                Rollout(rollout_id=2 * number + member, group_index=number, samples=[sample], reward=reward, **status)
            )
        groups.append(group)
    (update,), _ = build_updates(algorithm_of(config), groups)
    return update


def checked(update: list[Sample], num_prompts: int) -> None:
    """Half of the samples are rewarded, which the gold answers alone can be."""
    signs = [sample.columns["advantage"] > 0 for sample in update]
    assert len(update) == 2 * num_prompts and sum(signs) == num_prompts


QUESTION = "Which city has the older bridge?"
HOTPOTQA = {
    "question": QUESTION,
    "answer": "Bonn",
    "supporting_facts": {"title": ["Bonn", "Lyon"], "sent_id": [0, 0]},
    "context": {"title": [f"T{i}" for i in range(8)] + ["Bonn", "Lyon"], "sentences": [[f"Fact {i}."] for i in range(10)]},
}


def test_memagents_training_file_and_its_longest_documents(folder: Path):
    row = {
        "prompt": [{"role": "user", "content": QUESTION}],
        "context": "Document 1:\nBonn",
        "reward_model": {"style": "rule", "ground_truth": ["Bonn"]},
        "extra_info": {"index": 0, "question": QUESTION, "num_docs": 200},
    }
    prepare(folder, "hotpotqa_train_32k", parquet(folder / "hotpotqa_train_32k.parquet", [row]))
    train = f"data.train.path={folder / 'data' / 'hotpotqa_train_32k.jsonl'}"
    config = experiment("memagent_paper_7b", train)
    prompt = RowSource(config).next()
    assert prompt.metadata["context"] == "Document 1:\nBonn"
    checked(batch(config, [prompt], lambda p: score(rf"\boxed{{{p.ground_truth[0]}}}", p.ground_truth).score), 1)
    other = {**HOTPOTQA, "question": "Another?"}
    prepare(folder, "hotpotqa_dev", parquet(folder / "distractor" / "validation-00000-of-00001.parquet", [other, HOTPOTQA]))
    published = [{"input": QUESTION, "context": "Document 1:", "answers": ["Bonn"], "num_docs": 50, "index": 0}]
    (folder / "eval_50.json").write_text(json.dumps(published))
    prepare(folder, "ruler_hqa_50", folder / "eval_50.json")
    for name in ("ruler_hqa_12800", "ruler_hqa_25600"):
        manifest = prepare(folder, name)
        assert set(manifest["files"]) == {"hotpotqa_dev.jsonl", "ruler_hqa_50.jsonl"} and manifest["num_rows"] == 1
    longest = config.data.evaluation[-1]
    (row,) = load_rows(longest)
    found = to_prompt(row, index=0, row_number=0, dataset=longest.name)
    assert (longest.name, found.messages[0]["content"], found.ground_truth) == ("ruler_hqa_3_5m", QUESTION, ["Bonn"])
    assert Path(found.metadata["context_file"]).read_text().count("Document ") == 5


def test_a_published_question_that_hotpotqa_does_not_have_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]):
    prepare(folder, "hotpotqa_dev", parquet(folder / "validation-00000-of-00001.parquet", [HOTPOTQA]))
    (folder / "eval_50.json").write_text(json.dumps([{"input": "Unknown?", "context": "c", "answers": ["a"]}]))
    prepare(folder, "ruler_hqa_50", folder / "eval_50.json")
    with pytest.raises(SystemExit):
        prepare(folder, "ruler_hqa_12800")
    assert "1 of 1 questions are not among HotpotQA's rows, like 'Unknown?'" in capsys.readouterr().err


async def test_agentflows_training_set_of_two_published_ones(folder: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        prepare(folder, "agentflow_train")
    assert "prepare_data.py nq_train deepmath_103k agentflow_train" in capsys.readouterr().err
    nq = [{"id": "train_0", "question": "who wrote the first program", "golden_answers": ["Ada Lovelace", "Lovelace"]}]
    prepare(folder, "nq_train", lines(folder / "nq" / "train.jsonl", nq))
    deepmath = [{"question": r"Compute $\frac12+\frac12$.", "final_answer": "1", "difficulty": 3.0, "topic": "Algebra"}]
    prepare(folder, "deepmath_103k", parquet(folder / "train-00000-of-00010.parquet", deepmath))
    prepare(folder, "agentflow_train")
    config = experiment("agentflow_paper")
    source = RowSource(config)
    prompts = [source.next(), source.next()]
    by_grader = {prompt.metadata["grader"]: prompt for prompt in prompts}
    assert by_grader["qa"].messages[0]["content"] == "who wrote the first program?"
    assert by_grader["qa"].ground_truth == ["Ada Lovelace", "Lovelace"] and by_grader["maths"].ground_truth == ["1"]
    grades = {
        prompt.index: (await grade(prompt.metadata["grader"], rf"\boxed{{{prompt.ground_truth[-1]}}}", prompt.ground_truth)).score
        for prompt in prompts
    }
    checked(batch(config, prompts, lambda prompt: grades[prompt.index]), 2)


def test_the_original_codes_file_has_the_answers_of_nq_in_one_text(folder: Path):
    rows = [{"id": 0, "question": "who?", "chain": "", "result": "Ada; A. L.", "source": "nq", "extra_info": {"idx": 0}}]
    file = parquet(folder / "combined_train.parquet", rows)
    (row,) = load_rows(experiment("agentflow_paper", f"data.train.generator_args.file={file}").data.train)
    assert row["reward_model"]["ground_truth"] == ["Ada", "A. L."]


ITEMS: dict[str, Row] = {
    "gameof24": {
        "query": "Using the numbers [1, 1, 1, 8], create an expression that equals 24.",
        "answer": ["(1+1+1)×8"],
        "question": [1, 8],
    },
    "gpqa": {"query": "Which?", "choices": ["A. 0.9", "B. 0.7"], "answer": "B. 0.7"},
    "medqa": {"query": "Which?", "options": ["A. Atropine", "B. Inhaled oxygen"], "answer": "Inhaled oxygen"},
    "bamboogle": {"query": "Who?", "answer": ["james madison"]},
}


@pytest.mark.parametrize("name", BENCHMARKS)
async def test_each_benchmark_of_agentflow(name: str, folder: Path):
    item = ITEMS.get(name, {"query": "How many?", "answer": "7"})
    tags = read_table()["agentflow_aime24"]["instruction"][0]
    file = folder / name / "data.json"
    file.parent.mkdir()
    file.write_text(json.dumps([{"pid": "0", "image": None, **item, "query": f"{item['query']}{tags}"}]))
    manifest = prepare(folder, f"agentflow_{name}", file)
    assert manifest["num_rows"] == 1 and "MIT" in manifest["license"]
    (dataset,) = [dataset for dataset in experiment("agentflow_paper").data.evaluation if dataset.name == name]
    prompt = to_prompt(load_rows(dataset)[0], index=0, row_number=0, dataset=name)
    assert prompt.messages[0]["content"] == item["query"]
    replies = {"medqa": "B", "gpqa": "(B)"}
    answer = replies.get(name, prompt.ground_truth[0])
    found = await grade(
        prompt.metadata["grader"], rf"\boxed{{{answer}}}", prompt.ground_truth, question=prompt.messages[0]["content"]
    )
    assert (found.score, found.decided_by) == (1.0, "rule")


def test_slime_agentics_mathematics(folder: Path):
    before = read_table()["dapo_math_17k"]["instruction"][0]
    rows = [{"prompt": [{"role": "user", "content": f"{before}\n\nHow many?\n\nx"}], "reward_model": {"ground_truth": "7"}}] * 3
    manifest = prepare(folder, "dapo_math_17k", parquet(folder / "dapo-math-17k.parquet", rows))
    assert (manifest["num_read"], manifest["num_rows"]) == (3, 1)
    config = experiment("agentflow_slime_agentic")
    checked(batch(config, [RowSource(config).next()], lambda prompt: float(prompt.ground_truth == ["7"])), 1)


def test_toolorchestras_questions_without_those_of_its_evaluation(folder: Path):
    (folder / "test.tsv").write_text("\tPrompt\tAnswer\twiki_links\n0\tWho was first?\tAda\t[]\n")
    assert prepare(folder, "frames", folder / "test.tsv")["license"] == "Apache-2.0"
    hle = [
        {"id": "a", "question": "Find x.", "answer": "4", "image": "", "category": "Math"},
        {"id": "b", "question": "Look.", "answer": "5", "image": "data:"},
    ]
    prepare(folder, "hle_text", parquet(folder / "test-00000-of-00001.parquet", hle))
    thoughts = [
        {"question_id": 1, "question": "What is 2+2?", "reference_answer": "4", "model_answer": "…", "verifier_score": 1.0},
        {"question_id": 2, "question": "who was first", "reference_answer": "Ada", "model_answer": "…", "verifier_score": 1.0},
        {"question_id": 3, "question": "Prove it.", "reference_answer": "", "model_answer": "…", "verifier_score": 0.0},
    ]
    prepare(folder, "general_thought", parquet(folder / "train-00000.parquet", thoughts))
    manifest = prepare(folder, "toolorchestra_train")
    assert manifest["num_rows"] == 1 and not any(shared["num_same"] for shared in manifest["overlap"].values())
    config = experiment("toolorchestra_paper_8b")
    prompt = RowSource(config).next()
    assert prompt.ground_truth == ["4"] and prompt.metadata["preference_instruction"]
    checked(batch(config, [prompt], lambda p: float(answer_is_right("It is 4.", p.ground_truth[0]))), 1)
    sets = {dataset.name: load_rows(dataset) for dataset in config.data.evaluation if dataset.name in ("hle", "frames")}
    prompts = {name: to_prompt(rows[0], index=0, row_number=0, dataset=name) for name, rows in sets.items()}
    assert {name: len(rows) for name, rows in sets.items()} == {"hle": 1, "frames": 1}
    assert (prompts["hle"].messages[0]["content"], prompts["hle"].ground_truth) == ("Find x.", ["4"])
    assert (prompts["frames"].messages[0]["content"], prompts["frames"].ground_truth) == ("Who was first?", ["Ada"])


def test_the_authors_own_file_keeps_its_preference_vectors(folder: Path):
    rows = [
        {
            "id": "qa____1",
            "category": "qa",
            "problem": "2+2?",
            "answer": "4",
            "tools": [],
            "pref_vec": {"accuracy": 1.0, "cost": 0.3, "search-1": 0.5},
        },
        {
            "id": "qa____2",
            "category": "qa",
            "problem": "3+3?",
            "answer": "6",
            "tools": [],
            "pref_vec": {"accuracy": 1.0, "cost": -0.3},
        },
        {"id": "bank____3", "category": "func_call", "problem": "Pay.", "answer": "", "example": {}, "tools": []},
    ]
    manifest = prepare(folder, "toolorchestra_authors", lines(folder / "data.jsonl", rows))
    assert (manifest["num_read"], manifest["num_left_out"], manifest["num_rows"]) == (3, 1, 2)
    file = f"data.train.generator_args.file={folder / 'data' / 'toolorchestra_authors.jsonl'}"
    config = experiment("toolorchestra_paper_8b", file)
    prompts = {prompt.messages[0]["content"]: prompt for prompt in RowSource(config).prompts()}
    method = ToolOrchestraConfig.of(config)
    vectors = {question: preference_of(method, Group(prompt=prompt, rollouts=[])) for question, prompt in prompts.items()}
    assert vectors["2+2?"] == Preference(accuracy=1.0, cost=0.3, tools={"search-1": 0.5})
    assert min(vectors["3+3?"].weights().values()) >= 0 and prompts["3+3?"].metadata["preference_instruction"]


def test_the_passages_of_toolorchestras_retrieval(folder: Path):
    long = "Ada Lovelace wrote the first program. " * 4
    corpus = lines(folder / "train.jsonl", [{"contents": long}, {"contents": "Too short."}, {"contents": long}])
    manifest = prepare(folder, "toolorchestra_passages", corpus)
    assert (manifest["num_left_out"], manifest["num_duplicates"], manifest["num_rows"], manifest["overlap"]) == (1, 1, 1, {})
    config = experiment("toolorchestra_paper_8b")
    passages = Corpus.scan(Path(str(config.retrieval.corpus)))
    assert passages[0].text == long.strip()
