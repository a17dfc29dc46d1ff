"""Metrics of an evaluation of word problems beside its score."""

from statistics import fmean
from typing import Any

from vime.types import EvalLog

NAMES = {"calculated": "items with a calculation", "answered": "items that are answered"}


def eval_log(context: Any, results: list[dict[str, Any]]) -> EvalLog:
    """Shares of the items with a calculation, and with an answer.

    `results` are the finished items of one data set, including failed ones: {"metrics": {"calculated": 1.0, …}, …}.
    """
    return EvalLog(metrics={shown: fmean(item["metrics"].get(name, 0.0) for item in results) for name, shown in NAMES.items()})
