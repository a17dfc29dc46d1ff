"""Metrics of a ReTool evaluation beside its score: how many programs were run, and how they ended."""

from collections import Counter
from statistics import fmean
from typing import Any

from vime.types import EvalLog


def eval_log(context: Any, results: list[dict[str, Any]]) -> EvalLog:
    """Programs per response, shares of programs that failed or were ended, and of responses with programs and without a box.

    The figure shows the score by the number of programs. `results` are the finished items of one data set, including failed
    ones: {"strict": 1.0, "metrics": {…}, "samples": [{"metadata": {"calls": {"finished": 2, "raised": 1}}, …}]}.
    """
    calls = [Counter(item["samples"][-1]["metadata"]["calls"]) if item["samples"] else Counter[str]() for item in results]
    total: Counter[str] = sum(calls, Counter())
    num_calls = max(1, total.total())
    metrics = {
        "calls_mean": fmean(one.total() for one in calls),
        "with_code_share": fmean(float(one.total() > 0) for one in calls),
        "call_raised_share": total["raised"] / num_calls,
        "call_ended_share": total["ended"] / num_calls,
        "no_box_share": fmean(1.0 - item["metrics"].get("boxed", 0.0) for item in results),
    }
    by_calls: dict[int, list[float]] = {}
    for item, one in zip(results, calls, strict=True):
        by_calls.setdefault(one.total(), []).append(item["strict"])
    numbers = sorted(by_calls)
    figure = {"x": numbers, "series": {"solved, share": [fmean(by_calls[number]) for number in numbers]}}
    return EvalLog(metrics=metrics, figures={"solved_by_calls": figure})
