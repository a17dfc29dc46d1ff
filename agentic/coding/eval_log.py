"""Metrics of a coding evaluation: patches that apply and solve, the agents' actions, their segments, and why they ended."""

from collections import Counter
from statistics import fmean
from typing import Any

from agentic.coding.agent_result import Ending
from vime.types import EvalLog

Item = dict[str, Any]
KINDS = ("main", "subagent", "compacted")


def eval_log(context: Any, results: list[Item]) -> EvalLog:
    """Shares of 0 to 1 and counts per item.

    `results` are finished items: {"dataset": …, "strict": …, "metrics": {…}, "samples": [{"metadata": {…}}, …]}. Items without an
    agent (the single-turn baseline, a rollout that was stopped) enter the share that is resolved but not the counts.
    """
    metrics = {"resolved_share": fmean(float(item["strict"] > 0) for item in results)} if results else {}
    for name in ("applied", "tests_touched", "tampered", "mended", "kept"):
        if results and any(name in item["metrics"] for item in results):
            metrics[f"{name}_share"] = fmean(item["metrics"].get(name, 0.0) for item in results)
    found = [item["samples"][-1]["metadata"] for item in results if item["samples"]]
    verdicts = Counter(metadata["verdict"]["reason"] for metadata in found if "verdict" in metadata)
    metrics |= {f"verdict/{reason}": count / len(results) for reason, count in sorted(verdicts.items())}
    worked = [metadata for metadata in found if "ending" in metadata]
    if not worked:
        return EvalLog(metrics=metrics)
    metrics |= {f"ending/{end.value}": fmean(float(metadata["ending"] == end.value) for metadata in worked) for end in Ending}
    for name in ("turns", "summaries", "tokens"):
        metrics[f"{name}_mean"] = fmean(metadata.get(name, 0) for metadata in worked)
    segments = Counter[str]()
    tools = Counter[str]()
    for metadata in worked:
        segments.update(metadata["segments"])
        tools.update(metadata.get("tool_calls", {}))
    metrics |= {f"segments/{kind}": segments[kind] / len(worked) for kind in sorted({*KINDS, *segments})}
    metrics["compacted_share"] = fmean(float(metadata["segments"].get("compacted", 0) > 0) for metadata in worked)
    metrics |= {f"tool/{name}": count / len(worked) for name, count in sorted(tools.items())}
    return EvalLog(metrics=metrics, figures={"solved_by_turns": _solved_by_turns(results)})


def _solved_by_turns(results: list[Item]) -> dict[str, Any]:
    """A figure of the share of items that were solved within a number of replies, those of sub-agents and summaries included."""
    pairs = [(item["samples"][-1]["metadata"].get("turns", 0), item["strict"] > 0) for item in results if item["samples"]]
    x = list(range(max(turns for turns, _ in pairs) + 1))
    shares = [sum(solved and turns <= most for turns, solved in pairs) / len(results) for most in x]
    return {"x": x, "series": {"solved within so many replies": shares}}
