"""Requests to a reward service and its answers, read item by item; the README of this folder describes the format."""

import json
import math
from collections.abc import Sequence
from typing import Any

from vime.errors import RewardServiceError
from vime.types import Reward, Sample


def item_of(samples: Sequence[Sample]) -> dict[str, Any]:
    """The entry of one rollout in a request. Raises RewardServiceError for metadata that JSON cannot hold."""
    item = {
        "session": samples[-1].session_id,
        "label": list(samples[-1].label),
        "samples": [{"prompt": sample.prompt, "response": sample.response, "metadata": sample.metadata} for sample in samples],
    }
    try:
        json.dumps(item, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RewardServiceError(f"a sample's prompt or metadata cannot be sent to the reward service: {error}") from None
    return item


def read_answer(text: str, *, num_items: int) -> list[Reward | RewardServiceError]:
    """One reward or error per item, in the order of the request.

    Raises RewardServiceError if the answer as a whole cannot be read, because then rewards cannot be matched with items.
    """
    try:
        rewards = json.loads(text)["rewards"]
        by_id: dict[int, dict[str, Any]] = {entry["id"]: entry for entry in rewards}
    except (ValueError, LookupError, TypeError):
        raise RewardServiceError(f"the reward service answers no JSON with rewards by id: {text[:200]!r}") from None
    strangers = [number for number in by_id if type(number) is not int or not 0 <= number < num_items]
    if strangers or len(by_id) != len(rewards):
        what = f"id {strangers[0]!r}, which was not asked for" if strangers else "one id more than once"
        raise RewardServiceError(f"the reward service answers {what}")
    return [_reward(by_id.get(number)) for number in range(num_items)]


def _reward(entry: dict[str, Any] | None) -> Reward | RewardServiceError:
    if entry is None:
        return RewardServiceError("the reward service leaves this item out")
    if (error := entry.get("error")) is not None:
        return RewardServiceError(f"the reward service cannot score this item: {str(error)[:200]}")
    numbers = {"reward": entry.get("reward"), **(metrics if isinstance(metrics := entry.get("metrics", {}), dict) else {})}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return RewardServiceError(f"the reward service gives {name}={str(value)[:50]!r}, which is no finite number")
    return Reward(score=float(numbers.pop("reward")), metrics={name: float(value) for name, value in numbers.items()})
