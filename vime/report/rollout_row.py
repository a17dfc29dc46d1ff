"""The line of a rollout in `rollouts/step_*.jsonl`; this folder's README lists its keys."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from vime.algorithm.advantage import Advantages
from vime.files.record import Recorder
from vime.types import Group, Rollout


def rollout_row(
    step: int,
    group: Group,
    rollout: Rollout,
    recorder: Recorder,
    advantages: Advantages | None,
    logprobs: Mapping[int, np.ndarray],
) -> dict[str, Any]:
    """The line of one rollout of a group; `logprobs` are by the `id()` of a sample's tokens."""
    prompt = group.prompt
    of_samples = advantages if isinstance(advantages, list) else [advantages] * len(rollout.samples)
    return {
        "step": step,
        "group_index": rollout.group_index,
        "rollout_id": rollout.rollout_id,
        "dataset": prompt.dataset,
        "row": prompt.row,
        "messages": prompt.messages,
        "ground_truth": prompt.ground_truth,
        "reward": rollout.reward,
        "metrics": rollout.metrics,
        "stop_reason": rollout.stop_reason.value,
        "status": rollout.status.value,
        "error": rollout.error,
        **({"traceback": rollout.traceback} if rollout.traceback else {}),
        "num_retries": rollout.num_retries,
        "generation_seconds": rollout.generation_seconds,
        "seconds": rollout.seconds,
        "counts": rollout.counts,
        "weight_version": group.weight_version,
        "samples": [
            recorder.row(sample, advantage=value, logprobs=logprobs.get(id(sample.tokens)))
            for sample, value in zip(rollout.samples, of_samples, strict=True)
        ],
        **({"unfinished": [recorder.row(sample) for sample in rollout.unfinished]} if rollout.unfinished else {}),
    }
