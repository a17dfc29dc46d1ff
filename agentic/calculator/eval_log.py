"""Metrics of an evaluation of word problems beside its score."""

from statistics import fmean
from typing import Any

from vime.types import EvalLog

NAMES = {"calculations": "calculations an item", "answered": "items that are answered"}


def eval_log(context: Any, results: list[dict[str, Any]]) -> EvalLog:
    """Calculations and answers an item.

    `results` are the finished items of one data set, including failed ones: {"metrics": {"calculations": 2.0, …}, …}.
    """
    return EvalLog(metrics={shown: fmean(item["metrics"].get(name, 0.0) for item in results) for name, shown in NAMES.items()})
