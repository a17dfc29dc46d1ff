"""The 25 kinds of instructions of IFEval (arXiv 2311.07911, table 2), each a check of a reply with the arguments of its item.

    KINDS["length_constraints:number_words"]("one two three", relation="at least", num_words=3)           # True

The rules are those of the authors' program, with two differences: sentences and words in capitals are found by regular
expressions in place of NLTK's trained models.
"""

import json
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

LANGDETECT = "langdetect==1.0.9"
LEAST = "at least"
ALLOWED_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
MARKS = re.compile(r"[.,?!'\"]")
"""Marks that end the first word of a paragraph."""
SENTENCE_END = re.compile(r"(?<!\b[A-Z])(?<!\b(?:Mr|Ms|Dr|St|Jr|Sr|Co))(?<!\bMrs|\bLtd|\bInc)[.!?]+[\"')\]*”]*\s+(?=\S)")
CAPITALS = re.compile(r"[^\s.,;:!?\"()\[\]{}<>*#`|/\\=“”…]+")
"""Words with their hyphens and apostrophes."""


def compares(number: int, relation: str, threshold: float) -> bool:
    """True if the number is at least the threshold, or for the relation `less than` below it."""
    return number >= threshold if relation == LEAST else number < threshold


def language_of(text: str) -> str:
    """The language's ISO code; "" if the text shows none. Raises ImportError if langdetect is not installed."""
    detector = import_module("langdetect")
    detector.DetectorFactory.seed = 0
    try:
        return detector.detect(text)
    except detector.LangDetectException:
        return ""


def is_in(text: str, language: str) -> bool:
    """True if a text is in a language, or shows none, which the authors count as followed."""
    return language_of(text) in (language, "")


def sentences_in(text: str) -> int:
    """The number of sentences."""
    return len([part for part in SENTENCE_END.split(text.strip()) if part.strip()])


def highlights_in(text: str) -> int:
    """The number of parts between asterisks; bold ones count twice, as in the authors' program."""
    single = [part for part in re.findall(r"\*[^\n\*]*\*", text) if part.strip("*").strip()]
    double = [part for part in re.findall(r"\*\*[^\n\*]*\*\*", text) if part[2:-2].strip()]
    return len(single) + len(double)


def paragraphs_in(text: str) -> int:
    """The number of paragraphs between `***`; 0 if one in the middle is empty."""
    parts = re.split(r"\s?\*\*\*\s?", text)
    if any(not part.strip() for part in parts[1:-1]):
        return 0
    ends = {0, len(parts) - 1}
    return len(parts) - sum(not parts[place].strip() for place in ends)


def starts_paragraph(text: str, *, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """True if there are this many paragraphs, and the n-th, counted from 1, begins with the word."""
    parts = text.split("\n\n")
    count = sum(bool(part.strip()) for part in parts)
    if nth_paragraph > count or not (paragraph := parts[nth_paragraph - 1].strip()):
        return False
    word = MARKS.split(paragraph.split()[0].lstrip("'").lstrip('"'))[0].lower()
    return count == num_paragraphs and word == first_word.lower()


def has_postscript(text: str, *, postscript_marker: str) -> bool:
    """True if there is a postscript with this marker."""
    known = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    return re.search(known.get(postscript_marker, postscript_marker.lower()), text.lower()) is not None


def is_json(text: str) -> bool:
    """True for JSON, also in a code block."""
    bare = text.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        bare = bare.removeprefix(fence)
    try:
        json.loads(bare.removesuffix("```").strip())
    except ValueError:
        return False
    return True


def are_two_responses(text: str) -> bool:
    """True for two different responses with six asterisks between them."""
    parts = text.split("******")
    if any(not part.strip() for part in parts[1:-1]):
        return False
    said = [part.strip() for part in parts if part.strip()]
    return len(said) == 2 and said[0] != said[1]


def _found(pattern: str, text: str) -> int:
    return len(re.findall(pattern, text, flags=re.IGNORECASE))


def _num_bullets(text: str) -> int:
    return sum(len(re.findall(pattern, text, flags=re.MULTILINE)) for pattern in (r"^\s*\*[^\*].*$", r"^\s*-.*$"))


def _num_sections(text: str, spliter: str) -> int:
    return len(re.split(rf"\s?{spliter}\s?\d+\s?", text)) - 1


def _num_capitals(text: str) -> int:
    return sum(word.isupper() for word in CAPITALS.findall(text))


KINDS: dict[str, Callable[..., Any]] = {
    "keywords:existence": lambda text, keywords: all(_found(word, text) for word in keywords),
    "keywords:frequency": lambda text, keyword, frequency, relation: compares(_found(keyword, text), relation, frequency),
    "keywords:forbidden_words": lambda text, forbidden_words: not any(_found(rf"\b{w}\b", text) for w in forbidden_words),
    "keywords:letter_frequency": lambda text, letter, let_frequency, let_relation: compares(
        text.lower().count(letter.lower()), let_relation, let_frequency
    ),
    "language:response_language": lambda text, language: is_in(text, language),
    "length_constraints:number_sentences": lambda text, num_sentences, relation: compares(
        sentences_in(text), relation, num_sentences
    ),
    "length_constraints:number_paragraphs": lambda text, num_paragraphs: paragraphs_in(text) == num_paragraphs,
    "length_constraints:number_words": lambda text, num_words, relation: compares(
        len(re.findall(r"\w+", text)), relation, num_words
    ),
    "length_constraints:nth_paragraph_first_word": starts_paragraph,
    "detectable_content:number_placeholders": lambda text, num_placeholders: (
        len(re.findall(r"\[.*?\]", text)) >= num_placeholders
    ),
    "detectable_content:postscript": has_postscript,
    "detectable_format:number_bullet_lists": lambda text, num_bullets: _num_bullets(text) == num_bullets,
    "detectable_format:constrained_response": lambda text: any(answer in text for answer in ALLOWED_ANSWERS),
    "detectable_format:number_highlighted_sections": lambda text, num_highlights: highlights_in(text) >= num_highlights,
    "detectable_format:multiple_sections": lambda text, section_spliter, num_sections: (
        _num_sections(text, section_spliter) >= num_sections
    ),
    "detectable_format:json_format": is_json,
    "detectable_format:title": lambda text: any(title.strip("<>").strip() for title in re.findall(r"<<[^\n]+>>", text)),
    "combination:two_responses": are_two_responses,
    "combination:repeat_prompt": lambda text, prompt_to_repeat: text.strip().lower().startswith(prompt_to_repeat.strip().lower()),
    "startend:end_checker": lambda text, end_phrase: text.strip().strip('"').lower().endswith(end_phrase.strip().lower()),
    "startend:quotation": lambda text: len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"',
    "change_case:capital_word_frequency": lambda text, capital_frequency, capital_relation: compares(
        _num_capitals(text), capital_relation, capital_frequency
    ),
    "change_case:english_capital": lambda text: text.isupper() and is_in(text, "en"),
    "change_case:english_lowercase": lambda text: text.islower() and is_in(text, "en"),
    "punctuation:no_comma": lambda text: "," not in text,
}
"""Checks by the names in the published file; their arguments are called as there."""
