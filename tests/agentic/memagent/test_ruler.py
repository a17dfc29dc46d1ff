"""RULER-HQA and RULER's needle tasks: the same questions at every length, gold always there, and no document whole in memory."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import agentic.memagent
from agentic.memagent import chunks as chunks_module
from agentic.memagent.chunks import ChunkAt, split_document
from agentic.memagent.reward import score_all
from agentic.memagent.ruler.hotpotqa import HotpotQA
from agentic.memagent.ruler.item import size_for_tokens
from agentic.memagent.ruler.needles import NEEDLE_TASKS, NOISE, NeedleTask, VariableTask
from agentic.memagent.ruler.words import CommonWordsTask, FrequentWordsTask
from tools.build_ruler import main
from vime.config import DatasetConfig
from vime.data.dataset import load_rows, to_prompt
from vime.model.load_tokenizer import load_tokenizer

TINY = Path(agentic.memagent.__file__).parent / "tiny" / "actor"
TEXT = " ".join(f"The {name} year brought little that anybody would remember." for name in ("first", "second", "third", "fourth"))


def hotpotqa_rows(count: int) -> list[dict[str, Any]]:
    """Rows in Hugging Face's layout: two gold paragraphs and eight others each; all questions share one of these."""
    rows = []
    for number in range(count):
        titles = [f"Title {number}.{paragraph}" for paragraph in range(9)] + ["Shared"]
        sentences = [
            [f"Paragraph {title} begins.", " It ends.", f" Answer {number}." if i == 3 else ""] for i, title in enumerate(titles)
        ]
        sentences[9] = ["The same everywhere."]
        rows.append(
            {
                "id": str(number),
                "question": f"Which answer has {number}?",
                "answer": f"Answer {number}",
                "supporting_facts": {"title": [titles[3], titles[7], titles[3]], "sent_id": [0, 1, 2]},
                "context": {"title": titles, "sentences": sentences},
            }
        )
    return rows


def original_layout(row: dict[str, Any]) -> dict[str, Any]:
    """The same row as HotpotQA's own files have it."""
    context, facts = row["context"], row["supporting_facts"]
    return {
        "_id": row["id"],
        "question": row["question"],
        "answer": row["answer"],
        "supporting_facts": [list(fact) for fact in zip(facts["title"], facts["sent_id"])],
        "context": [list(entry) for entry in zip(context["title"], context["sentences"])],
    }


def text_of(task: Any, index: int, size: int) -> str:
    return "".join(task(index, size).parts)


def test_both_layouts_give_the_same_documents() -> None:
    rows = hotpotqa_rows(30)
    one, other = HotpotQA(rows).task(seed=1), HotpotQA([original_layout(row) for row in rows]).task(seed=1)
    assert [text_of(one, i, 50) for i in range(5)] == [text_of(other, i, 50) for i in range(5)]


def test_a_document_has_the_gold_paragraphs_each_paragraph_once_and_the_published_format() -> None:
    source = HotpotQA(hotpotqa_rows(30))
    assert len(source.pool) == 30 * 9 + 1, "a paragraph that several questions share is there once"
    for size in (2, 10, 50, len(source.pool)):
        item = source.task(seed=4)(7, size)
        paragraphs = "".join(item.parts).split("\n\n")
        number = item.answers[0].split()[1]
        assert len(paragraphs) == len(set(paragraphs)) == size
        for position, paragraph in enumerate(paragraphs, start=1):
            assert re.fullmatch(rf"Document {position}:\n[^\n]+\n[^\n]+", paragraph)
        gold = [i for i, p in enumerate(paragraphs, start=1) if f"\nTitle {number}.3\n" in p or f"\nTitle {number}.7\n" in p]
        assert item.about == {"num_docs": size, "supporting_documents": gold}
        assert any(item.answers[0] + "." in p for p in paragraphs)


def test_the_same_questions_at_every_length_and_all_of_it_under_a_seed() -> None:
    source = HotpotQA(hotpotqa_rows(40))
    at = {size: [source.task(seed=2)(i, size) for i in range(20)] for size in (50, 100, 200)}
    questions = {size: [(item.question, item.answers) for item in items] for size, items in at.items()}
    assert questions[50] == questions[100] == questions[200]
    assert text_of(source.task(seed=2), 3, 50) == text_of(source.task(seed=2), 3, 50)
    assert text_of(source.task(seed=2), 3, 50) != text_of(source.task(seed=3), 3, 50)


def test_questions_are_read_from_lines_that_hold_other_line_ends_and_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "dev.jsonl"
    rows = [{**row, "question": f"{row['question']}\u2028\u0085"} for row in hotpotqa_rows(2)]
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    assert [question.text for question in HotpotQA.read(path).questions] == [row["question"] for row in rows]
    path.write_text("{}\n{")
    with pytest.raises(ValueError, match=r"dev\.jsonl: line 2 of"):
        HotpotQA.read(path)


def test_too_many_paragraphs_and_rows_of_another_kind_are_refused_by_name() -> None:
    source = HotpotQA(hotpotqa_rows(3))
    with pytest.raises(ValueError, match=r"29 paragraphs: .* the source has 28 in all"):
        source.task(seed=0)(0, 29)
    with pytest.raises(ValueError, match="row 0: context is neither"):
        HotpotQA([{"question": "q", "answer": "a", "context": "text", "supporting_facts": []}])
    row = hotpotqa_rows(1)[0]
    with pytest.raises(ValueError, match="row 0: none of its paragraphs"):
        HotpotQA([{**row, "supporting_facts": {"title": ["Elsewhere"], "sent_id": [0]}}])


@pytest.mark.parametrize("name", NEEDLE_TASKS)
def test_needles_are_hidden_whole_and_asked_for(name: str) -> None:
    needles = NEEDLE_TASKS[name]
    task = NeedleTask(needles, seed=1, text=TEXT)
    item, longer = task(4, 40), task(4, 400)
    lines = "".join(item.parts).split("\n")
    assert len(lines) == 40 + needles.num_keys * needles.num_values
    assert (item.question, item.answers) == (longer.question, longer.answers), "the same question at every length"
    assert len(item.answers) == needles.num_queries * needles.num_values
    for answer in item.answers:
        line = next(line for line in lines if answer in line)
        assert any(key in item.question for key in re.findall(r" of (\S+) is ", line))
    assert score_all("\\boxed{" + ", ".join(item.answers) + "}", item.answers).score == 1.0
    assert score_all(", ".join(item.answers), item.answers).metrics["lenient"] == 1.0
    assert score_all("\\boxed{" + item.answers[0] + "}", [*item.answers, "another"]).score == 0.0


def test_a_task_that_hides_in_text_says_that_it_needs_one() -> None:
    with pytest.raises(ValueError, match="--haystack"):
        NeedleTask(NEEDLE_TASKS["niah_single_2"], seed=0)


def test_the_variables_of_a_value_are_those_that_following_the_assignments_finds() -> None:
    item = VariableTask(seed=3)(0, 60)
    lines = [line for line in "".join(item.parts).split("\n") if line not in NOISE]
    assert len(lines) == 5
    values: dict[str, str] = {}
    for line in lines:
        name, value = re.fullmatch(r"VAR (\w+) = (?:VAR )?(\w+)", line).groups()  # pyright: ignore[reportOptionalMemberAccess]
        values[name] = values.get(value, value)
    asked = re.search(r"value (\d+)", item.question)
    assert asked and sorted(values) == sorted(item.answers) and set(values.values()) == {asked[1]}


def test_the_commonest_words_are_the_answer() -> None:
    item = CommonWordsTask(seed=0)(1, 900)
    words = re.findall(r"\d+\. (\w+)", "".join(item.parts))
    counts = {word: words.count(word) for word in set(words)}
    assert sorted(sorted(counts, key=lambda word: -counts[word])[:10]) == sorted(item.answers)
    assert sorted(counts.values())[-11] == 3
    with pytest.raises(ValueError, match="too short"):
        CommonWordsTask(seed=0)(0, 10)


@pytest.mark.parametrize("size", [50, 500, 5000])
def test_the_most_frequent_coded_words_are_the_answer(size: int) -> None:
    words = text_of(FrequentWordsTask(seed=0), 2, size).split()
    counts = sorted(((words.count(word), word) for word in set(words)), reverse=True)
    assert len(words) == size
    assert [word for _, word in counts[:3]] == FrequentWordsTask(seed=0)(2, size).answers
    assert counts[2][0] > counts[3][0]


def test_the_size_for_a_number_of_tokens_is_the_largest_that_fits() -> None:
    tokenizer = load_tokenizer(TINY)
    task = VariableTask(seed=1)

    def tokens(size: int) -> int:
        return sum(len(tokenizer.encode(part, add_special_tokens=False)) for part in task(0, size).parts)

    size = size_for_tokens(task, num_tokens=3000, tokenizer=tokenizer, smallest=1, largest=10_000)
    assert tokens(size) <= 3000 < tokens(size + 1)
    assert size_for_tokens(task, num_tokens=3000, tokenizer=tokenizer, smallest=1, largest=20) == 20
    with pytest.raises(ValueError, match="fewer than the smallest"):
        size_for_tokens(task, num_tokens=3, tokenizer=tokenizer, smallest=1, largest=20)


def test_the_tool_writes_rows_that_a_run_reads_in_rows_or_files_of_their_own(tmp_path: Path) -> None:
    source = tmp_path / "dev.json"
    source.write_text(json.dumps(hotpotqa_rows(20)))
    main(["hotpotqa", "--source", str(source), "--sizes", "30", "max", "--num-items", "4", "--out", str(tmp_path / "rows")])
    words = ["--sizes", "30", "--num-items", "4", "--own-files", "--out", str(tmp_path / "files")]
    main(["hotpotqa", "--source", str(source), *words])
    inside = load_rows(DatasetConfig(path=str(tmp_path / "rows" / "hotpotqa_30.jsonl")))
    apart = load_rows(DatasetConfig(path=str(tmp_path / "files" / "hotpotqa_30.jsonl")))
    assert len(inside) == len(apart) == 4 and (tmp_path / "rows" / "hotpotqa_181.jsonl").exists()
    for a, b in zip(inside, apart):
        assert a["context"] == Path(b["context_file"]).read_text()
        prompt = to_prompt(b, index=0, row_number=0, dataset="x")
        assert prompt.ground_truth == a["answers"] and prompt.messages[0]["content"] == a["input"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hotpotqa", "--sizes", "5"], "give --source"),
        (["hotpotqa", "--source", "SOURCE", "--num-items", "9", "--sizes", "5000"], "give 2 to 181"),
        (["hotpotqa", "--source", "SOURCE", "--sizes", "5", "--num-items", "21"], "give 1 to 20"),
        (["cwe", "--sizes", "12"], "give 300 to"),
        (["niah_multivalue", "--sizes", "12"], "--haystack"),
        (["vt", "--sizes", "many"], "give whole numbers, or max"),
    ],
)
def test_what_cannot_be_built_is_refused(words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = tmp_path / "dev.json"
    source.write_text(json.dumps(hotpotqa_rows(20)))
    with pytest.raises(SystemExit):
        main([word.replace("SOURCE", str(source)) for word in words] + ["--out", str(tmp_path)])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("chunk_at", ChunkAt)
def test_a_document_of_many_blocks_loses_nothing(chunk_at: ChunkAt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks_module, "BLOCK_CHARACTERS", 20_000)
    chance = random.Random(0)
    document = "\n\n".join(f"Document {i}: " + "word " * chance.randrange(60) + "." for i in range(700))
    assert len(document) > 3 * chunks_module.BLOCK_CHARACTERS
    tokenizer = load_tokenizer(TINY)
    chunks = split_document(document, tokenizer=tokenizer, chunk_tokens=700, max_chunks=10_000, chunk_at=chunk_at)
    separator = "" if chunk_at is ChunkAt.token else "\n\n"
    assert separator.join(chunks) == document
    if chunk_at is ChunkAt.token:
        ids = tokenizer.encode(document, add_special_tokens=False)
        assert chunks == tuple(tokenizer.decode(ids[i : i + 700]) for i in range(0, len(ids), 700)), "blocks cut where tokens end"


@pytest.mark.slow
def test_building_and_reading_three_and_a_half_million_tokens_needs_less_than_two_gigabytes(tmp_path: Path) -> None:
    program = Path(__file__).with_name("long_document.py")
    shown = subprocess.run([sys.executable, str(program), str(tmp_path)], capture_output=True, text=True, timeout=600)
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout)
    assert found["num_tokens"] >= 3_500_000 and found["num_chunks"] == -(-found["num_tokens"] // 5000)
    assert found["peak_bytes"] < 2 * 1024**3, found


REAL = os.environ.get("VIME_HOTPOTQA", "")


@pytest.mark.skipif(not REAL, reason="VIME_HOTPOTQA names no file of HotpotQA's rows")
def test_real_questions_make_documents_of_every_length() -> None:
    source = HotpotQA.read(Path(REAL))
    for size in (50, 100, 200, len(source.pool)):
        for index in range(len(source.questions)):
            item = source.task(seed=0)(index, size)
            gold = item.about["supporting_documents"]
            paragraphs = "".join(item.parts).split("\n\nDocument ")
            assert len(gold) >= 2 and len(paragraphs) == size
