"""`RoutedExperts`: the experts of a mixture to which consecutive tokens were sent, as the model that computed them chose.

Shape suffixes: R consecutive tokens, L layers, K experts of a token and layer.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from vime.types.column import Column

SMALL_IDS = 255
"""Most experts of a layer whose ids take one byte; the largest number of a type stands for an unknown expert."""


def id_type(num_experts: int) -> str:
    """The type of an expert's id: one byte, or two for a layer of more than 255 experts."""
    return "uint8" if num_experts <= SMALL_IDS else "uint16"


def unknown(dtype: Any) -> int:
    """The id that stands for an unknown expert; the trainer then chooses itself."""
    return int(np.iinfo(dtype).max)


@dataclass(frozen=True, slots=True, eq=False)
class RoutedExperts:
    """Experts of consecutive tokens of a sequence. Example: `RoutedExperts(5, rows)` with rows [3, 48, 8] is of tokens 5 to 7.

    A server knows them of every token that it has read: all but the last one that it sampled.
    """

    start: int
    """Place of the first of these tokens in its sequence."""
    rows_RLK: np.ndarray

    def __post_init__(self) -> None:
        assert self.rows_RLK.ndim == 3, f"experts of shape {self.rows_RLK.shape}"
        rows = self.rows_RLK.view()
        rows.flags.writeable = False
        object.__setattr__(self, "rows_RLK", rows)

    @property
    def end(self) -> int:
        """The place behind the last of these tokens."""
        return self.start + len(self.rows_RLK)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RoutedExperts):
            return NotImplemented
        return self.start == other.start and np.array_equal(self.rows_RLK, other.rows_RLK)

    __hash__ = None  # type: ignore[assignment]  # as an array

    @classmethod
    def joined(cls, parts: "Iterable[RoutedExperts | None]") -> "RoutedExperts | None":
        """The experts of pieces of a reply that follow one another; None if none of them has any."""
        found = [part for part in parts if part is not None]
        if len(found) < 2:
            return found[0] if found else None
        assert all(left.end == right.start for left, right in pairwise(found)), "pieces of a reply have a gap"
        return cls(found[0].start, np.concatenate([part.rows_RLK for part in found]))

    def to_dict(self) -> dict[str, Any]:
        """A dictionary for `vime.files.serialization`; `read` makes it experts again."""
        return {"start": self.start, **table_to_dict(self.rows_RLK)}

    @classmethod
    def read(cls, value: "RoutedExperts | dict[str, Any] | None") -> "RoutedExperts | None":
        """Reads `to_dict`; experts and None stay."""
        return cls(value["start"], table_from_dict(value)) if isinstance(value, dict) else value


def table_to_dict(array: np.ndarray) -> dict[str, Any]:
    """An array of several dimensions as a dictionary that keeps its type and its bytes."""
    return {"dtype": array.dtype.name, "shape": list(array.shape), "values": Column(array.reshape(-1), array.dtype)}


def table_from_dict(written: dict[str, Any]) -> np.ndarray:
    """Reads `table_to_dict`, with its values as a column, as a list or as a column's text."""
    values = written["values"]
    column = values if isinstance(values, Column) else Column.read(values, np.dtype(written["dtype"]))
    return column.array.reshape(written["shape"])
