"""Metrics of a ToolOrchestra evaluation: scores by domain, calls of tools and experts, cost, latency, turns, endings."""

from collections import Counter
from statistics import fmean
from typing import Any

from agentic.toolorchestra.experts import CallEnd
from agentic.toolorchestra.orchestrator import Ending
from vime.types import EvalLog

Item = dict[str, Any]
NUM_POINTS = 20
"""Points of the cost-accuracy curve, besides its origin."""


def eval_log(context: Any, results: list[Item]) -> EvalLog:
    """Scores in percent, counts and dollars per item, shares of 0 to 1.

    `results` are finished items: {"dataset": …, "strict": …, "metrics": {…}, "samples": [{"metadata": {…}}, …]}. Items without an
    orchestrator (the single-turn baseline, a rollout that was stopped) enter the scores but not the counts; where no item has
    one, there are dollars and seconds alone.
    """
    played = [item for item in results if item["samples"] and "ending" in item["samples"][-1]["metadata"]]
    if not played:
        return EvalLog(metrics=_amounts([item["samples"][-1]["metadata"] for item in results if item["samples"]]))
    found = [item["samples"][-1]["metadata"] for item in played]
    solved = sum(item["strict"] > 0 for item in played)
    dollars = [float(metadata["dollars"]) for metadata in found]
    metrics = {
        **_scores(results),
        "turns_mean": fmean(metadata["turns"] for metadata in found),
        "invalid_calls_mean": fmean(metadata["invalid_calls"] for metadata in found),
        **_amounts(found),
        "transfer_share": fmean(float(metadata.get("transfers", 0) > 0) for metadata in found),
        **{f"ending/{end.value}": fmean(float(metadata["ending"] == end.value) for metadata in found) for end in Ending},
        **_calls(found),
    }
    if solved:
        metrics["dollars_per_solved"] = sum(dollars) / solved
    return EvalLog(metrics=metrics, figures={"cost_accuracy": _cost_accuracy(played), **_tool_figure(found)})


def _amounts(found: list[Item]) -> dict[str, float]:
    """Dollars and seconds per item."""
    counted = [metadata for metadata in found if "dollars" in metadata]
    return {f"{name}_mean": fmean(float(metadata[name]) for metadata in counted) for name in ("dollars", "seconds") if counted}


def _scores(results: list[Item]) -> dict[str, float]:
    """The score of every domain in percent, and the share of answers that the judge decided."""
    by_domain: dict[str, list[float]] = {}
    for item in results:
        metadata = item["samples"][-1]["metadata"] if item["samples"] else {}
        by_domain.setdefault(str(metadata.get("domain") or item["dataset"]), []).append(item["strict"])
    scores = {f"score/{name}": 100.0 * fmean(values) for name, values in by_domain.items()}
    return scores | {"judged_share": fmean(item["metrics"].get("judged", 0.0) for item in results)}


def _calls(found: list[Item]) -> dict[str, float]:
    """Calls per item by tool and by expert; for experts also dollars, tokens and how calls ended."""
    tools: Counter[str] = Counter()
    for metadata in found:
        tools.update(metadata["tool_calls"])
    calls = [call for metadata in found for call in metadata["expert_calls"]]
    count = len(found)
    metrics = {f"tool/{name}": number / count for name, number in tools.items()}
    for alias in sorted({call["alias"] for call in calls}):
        own = [call for call in calls if call["alias"] == alias]
        metrics[f"expert/{alias}"] = len(own) / count
        metrics[f"expert_dollars/{alias}"] = sum(call["dollars"] for call in own) / count
        metrics[f"expert_tokens/{alias}"] = sum(call["input_tokens"] + call["output_tokens"] for call in own) / count
    if calls:
        metrics |= {f"expert_end/{end.value}": fmean(float(call["end"] == end.value) for call in calls) for end in CallEnd}
    return metrics


def _tool_figure(found: list[Item]) -> dict[str, Any]:
    """A figure of the calls per item of all tools and experts."""
    calls = {name.split("/", 1)[1]: value for name, value in _calls(found).items() if name.startswith(("tool/", "expert/"))}
    return {"calls": {"x": sorted(calls), "series": {"calls per item": [calls[name] for name in sorted(calls)]}}} if calls else {}


def _cost_accuracy(played: list[Item]) -> dict[str, Any]:
    """A figure of the share of items that were solved at up to a cost in dollars, by this cost."""
    pairs = [(float(item["samples"][-1]["metadata"]["dollars"]), item["strict"] > 0) for item in played]
    highest = max(cost for cost, _ in pairs)
    costs = [highest * step / NUM_POINTS for step in range(NUM_POINTS + 1)] if highest > 0 else [0.0]
    shares = [sum(right and cost <= bound for cost, right in pairs) / len(pairs) for bound in costs]
    return {"x": costs, "series": {"solved at this cost or less": shares}}
