"""Metrics of a Search-R1 evaluation beside its score: how often the model searches, and with what success."""

from statistics import fmean
from typing import Any

from vime.types import EvalLog


def eval_log(context: Any, results: list[dict[str, Any]]) -> EvalLog:
    """Searches, invalid turns and cut results per item, the share of items whose results hold the gold answer, and all scores.

    The figure shows that share after each search. `results` are the finished items of one data set, including failed ones:
    {"metrics": {"strict": 1.0, …}, "samples": [{"metadata": {"queries": […], "holds_gold": [0.0, 1.0], …}}], …}.
    """
    found = [result["samples"][-1]["metadata"] for result in results if result["samples"]]
    if not found:
        return EvalLog()
    most = max(len(about["queries"]) for about in found)
    recall = [sum(any(about["holds_gold"][:n]) for about in found) / len(results) for n in range(1, most + 1)]
    names = sorted({name for result in results for name in result["metrics"]})
    metrics = {name: fmean(result["metrics"].get(name, 0.0) for result in results) for name in names}
    metrics |= {"searches_mean": fmean(len(about["queries"]) for about in found), "recall": recall[-1] if recall else 0.0}
    metrics |= {f"{name}_mean": fmean(about[name] for about in found) for name in ("invalid_turns", "cut_results")}
    figure = {"x": list(range(1, most + 1)), "series": {"gold answer in a result": recall}}
    return EvalLog(metrics=metrics, figures={"recall_by_search": figure} if recall else {})
