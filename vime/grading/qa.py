"""Question answering scores: SQuAD's normalisation (arXiv 1606.05250), exact match, F1 and substring match."""

import re
import string
from collections import Counter

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> str:
    """Lower case without punctuation, articles and extra spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, references: list[str]) -> float:
    """1 if the normalised prediction equals any normalised reference."""
    return float(any(normalize(prediction) == normalize(reference) for reference in references))


def f1(prediction: str, references: list[str]) -> float:
    """Best token F1 over the references, 0 to 1."""
    return max((_f1(normalize(prediction).split(), normalize(reference).split()) for reference in references), default=0.0)


def _f1(prediction: list[str], reference: list[str]) -> float:
    if not prediction or not reference:
        return float(prediction == reference)
    overlap = sum((Counter(prediction) & Counter(reference)).values())
    if overlap == 0:
        return 0.0
    precision, recall = overlap / len(prediction), overlap / len(reference)
    return 2 * precision * recall / (precision + recall)


def substring_match(prediction: str, references: list[str]) -> float:
    """MemAgent's `sub_em`: 1 if either contains the other after normalisation; an empty prediction scores 0."""
    answer = normalize(prediction)
    if not answer:
        return 0.0
    gold = [normalize(reference) for reference in references]
    return float(any(reference in answer or answer in reference for reference in gold if reference))
