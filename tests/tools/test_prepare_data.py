"""Data sets prepared from local files: cleaned, checked, with a manifest; wrong files and no network said clearly."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from cleaned_rows import TYPES, Recipe, clean, overlap
from made_rows import asdiv_row

from tools import prepare_data
from tools.prepare_data import holds_rows, main, read_table, recipe_of
from tools.prepare_tasks import SOURCES, SWE
from vime.grading.qa import normalize
from vime.hooks import load_hook

TABLE = read_table()
PROBLEM = TABLE["dapo_math_17k"]["instruction"][0]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def dapo(question: str, answer: str) -> dict[str, Any]:
    text = f'{PROBLEM}\n\n{question}\n\nRemember to put your answer on its own line after "Answer:".'
    return {"prompt": [{"role": "user", "content": text}], "reward_model": {"ground_truth": answer, "style": "rule"}}


def prepared(out: Path, name: str, source: Path) -> tuple[list[dict[str, Any]], dict[str, Any], str]:
    console = Console(record=True, width=200)
    main([name, "--from", str(source), "--out", str(out)], console)
    rows = [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()]
    return rows, json.loads((out / f"{name}.manifest.json").read_text()), console.export_text()


@pytest.mark.parametrize("name", TABLE)
def test_every_entry_of_the_table_is_complete(name: str):
    entry = TABLE[name]
    recipe = recipe_of(entry)
    assert entry["role"] in ("train", "evaluation", "corpus") and entry["method"] and recipe.question
    assert set(recipe.schema.values()) <= {*TYPES, "any"}
    assert sum(source in entry for source in ("url", "repository", "made_from")) == 1
    assert all(callable(load_hook(entry[hook])) for hook in ("make", "convert") if hook in entry)
    if "made_from" in entry:
        assert {*entry["made_from"], *entry.get("without", [])} <= set(TABLE) and "make" in entry and "revision" not in entry
        return
    assert entry["revision"] == "main" or len(entry["revision"]) == 40
    if "tasks" in entry:
        assert entry["method"] == "coding" and (entry["tasks"] == SWE or entry["tasks"] in SOURCES)
    if entry.get("tasks", SWE) == SWE:
        assert all(holds_rows(file) for file in entry.get("files", [Path(entry.get("url", "")).name]))


def test_duplicates_are_removed_and_those_with_another_answer_counted(tmp_path: Path):
    rows = [dapo("1 + 1?", "2"), dapo("1  +  1?", "2"), dapo("1 - 1?", "0"), dapo("1 + 1?", "3")]
    kept, manifest, text = prepared(tmp_path, "dapo_math_17k", write(tmp_path / "dapo.jsonl", rows))
    assert [row["reward_model"]["ground_truth"] for row in kept] == ["2", "0"]
    counts = {key: manifest[key] for key in ("num_read", "num_duplicates", "num_conflicts", "num_rows")}
    assert counts == {"num_read": 4, "num_duplicates": 2, "num_conflicts": 1, "num_rows": 2}
    assert manifest["revision"] == "local files" and not manifest["pinned"] and "2 duplicates removed" in text


def test_questions_of_training_that_an_evaluation_has_are_reported(tmp_path: Path):
    long = "Let a and b be two numbers whose sum is ten and whose product is twenty one find both"
    write(tmp_path / "aime.jsonl", [{"problem": long, "answer": "3"}, {"problem": "Other?", "answer": 5}])
    prepared(tmp_path, "aime_2024", tmp_path / "aime.jsonl")
    rows = [dapo(long.upper(), "3"), dapo(f"Hint: {long}, quickly", "3"), dapo("Unlike anything else?", "1")]
    _, manifest, text = prepared(tmp_path, "dapo_math_17k", write(tmp_path / "dapo.jsonl", rows))
    assert (manifest["overlap"]["aime_2024"]["num_same"], manifest["overlap"]["aime_2024"]["num_similar"]) == (1, 1)
    assert "shared with aime_2024: 2" in text


def test_nulls_are_dropped_where_the_file_is_full_of_them():
    row = {
        "id": 1,
        "user_scenario": {"persona": None, "instructions": {"domain": "bank"}},
        "evaluation_criteria": {"actions": [{"name": "pay", "arguments": {"amount": 5, "seat": None, "day": 0}}]},
    }
    cleaned = clean([row], recipe_of(TABLE["toolscale"])).rows[0]
    assert cleaned["evaluation_criteria"]["actions"][0]["arguments"] == {"amount": 5, "day": 0}
    assert cleaned["user_scenario"] == {"instructions": {"domain": "bank"}}


def test_questions_with_pictures_are_left_out_and_fields_renamed():
    hle = [{"question": "Text?", "answer": "a", "image": ""}, {"question": "Picture?", "answer": "b", "image": "data:…"}]
    result = clean(hle, recipe_of(TABLE["hle_text"]))
    assert [row["question"] for row in result.rows] == ["Text?"] and result.num_left_out == 1
    frames = clean([{"Prompt": "Who?", "Answer": "He"}], recipe_of(TABLE["frames"])).rows
    assert frames == [{"question": "Who?", "answer": "He"}]


def test_the_instruction_of_a_question_is_removed():
    query = "How many?" + TABLE["agentflow_amc23"]["instruction"][0]
    rows = clean([{"question": [1, 2], "query": query, "answer": 3}], recipe_of(TABLE["agentflow_amc23"])).rows
    assert rows == [{"question": "How many?", "answer": 3}]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"problem": "x"}, "row 1 has no field 'answer'; it has problem"),
        ({"problem": 7, "answer": "1"}, "row 1: field 'problem' is '7', expected text"),
        ({"problem": " ", "answer": "1"}, "expected text"),
    ],
)
def test_a_row_that_breaks_the_schema_is_named(row: dict, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = write(tmp_path / "aime.jsonl", [{"problem": "fine", "answer": 1}, row])
    with pytest.raises(SystemExit) as ended:
        main(["aime_2024", "--from", str(source), "--out", str(tmp_path / "out")])
    assert ended.value.code == 1 and message in capsys.readouterr().err
    assert not (tmp_path / "out" / "aime_2024.jsonl").exists()


def test_a_damaged_file_a_missing_one_and_an_unknown_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "nq").mkdir()
    write(tmp_path / "nq" / "train.jsonl", [{"question": "q", "golden_answers": ["a"]}])
    for words, message in (
        (["nq_train", "--from", str(tmp_path / "nq")], "its SHA-256 is"),
        (["nq_train", "--from", str(tmp_path / "nowhere")], "there is no such file"),
        (["nq"], "there is no data set nq; there are: hotpotqa_train_32k"),
        (["nq_train", "frames", "--from", str(tmp_path)], "give one NAME with --from"),
    ):
        with pytest.raises(SystemExit):
            main([*words, "--out", str(tmp_path / "out")])
        assert message in capsys.readouterr().err


def test_without_network_the_error_names_the_files_to_bring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def no_network(entry: dict[str, Any]) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(prepare_data, "_from_hub", no_network)
    console = Console(record=True, width=200)
    with pytest.raises(SystemExit):
        main(["toolscale", "--out", str(tmp_path)], console)
    error = capsys.readouterr().err
    assert "toolscale cannot be downloaded (OSError: Name or service not known)" in error
    assert "--from PATH of *.parquet, data/*.parquet of nvidia/ToolScale at main" in error
    assert "revision main is not pinned" in console.export_text()


def test_parquet_and_tsv_are_read(tmp_path: Path):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([{"problem": "p", "answer": "1"}, {"problem": "q", "answer": "2"}]), tmp_path / "a.parquet"
    )
    rows, _, _ = prepared(tmp_path, "aime_2024", tmp_path / "a.parquet")
    assert rows == [{"problem": "p", "answer": "1"}, {"problem": "q", "answer": "2"}]
    (tmp_path / "frames.tsv").write_text("\tPrompt\tAnswer\n0\tWho\tHe\n")
    rows, manifest, _ = prepared(tmp_path, "frames", tmp_path / "frames.tsv")
    assert rows[0]["question"] == "Who" and rows[0]["answer"] == "He"
    assert len(manifest["sha256"]) == 64 and list(manifest["files"]) == ["frames.tsv"]


def test_short_questions_overlap_only_as_a_whole():
    assert overlap(["who is it"], ["who is it really"]).num_similar == 0
    assert overlap(["who is it"], ["who is it"]).num_same == 1
    assert normalize("x + 1") == normalize("x - 1"), "so keys keep their signs"
    rows = [{"question": "x + 1"}, {"question": "x - 1"}]
    assert len(clean(rows, Recipe(question="question", schema={})).rows) == 2


FLASHRAG: dict[str, tuple[str, str, list[str]]] = {
    "nq": ("test", "who got the first nobel prize in physics", ["Wilhelm Conrad Röntgen"]),
    "triviaqa": ("test", "Who was the man behind The Chipmunks?", ["David Seville"]),
    "popqa": ("test", "What is George Rankin's occupation?", ["politician"]),
    "hotpotqa": ("dev", "Were both directors American?", ["yes"]),
    "2wikimultihopqa": ("dev", "Who is the mother of the director?", ["Minamoto"]),
    "musique": ("dev", "Who is the spouse of the performer?", ["Miquette", "M. G."]),
    "bamboogle": ("test", "Who was president in 1848?", ["James K. Polk"]),
}
"""The published layout: NAME/SPLIT.jsonl."""


def test_the_sets_of_search_r1_come_from_a_copy_of_their_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, (split, question, answers) in FLASHRAG.items():
        (tmp_path / "copy" / name).mkdir(parents=True)
        row = {"id": f"{split}_0", "question": question, "golden_answers": answers, "metadata": {}}
        write(tmp_path / "copy" / name / f"{split}.jsonl", [row])
    for name, metadata in (("nq", {}), ("hotpotqa", {"context": {"title": ["T"], "sentences": [["S"]]}})):
        row = {"id": "train_0", "question": f"Which one, {name}?", "golden_answers": ["this", "that"], "metadata": metadata}
        write(tmp_path / "copy" / name / "train.jsonl", [row])
    table = {**TABLE, "search_r1_train": {**TABLE["search_r1_train"], "sha256": {}}}
    monkeypatch.setattr(prepare_data, "read_table", lambda: table)
    kept, manifest, text = prepared(tmp_path, "search_r1_train", tmp_path / "copy")
    assert [row["question"] for row in kept] == ["Which one, nq?", "Which one, hotpotqa?"]
    assert kept[1] == {"id": "train_0", "question": "Which one, hotpotqa?", "answers": ["this", "that"]}
    assert "CC BY-SA" in manifest["license"] and "169,615 rows were published, 2 were read" in text
    sets = [name for name in TABLE if name.startswith("search_r1_") and name != "search_r1_train"]
    assert len(sets) == 7 and sum(TABLE[name]["num_published"] for name in sets) == 51_713
    questions = {prepared(tmp_path, name, tmp_path / "copy")[0][0]["question"] for name in sets}
    assert questions == {question for _, question, _ in FLASHRAG.values()}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["copy"], "the copy lacks hotpotqa/train.jsonl"),
        (["copy/nq/train.jsonl", "other/train.jsonl"], "several files have one name"),
    ],
)
def test_an_incomplete_copy_and_two_files_of_one_name_are_refused(
    given: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for folder in ("copy/nq", "other"):
        (tmp_path / folder).mkdir(parents=True)
        write(tmp_path / folder / "train.jsonl", [{"question": "q", "golden_answers": ["a"]}])
    with pytest.raises(SystemExit):
        main(["search_r1_train", "--from", *(str(tmp_path / path) for path in given), "--out", str(tmp_path / "out")])
    assert message in capsys.readouterr().err


def test_numbers_of_a_published_problem_stand_in_its_text():
    published = {
        "Question": "number0 red and number1 or number10 green ?",
        "Numbers": "7 2.5 3 4 5 6 7 8 9 10 11",
        "Answer": "9.0",
    }
    assert asdiv_row(published) == {"question": "7 red and 2.5 or 11 green ?", "answer": "9"}
