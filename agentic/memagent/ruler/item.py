"""One item of a benchmark, and the search for the size at which documents have a given number of tokens."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agentic.memagent.reward import ALL


@dataclass(kw_only=True, slots=True)
class Item:
    """A question about a document that is generated in parts.

    With `needs_all` every answer is required, otherwise any of them. `parts` can be read once.
    Example: `Item(index=3, question="Who …?", answers=["Ed Wood"], parts=iter(["Document 1:\\n…", "\\n\\nDocument 2:\\n…"]))`.
    """

    index: int
    question: str
    answers: list[str]
    parts: Iterator[str]
    needs_all: bool = False
    about: dict[str, Any] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """The item without its document, with the field names of the published sets."""
        metric = {"metric": ALL} if self.needs_all else {}
        return {"index": self.index, "input": self.question, "answers": self.answers, **metric, **self.about}


Task = Callable[[int, int], Item]
"""Makes the item of an index and a size: the number of paragraphs (RULER-HQA), sentences (a haystack) or words (a list)."""


def size_for_tokens(task: Task, *, num_tokens: int, tokenizer: Any, smallest: int, largest: int) -> int:
    """The largest size whose first document has at most `num_tokens` tokens, found by bisection as in RULER.

    Raises `ValueError` if the smallest document is already longer.
    """

    def tokens(size: int) -> int:
        return sum(len(tokenizer.encode(part, add_special_tokens=False)) for part in task(0, size).parts)

    if tokens(smallest) > num_tokens:
        raise ValueError(f"{num_tokens} tokens are fewer than the smallest document (size {smallest}) has")
    low, high = smallest, min(2 * smallest, largest)
    while high < largest and tokens(high) <= num_tokens:
        low, high = high, min(2 * high, largest)
    if high == largest and tokens(largest) <= num_tokens:
        return largest
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if tokens(middle) <= num_tokens else (low, middle)
    return low
