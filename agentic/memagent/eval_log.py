"""What an evaluation of MemAgent says besides its score: how the memory behaves, chunk by chunk."""

from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean
from typing import Any

from vime.grading.qa import normalize
from vime.types import EvalLog


def eval_log(context: Any, results: list[dict[str, Any]]) -> EvalLog:
    """Turns per rollout, memories cut at the limit, answers without a box, and the recall of the gold answer in the memory.

    `results` are finished items: {"label": […], "metrics": {…}, "samples": [{"response": …, "metadata": {…}}, …]}.
    """
    memories = [[s for s in result["samples"] if "memory" in s["metadata"]] for result in results]
    if not any(memories):
        return EvalLog()
    metrics = {
        "turns_mean": fmean(len(result["samples"]) for result in results if result["samples"]),
        "memory_characters_mean": fmean(len(s["metadata"]["memory"]) for item in memories for s in item),
        "memory_cut_share": fmean(float(s["metadata"]["cut"]) for item in memories for s in item),
        "no_box_share": fmean(1.0 - result["metrics"].get("boxed", 0.0) for result in results),
    }
    recall = _recall_by_chunk(results, memories)
    positions = sorted(recall)
    figure = {"x": [p + 1 for p in positions], "series": {"gold answer in memory": [recall[p] for p in positions]}}
    return EvalLog(metrics=metrics, figures={"recall_by_chunk": figure})


def _recall_by_chunk(results: list[dict[str, Any]], memories: Iterable[list[dict[str, Any]]]) -> dict[int, float]:
    """Share of items whose memory holds the gold answer after each chunk, 0 to 1."""
    found: dict[int, list[float]] = defaultdict(list)
    for result, item in zip(results, memories, strict=True):
        gold = [normalize(reference) for reference in result["label"]]
        for sample in item:
            text = normalize(sample["metadata"]["memory"])
            found[sample["metadata"]["turn"]].append(float(any(g and g in text for g in gold)))
    return {turn: fmean(values) for turn, values in found.items()}
