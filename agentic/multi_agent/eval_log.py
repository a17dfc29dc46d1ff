"""Metrics of a multi-agent evaluation beside its score: accuracy by role, calls, tokens and how rollouts end."""

from statistics import fmean
from typing import Any

from agentic.multi_agent.config import Role
from vime.types import EvalLog


def eval_log(context: Any, results: list[dict[str, Any]]) -> EvalLog:
    """The reward's accuracies, calls and sampled tokens of a rollout, shares of cut replies and of rollouts that chose nothing.

    The figure shows the score by the share of right solvers. `results` are the finished items of one data set, also failed ones:
    {"strict": 1.0, "metrics": {"solvers": 0.5, …}, "samples": [{"metadata": {"role": "solver", "tokens": 15, "cut": False}}], …}.
    """
    calls = [sample["metadata"] for item in results for sample in item["samples"]]
    names = {name for item in results for name in item["metrics"]} - {"strict"}
    metrics = {name: fmean(item["metrics"].get(name, 0.0) for item in results) for name in sorted(names)}
    metrics |= {"selector": fmean(item["strict"] for item in results), "calls_mean": len(calls) / len(results)}
    for role in Role:
        metrics[f"{role.value}_tokens_mean"] = sum(one["tokens"] for one in calls if one["role"] == role) / len(results)
    metrics["cut_share"] = fmean([float(one["cut"]) for one in calls] or [0.0])
    metrics["no_choice_share"] = fmean(float(item["stop_reason"] != "answered") for item in results)
    by_right: dict[float, list[float]] = {}
    for item in results:
        by_right.setdefault(item["metrics"].get("solvers", 0.0), []).append(item["strict"])
    figure = {"x": sorted(by_right), "series": {"solved, share": [fmean(by_right[share]) for share in sorted(by_right)]}}
    return EvalLog(metrics=metrics, figures={"solved_by_right_solvers": figure})
