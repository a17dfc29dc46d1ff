"""Metrics of a multi-agent evaluation beside its score: accuracy by role, calls, tokens and how rollouts end."""

from statistics import fmean
from typing import Any

from agentic.multi_agent.config import Role
from vime.types import EvalLog


def eval_log(context: Any, results: list[dict[str, Any]]) -> EvalLog:
    """Accuracies of the reward's metrics, calls and sampled tokens of a rollout, and shares of cut replies and endings.

    The figure shows how often a rollout is solved by how many of its solvers are right. `results` are the finished items of one
    data set, including failed ones: {"strict": 1.0, "stop_reason": "answered", "metrics": {"solvers": 0.5, …},
    "samples": [{"metadata": {"role": "solver", "tokens": 15, "cut": False}}, …]}.
    """
    calls = [sample["metadata"] for item in results for sample in item["samples"]]
    if not calls:
        return EvalLog()
    names = sorted({name for item in results for name in item["metrics"]} - {"strict"})
    metrics = {name: fmean(item["metrics"].get(name, 0.0) for item in results) for name in names}
    metrics["selector"] = fmean(item["strict"] for item in results)
    metrics["calls_mean"] = len(calls) / len(results)
    for role in Role:
        metrics[f"{role.value}_tokens_mean"] = sum(one["tokens"] for one in calls if one["role"] == role.value) / len(results)
    metrics["cut_share"] = fmean(float(one["cut"]) for one in calls)
    metrics["no_choice_share"] = fmean(float(item["stop_reason"] != "answered") for item in results)
    by_right: dict[int, list[float]] = {}
    for item in results:
        num_solvers = sum(sample["metadata"]["role"] == Role.solver.value for sample in item["samples"])
        by_right.setdefault(round(num_solvers * item["metrics"].get("solvers", 0.0)), []).append(item["strict"])
    figure = {"x": sorted(by_right), "series": {"solved, share": [fmean(by_right[number]) for number in sorted(by_right)]}}
    return EvalLog(metrics=metrics, figures={"solved_by_right_solvers": figure})
