"""Sizes of τ²-bench's splits and the limits of its conversations; the package is not needed."""

from collections.abc import Mapping

SPLITS: Mapping[str, Mapping[str, int]] = {
    "base": {"airline": 50, "retail": 114, "telecom": 114},
    "train": {"airline": 30, "retail": 74, "telecom": 74},
    "test": {"airline": 20, "retail": 40, "telecom": 40},
}
"""Number of tasks by split and domain. `base` is `train` and `test` together: 278 tasks, 178 and 100."""
MAX_STEPS = 200
MAX_ERRORS = 10


def num_shared(split: str, other: str, domain: str) -> int:
    """The number of tasks of a domain that are in both splits."""
    if split == other:
        return SPLITS[split][domain]
    return min(SPLITS[split][domain], SPLITS[other][domain]) if "base" in (split, other) else 0
