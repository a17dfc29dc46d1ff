"""IFEval: each kind of instruction followed and not, the strict and the loose score, and the published file."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentic.benchmarks.instruction_following import IfEval, followed, loosened
from agentic.benchmarks.instruction_kinds import KINDS, sentences_in
from tests.agentic.benchmarks.asking import folder_with, rewards, rows_of, scores, written
from vime.errors import ConfigError

IS_THERE = importlib.util.find_spec("langdetect") is not None
there = pytest.mark.skipif(not IS_THERE, reason="langdetect is not installed: pip install langdetect==1.0.9")
LANGUAGE = ("language:response_language", "change_case:english_capital", "change_case:english_lowercase")
ITEM: dict[str, Any] = {
    "key": 1000,
    "prompt": "Write three words or more without a comma.",
    "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
    "kwargs": [{}, {"relation": "at least", "num_words": 3}],
}
ENGLISH = "It was a bright cold day in April and the clocks were striking thirteen"
LEAST, LESS = "at least", "less than"
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("keywords:existence", {"keywords": ["Harp", "kite"]}, "a harp and a Kite", "a harp"),
    ("keywords:frequency", {"keyword": "war", "frequency": 2, "relation": LEAST}, "War and war", "war"),
    ("keywords:frequency", {"keyword": "war", "frequency": 2, "relation": LESS}, "war", "War and war"),
    ("keywords:forbidden_words", {"forbidden_words": ["rock"]}, "rocket", "a Rock."),
    ("keywords:letter_frequency", {"letter": "T", "let_frequency": 2, "let_relation": LESS}, "to be", "to The"),
    ("language:response_language", {"language": "de"}, "Das ist ein kurzer Satz über das Wetter in Berlin.", ENGLISH),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": LEAST}, "Yes. He came.", "Mr. Smith came."),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "One\n***\nTwo", "One\n\nTwo"),
    ("length_constraints:number_words", {"num_words": 3, "relation": LEAST}, "one two, three", "one two"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"},
        'First.\n\n"Then, we go."',
        "First.\n\nNow we go.",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name] of [place]", "[name] of"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "Yours\nP. P.S. and", "Yours\nP.S. and"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* one\n- two", "* one\n**two**"),
    ("detectable_format:constrained_response", {}, "Well. My answer is maybe.", "Maybe."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*one* and *two*", "*one* and two"),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Part", "num_sections": 2},
        "Part 1 a Part 2 b",
        "Part 1 a Part b",
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "{'a': 1}"),
    ("detectable_format:title", {}, "<<Poem>>\nso", "<Poem>\nso"),
    ("combination:two_responses", {}, "one ****** two", "one ****** one"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Write a poem."}, "write a poem. Roses", "Roses. Write a poem."),
    ("startend:end_checker", {"end_phrase": "Any questions?"}, 'So "any questions?"', "Any questions? No."),
    ("startend:quotation", {}, '"So it is."', '"So" it is.'),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": LEAST}, "IT IS so", "It IS so"),
    ("change_case:english_capital", {}, ENGLISH.upper(), ENGLISH),
    ("change_case:english_lowercase", {}, ENGLISH.lower(), ENGLISH),
    ("punctuation:no_comma", {}, "one and two", "one, two"),
]


@pytest.mark.parametrize(("kind", "arguments", "follows", "does_not"), CASES)
def test_each_kind_tells_a_reply_that_follows_from_one_that_does_not(
    kind: str, arguments: dict[str, Any], follows: str, does_not: str
):
    if kind in LANGUAGE and not IS_THERE:
        pytest.skip("langdetect is not installed: pip install langdetect==1.0.9")
    assert KINDS[kind](follows, **arguments) and not KINDS[kind](does_not, **arguments)


def test_all_kinds_of_the_paper_are_tried():
    assert {kind for kind, *_ in CASES} == set(KINDS) and len(KINDS) == 25


def test_sentences_do_not_end_at_titles_and_initials():
    assert sentences_in('Dr. J. Smith said "No!" Then he left... He never came back?') == 3


def test_the_loose_score_forgives_first_and_last_lines_and_asterisks():
    said = "Sure, here it is:\n*one* two three\nBye, now"
    assert followed([said], ITEM) == [False, True] and followed(loosened(said), ITEM) == [True, True]
    assert followed([""], ITEM) == [False, False]


@there
def test_a_reply_is_scored_strictly_and_loosely(tmp_path: Path):
    padded = {**ITEM, "kwargs": [{"num_words": None}, {"relation": "at least", "num_words": 3, "keyword": None}]}  # the hub's
    benchmark = IfEval(folder=written(tmp_path, "ifeval.jsonl", [ITEM, padded]))
    for outcome in scores(benchmark, rows_of(benchmark), lambda row: "Sure, yes:\none two three"):
        assert dict(outcome.metrics) == {"strict": 0.0, "lenient": 1.0, "instructions": 0.5, "instructions_loose": 1.0}


def test_blank_lines_behind_the_thinking_are_no_paragraph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "langdetect", ModuleType("langdetect"))
    wanted = {"num_paragraphs": 2, "nth_paragraph": 1, "first_word": "first"}
    item = ITEM | {"instruction_id_list": ["length_constraints:nth_paragraph_first_word"], "kwargs": [wanted]}
    benchmark = IfEval(folder=written(tmp_path, "ifeval.jsonl", [item]))
    said = ("<think>\nTwo.\n</think>\n\nFirst.\n\nThen.", "First.\n\nThen.", "\n\nFirst.\n\nThen.")
    assert [rewards(benchmark, rows_of(benchmark), lambda row, text=text: text) for text in said] == [[1.0], [1.0], [0.0]]


@there
def test_an_unknown_instruction_is_refused(tmp_path: Path):
    item = {**ITEM, "instruction_id_list": ["punctuation:no_dash", "punctuation:no_comma"]}
    with pytest.raises(ConfigError, match="punctuation:no_dash"):
        rows_of(IfEval(folder=written(tmp_path, "ifeval.jsonl", [item])))


@pytest.mark.skipif(IS_THERE, reason="langdetect is installed")
def test_without_langdetect_the_remedy_is_said():
    with pytest.raises(ConfigError, match="pip install 'langdetect"):
        IfEval()


def test_every_instruction_of_the_published_file_is_of_a_known_kind_with_its_arguments():
    for item in IfEval.source.read(folder_with(IfEval.source), hub=False):
        kinds = [kind for kind in item["instruction_id_list"] if kind not in LANGUAGE or IS_THERE]
        given = dict(zip(item["instruction_id_list"], item["kwargs"], strict=True))
        known = {"instruction_id_list": kinds, "kwargs": [given[kind] for kind in kinds]}
        assert len(followed(["no reply, at all"], known)) == len(kinds)
