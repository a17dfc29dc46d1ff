"""Metrics of an AgentFlow evaluation beside its score: turns, parsing, tools, the verifier, and why loops ended."""

from collections import Counter
from collections.abc import Iterable
from statistics import fmean
from typing import Any

from agentic.agentflow.generate import LoopEnd
from vime.types import EvalLog

Item = dict[str, Any]
Step = dict[str, Any]


def eval_log(context: Any, results: list[Item]) -> EvalLog:
    """Shares (0 to 1) over steps or items, means over items, and a histogram of the tools.

    `results` are finished items: {"dataset": …, "strict": …, "metrics": {…}, "samples": [{"metadata": {…}}, …]}. Items of the
    single-turn baseline have no loop and do not enter the metrics of the loop.
    """
    loops = [[sample["metadata"] for sample in item["samples"]] for item in results]
    ended = [metadata for metadata in loops if metadata and "loop_end" in metadata[-1]]
    if not ended:
        return EvalLog()
    steps = [step for loop in ended for step in loop if step["turn"] == "next_step"]
    metrics = {
        "turns_mean": fmean(len(loop) for loop in ended),
        "steps_mean": len(steps) / len(ended),
        **_step_shares(steps),
        **{f"loop_end/{end.value}": fmean(float(loop[-1]["loop_end"] == end.value) for loop in ended) for end in LoopEnd},
        **_scores(results),
        **_first_tools(ended),
    }
    tools = Counter(step["tool"] for step in steps)
    metrics |= {f"tool/{name}": count / len(steps) for name, count in tools.items()}
    for name, failures in _failures_by_tool(steps).items():
        metrics[f"tool_failures/{name}"] = failures / tools[name]
    names = sorted(tools)
    figure = {"x": names, "series": {"calls per question": [tools[name] / len(ended) for name in names]}}
    return EvalLog(metrics=metrics, figures={"tools": figure} if names else {})


def _share(flags: Iterable[bool]) -> float:
    values = [float(flag) for flag in flags]
    return fmean(values) if values else 0.0


def _step_shares(steps: list[Step]) -> dict[str, float]:
    """Shares over all steps."""
    return {
        "parse_failure_share": _share(not step["parsed"] for step in steps),
        "unknown_tool_share": _share(step["unknown_tool"] for step in steps),
        "command_failure_share": _share(not step["command_parsed"] for step in steps),
        "tool_failure_share": _share(step["tool_failed"] for step in steps),
        "verdict_failure_share": _share(not step["verdict_parsed"] for step in steps),
        "verifier_stop_share": _share(step["verifier_stop"] for step in steps),
    }


def _failures_by_tool(steps: list[Step]) -> Counter[str]:
    """The number of failed calls by tool, for tools with a failure."""
    return Counter(step["tool"] for step in steps if step["tool_failed"])


def _scores(results: list[Item]) -> dict[str, float]:
    """Shares over all items, failed ones included, and the score of each data set in percent."""
    by_dataset: dict[str, list[float]] = {}
    for item in results:
        by_dataset.setdefault(item["dataset"], []).append(item["strict"])
    return {
        "no_box_share": _share(not item["metrics"].get("boxed", 0.0) for item in results),
        "judged_share": _share(bool(item["metrics"].get("judged", 0.0)) for item in results),
        **{f"score/{name}": 100.0 * fmean(scores) for name, scores in by_dataset.items()},
    }


def _first_tools(loops: list[list[Step]]) -> dict[str, float]:
    """The share of loops whose first tool was the right one, for rows that name the right tool."""
    known = [loop for loop in loops if "first_tool" in loop[-1]]
    if not known:
        return {}
    first = [next((step["tool"] for step in loop if step["turn"] == "next_step"), None) for loop in known]
    return {"first_tool_right_share": _share(tool == loop[-1]["first_tool"] for tool, loop in zip(first, known, strict=True))}
