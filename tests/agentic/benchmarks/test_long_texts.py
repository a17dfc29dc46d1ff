"""RULER: gold answers in texts of the asked length, shares of answers, and tasks that need a file."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentic.benchmarks.long_texts import IN_TEXT, ROOM_TOKENS, SELF_CONTAINED, Ruler
from tests.agentic.benchmarks.asking import rewards, scores
from vime.errors import ConfigError
from vime.model.load_tokenizer import load_tokenizer

TINY = str(Path(__file__).parents[3] / "agentic" / "memagent" / "tiny" / "actor")
TOKENS = 2048


def made(**settings: Any) -> tuple[Ruler, list[dict[str, Any]]]:
    ruler = Ruler(tokenizer=TINY, tokens=TOKENS, **settings)
    return ruler, list(ruler.rows(split="eval", num_items=3 * len(ruler.tasks), seed=0))


def test_gold_answers_score_1_in_texts_that_are_as_long_as_asked():
    ruler, found = made(tasks=["niah_single_1", "niah_multikey_3", "vt"])
    assert Counter(row["item"]["task"] for row in found) == dict.fromkeys(ruler.tasks, 3)
    lengths = [len(load_tokenizer(TINY).encode(row["item"]["document"], add_special_tokens=False)) for row in found]
    assert all(0.9 * (TOKENS - ROOM_TOKENS) < length <= TOKENS - ROOM_TOKENS for length in lengths)
    for row in found:
        content = ruler.observation(row["item"]).content[0]["content"]  # type: ignore[index]
        assert row["item"]["document"] in content and row["question"] in content
        assert all(answer in row["item"]["document"] for answer in row["answers"])
    assert rewards(ruler, found, lambda row: f"They are {', '.join(row['answers'])}.") == [1.0] * 9
    assert sum(rewards(ruler, found, lambda row: "I do not know.")) == 0


def test_a_part_of_the_answers_is_a_share_of_the_lenient_score():
    ruler, found = made(tasks=["vt"])
    outcomes = scores(ruler, found, lambda row: " ".join(row["answers"][:2]))
    assert [(one.rewards, one.metrics["lenient"]) for one in outcomes] == [(0.0, 0.4)] * 3


def test_tasks_with_a_haystack_and_questions_come_with_their_files(tmp_path: Path):
    (essays := tmp_path / "essays.txt").write_text(" ".join(f"The road to town {n} is long." for n in range(200)))
    assert Ruler(tokenizer=TINY, haystack=str(essays)).tasks == [*SELF_CONTAINED, *IN_TEXT]
    ruler, found = made(haystack=str(essays), tasks=["niah_multiquery"])
    assert rewards(ruler, found, lambda row: " ".join(row["answers"])) == [1.0] * 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": ["niah_single_2"]}, "needs a file with a text"),
        ({"tasks": ["qa_hotpotqa"], "hotpotqa": "/no/such/file"}, "needs a file with HotpotQA's rows"),
        ({"tasks": ["qa_squad"]}, "no such task"),
    ],
)
def test_a_task_without_its_file_is_refused(settings: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        made(**settings)


def test_a_length_that_is_too_short_is_refused():
    with pytest.raises(ConfigError, match="cwe has no text as short as this"):
        list(Ruler(tokenizer=TINY, tokens=512, tasks=["cwe"]).rows(split="eval", num_items=1, seed=0))
