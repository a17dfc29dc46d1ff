"""RULER's aggregation tasks (arXiv 2404.06654, section 3): the most common words of a list and of a coded text.

Words are composed of syllables, so that no word list is needed and no model knows them.
"""

import random
from collections.abc import Iterator

from agentic.memagent.ruler.item import Item

FIRST = (
    *("ba", "be", "bo", "da", "de", "do", "fa", "fi", "ga", "go", "ha", "hi", "ka", "ko", "la", "li", "ma", "mo"),
    *("na", "no", "pa", "pe", "ra", "ro", "sa", "so", "ta", "to", "va", "vi", "wa", "zu"),
)
MIDDLE = ("ban", "den", "fil", "gor", "hum", "jan", "kel", "lum", "mar", "nor", "pin", "rus", "sel", "tan", "vor", "wen")
LAST = ("da", "del", "fin", "gat", "ko", "lan", "mer", "nis", "pol", "ra", "sen", "tik", "vel", "xa")
NUM_COMMON, COMMON_TIMES, UNCOMMON_TIMES = 10, 30, 3
"""RULER's values for documents of 8K tokens and more."""
FREQUENT, ZIPF_EXPONENT, VOCABULARY = 3, 2.0, 2000
CODED_LETTERS = 6


def make_words(chance: random.Random, count: int) -> list[str]:
    """`count` different words."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[chance.choice(FIRST) + chance.choice(MIDDLE) + chance.choice(LAST)] = None
    return list(found)


class CommonWordsTask:
    """`task(index, size)`: a numbered list of about `size` words, in which ten occur 30 times and all others three times."""

    smallest = NUM_COMMON * COMMON_TIMES

    def __init__(self, *, seed: int) -> None:
        self._seed = seed

    def __call__(self, index: int, size: int) -> Item:
        """Raises `ValueError` if the list is too short for the ten common words or longer than the words suffice for."""
        num_others = (size - self.smallest) // UNCOMMON_TIMES
        if num_others < 0:
            raise ValueError(f"a list of {size} words is too short: the ten common words alone are {self.smallest}")
        most = len(FIRST) * len(MIDDLE) * len(LAST) // 2
        if num_others > most:
            raise ValueError(
                f"a list of {size} words needs {num_others} different ones, and there are {most}: use a smaller size"
            )
        common = make_words(random.Random(f"{self._seed}/{index}"), NUM_COMMON)
        chance = random.Random(f"{self._seed}/{index}/{size}")
        others = [word for word in make_words(chance, num_others + NUM_COMMON) if word not in common][:num_others]
        words = common * COMMON_TIMES + others * UNCOMMON_TIMES
        chance.shuffle(words)
        return Item(
            index=index,
            question=f"What are the {NUM_COMMON} most common words of the numbered list?",
            answers=common,
            parts=(f"{'' if number == 1 else ' '}{number}. {word}" for number, word in enumerate(words, start=1)),
            needs_all=True,
            about={"size": size},
        )


class FrequentWordsTask:
    """`task(index, size)`: `size` coded words by Zipf's law, in which the n-th word occurs 1/n² times as often as the first."""

    smallest = 50

    def __init__(self, *, seed: int) -> None:
        self._seed = seed
        self._weights = [1 / rank**ZIPF_EXPONENT for rank in range(1, VOCABULARY + 1)]

    def __call__(self, index: int, size: int) -> Item:
        """The answers are the three most frequent words. Raises `ValueError` for a smaller size than `smallest`."""
        if size < self.smallest:
            raise ValueError(f"{size} coded words are too few to tell the most frequent: use at least {self.smallest}")
        chance = random.Random(f"{self._seed}/{index}")
        letters = "abcdefghijklmnopqrstuvwxyz"
        words: dict[str, None] = {}
        while len(words) < VOCABULARY:
            words["".join(chance.choices(letters, k=CODED_LETTERS))] = None
        names = list(words)
        drawn = self._counts(size)
        text = [names[rank] for rank, count in enumerate(drawn) for _ in range(count)]
        random.Random(f"{self._seed}/{index}/{size}").shuffle(text)
        return Item(
            index=index,
            question=f"What are the {FREQUENT} most frequent words of the coded text?",
            answers=names[:FREQUENT],
            parts=_spaced(text),
            needs_all=True,
            about={"size": size},
        )

    def _counts(self, size: int) -> list[int]:
        """The count of each word: its expected count rounded down, with the remainder added to the first word."""
        total = sum(self._weights)
        counts = [int(size * weight / total) for weight in self._weights]
        counts[0] += size - sum(counts)
        return counts


def _spaced(words: list[str]) -> Iterator[str]:
    for number, word in enumerate(words):
        yield word if number == 0 else f" {word}"
