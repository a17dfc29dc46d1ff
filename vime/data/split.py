"""Divides generated data into training and evaluation by hash, so that no subject of an evaluation occurs in training."""

import hashlib
from typing import Literal

Split = Literal["train", "eval"]
EVALUATION_SHARE = 0.2


def split_of(subject: str) -> Split:
    """The only split that asks about a subject; about a fifth of all subjects belong to the evaluation."""
    return "eval" if hashlib.sha256(subject.encode()).digest()[0] < 256 * EVALUATION_SHARE else "train"
