"""What an evaluation of MemAgent says besides its score: how the memory behaves, chunk by chunk."""

from collections import defaultdict
from statistics import fmean
from typing import Any

from vime.grading.qa import normalize
from vime.types import EvalLog

SCORES = ("strict", "lenient", "exact_match", "f1", "gold_in_prediction", "sub_em_unguarded")
"""Scores of the reward that are averaged; the last serves comparisons with published numbers only."""


def eval_log(context: Any, results: list[dict[str, Any]]) -> EvalLog:
    """Turns per rollout, length of the memory, memories cut at the limit or empty, answers without a box, and all scores.

    The figures are the recall of the gold answer in the memory and the memory's length after each chunk. `results` are finished
    items of one data set, failed ones included:
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
    recall, lengths = _by_chunk(results, memories)
    positions = sorted(recall)
    metrics["recall_at_the_end"] = fmean(_last_recall(result, item) for result, item in zip(results, memories, strict=True))
    x = [position + 1 for position in positions]
    figures = {
        "recall_by_chunk": {"x": x, "series": {"gold answer in memory": [fmean(recall[p]) for p in positions]}},
        "memory_by_chunk": {"x": x, "series": {"tokens of the memory": [fmean(lengths[p]) for p in positions]}},
    }
    return EvalLog(metrics=metrics, figures=figures)


def holds_gold(memory: str, label: list[str]) -> float:
    """1 if a memory contains any gold answer after normalisation."""
    text = normalize(memory)
    return float(any(gold and gold in text for gold in map(normalize, label)))


def _by_chunk(
    results: list[dict[str, Any]], memories: list[list[dict[str, Any]]]
) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
    """Whether the memory holds the gold answer, and its tokens, by the number of the chunk just read."""
    recall: dict[int, list[float]] = defaultdict(list)
    lengths: dict[int, list[float]] = defaultdict(list)
    for result, item in zip(results, memories, strict=True):
        for sample in item:
            about = sample["metadata"]
            recall[about["turn"]].append(holds_gold(about["memory"], result["label"]))
            lengths[about["turn"]].append(float(about["memory_tokens"]))
    return recall, lengths


def _last_recall(result: dict[str, Any], item: list[dict[str, Any]]) -> float:
    """Whether the memory that the answer was given from holds the gold answer; 0 for a failed item."""
    return holds_gold(item[-1]["metadata"]["memory"], result["label"]) if item else 0.0
