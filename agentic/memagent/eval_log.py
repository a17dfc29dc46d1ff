"""Metrics of a MemAgent evaluation beside its score: how the memory develops from chunk to chunk."""

from collections import defaultdict
from statistics import fmean
from typing import Any

from vime.types import EvalLog

SCORES = ("strict", "lenient", "exact_match", "f1", "gold_in_prediction", "sub_em_unguarded")
"""Scores of the reward that are averaged; the last one only serves comparisons with published numbers."""


def eval_log(context: Any, results: list[dict[str, Any]]) -> EvalLog:
    """Turns per rollout, length of the memory, memories that were cut or empty, answers without a box, and all scores.

    The figures show the recall of the gold answer in the memory and the memory's length after each chunk; the recall is left out
    if items lack `holds_gold`. `results` are the finished items of one data set, including failed ones:
    {"label": […], "strict": 1.0, "metrics": {…}, "samples": [{"response": …, "metadata": {…}}, …]}.
    """
    memories = [[s for s in result["samples"] if "memory" in s["metadata"]] for result in results]
    turns = [sample["metadata"] for item in memories for sample in item]
    if not turns:
        return EvalLog()
    metrics = {
        "turns_mean": fmean(len(result["samples"]) for result in results if result["samples"]),
        "memory_tokens_mean": fmean(turn["memory_tokens"] for turn in turns),
        "memory_cut_share": fmean(float(turn["cut"]) for turn in turns),
        "memory_empty_share": fmean(float(turn["empty"]) for turn in turns),
        "no_box_share": fmean(1.0 - result["metrics"].get("boxed", 0.0) for result in results),
    }
    for name in SCORES:
        if any(name in result["metrics"] for result in results):
            metrics[name] = fmean(result["metrics"].get(name, 0.0) for result in results)
    figures: dict[str, Any] = {}
    if all("holds_gold" in turn for turn in turns):
        metrics["recall_at_the_end"] = fmean(item[-1]["metadata"]["holds_gold"] if item else 0.0 for item in memories)
        figures["recall_by_chunk"] = _figure("gold answer in memory", _by_chunk(memories, "holds_gold"))
    figures["memory_by_chunk"] = _figure("tokens of the memory", _by_chunk(memories, "memory_tokens"))
    return EvalLog(metrics=metrics, figures=figures)


def _by_chunk(memories: list[list[dict[str, Any]]], name: str) -> dict[int, list[float]]:
    """A metadata value of every memory, grouped by the number of the chunk just read."""
    values: dict[int, list[float]] = defaultdict(list)
    for item in memories:
        for sample in item:
            values[sample["metadata"]["turn"]].append(float(sample["metadata"][name]))
    return values


def _figure(series: str, values: dict[int, list[float]]) -> dict[str, Any]:
    """The means by chunk as a figure of one line."""
    positions = sorted(values)
    return {"x": [p + 1 for p in positions], "series": {series: [fmean(values[p]) for p in positions]}}
