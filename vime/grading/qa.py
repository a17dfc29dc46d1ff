"""Scores for question answering: SQuAD's normalization, exact match, F1, and the scores of RULER-HQA.

`normalize` is that of SQuAD's published evaluation (arXiv 1606.05250), which HotpotQA's (arXiv 1809.09600) shares. Every score
lies between 0 and 1 and is the best over all references of a prediction.
"""

import re
import string
from collections import Counter
from collections.abc import Callable

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = ("yes", "no", "noanswer")
"""Answers for which HotpotQA's F1 gives no partial credit."""


def normalize(text: str) -> str:
    """The text in lower case without ASCII punctuation, articles and extra spaces, removed in this order.

    A step that would leave nothing is left out: `A` and `the the` keep their articles, `!!!` its signs.
    """
    return _published(text) or " ".join(text.lower().translate(_PUNCTUATION).split() or text.lower().split())


def _published(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, references: list[str]) -> float:
    """1 if the normalized prediction equals any normalized reference."""
    return float(any(normalize(prediction) == normalize(reference) for reference in references))


def f1(prediction: str, references: list[str]) -> float:
    """The best token F1 over the references as in SQuAD 2.0: two empty texts score 1, one empty text 0."""
    return _best(prediction, references, _f1)


def hotpotqa_f1(prediction: str, references: list[str]) -> float:
    """The best token F1 over the references as in HotpotQA: no partial credit for yes, no and noanswer, and empty scores 0."""
    return _best(prediction, references, _hotpotqa_f1)


def gold_in_prediction(prediction: str, references: list[str]) -> float:
    """1 if the normalized prediction contains any normalized reference; empty references are ignored."""
    answer = normalize(prediction)
    return float(any(_is_within(reference, answer) for reference in map(normalize, references)))


def substring_match(prediction: str, references: list[str]) -> float:
    """MemAgent's `sub_em`: 1 if prediction or reference contains the other after normalization.

    An empty prediction scores 0; empty references are ignored.
    """
    answer = normalize(prediction)
    gold = [normalize(reference) for reference in references]
    return float(any(_is_within(reference, answer) or _is_within(answer, reference) for reference in gold))


def unguarded_substring_match(prediction: str, references: list[str]) -> float:
    """`sub_em` as slime-agentic computes it, in which an empty prediction scores 1.

    It serves comparisons with published numbers and should not be reported as a score.
    """
    answer = _published(prediction)
    return float(any(reference in answer or answer in reference for reference in map(_published, references)))


def string_match_all(prediction: str, references: list[str]) -> float:
    """RULER's score for needle tasks (arXiv 2404.06654): the share of references that the prediction contains, ignoring case."""
    text = prediction.lower()
    return sum(reference.lower() in text for reference in references) / len(references) if references else 0.0


def string_match_part(prediction: str, references: list[str]) -> float:
    """RULER's score for question answering: 1 if the prediction contains any reference, ignoring case."""
    text = prediction.lower()
    return float(any(reference.lower() in text for reference in references))


def _is_within(part: str, whole: str) -> bool:
    """True if a normalized text occurs in another; one that has only articles or punctuation must equal the other."""
    if not part or not _ARTICLES.sub("", part.translate(_PUNCTUATION)).strip():
        return part == whole != ""
    return part in whole


def _best(prediction: str, references: list[str], score: Callable[[str, str], float]) -> float:
    return max((score(normalize(prediction), normalize(reference)) for reference in references), default=0.0)


def _f1(prediction: str, reference: str) -> float:
    if not prediction or not reference:
        return float(prediction == reference)
    predicted, expected = prediction.split(), reference.split()
    overlap = sum((Counter(predicted) & Counter(expected)).values())
    if overlap == 0:
        return 0.0
    precision, recall = overlap / len(predicted), overlap / len(expected)
    return 2 * precision * recall / (precision + recall)


def _hotpotqa_f1(prediction: str, reference: str) -> float:
    if prediction != reference and (prediction in _CLOSED or reference in _CLOSED):
        return 0.0
    return _f1(prediction, reference) if prediction else 0.0
