"""Metrics of an evaluation of classification beside its score."""

from statistics import fmean
from typing import Any

from vime.types import EvalLog

NAMES = {"greedy": "greedy", "likeliest": "likeliest class", "form": "replies that are a class"}


def eval_log(context: Any, results: list[dict[str, Any]]) -> EvalLog:
    """Shares of items whose greedy completion is right, whose likeliest class is right, and whose sampled completion is a class.

    `results` are the finished items of one data set, including failed ones: {"metrics": {"strict": 1.0, "greedy": 1.0, …}, …}.
    """
    return EvalLog(metrics={shown: fmean(item["metrics"].get(name, 0.0) for item in results) for name, shown in NAMES.items()})
