"""Metrics of updates on the driver: sums over tokens become means, and several updates of a batch one value."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vime.config import TrainerConfig
from vime.trainer.shard import Shard

SKIPPED = "train/num_skipped_updates"
SECONDS = "train/seconds"
DIFFERENCE = "train/logprob_difference"
ROUTING_DIFFERENCE, NUM_REPLAYED = "train/routing_difference", "train/num_replayed_tokens"
"""The replayed tokens for which a router would have chosen other experts, and all replayed tokens; both of a row's tokens."""
TOTALS = ("train/num_tokens", "train/num_samples", "train/num_current_tokens", NUM_REPLAYED, SKIPPED, SECONDS)
"""Added over the updates of a batch; other metrics are averaged, maxima are maxima."""
COUNTS = ("train/num_tokens", "train/num_samples", "train/tokens_per_second", SECONDS, SKIPPED)
"""Metrics of the amount of work, whichever weights learn from it."""
CRITICS = ("train/grad_norm", "train/lr", SECONDS, SKIPPED)
"""Metrics of updates that the critic has as well."""
LOSS = ("/loss", "_loss")
"""Ends of the names of sums that are weighted already, and thereby means."""
MAXIMUM = "_max"


@dataclass(frozen=True, kw_only=True, slots=True)
class Passed:
    """The result of `forward_backward`: `Passed(sums={"train/loss": 0.2, "train/num_tokens": 90.0}, columns=[…])`."""

    sums: dict[str, float]
    """Metrics over all ranks as sums; only `train/num_skipped_updates` if they are not finite and the
    configuration skips such an update."""
    columns: Any = None
    """If they were asked for, the logprobs of the trained tokens as the column `trained`, in the form that `forward` returns."""

    @property
    def is_skipped(self) -> bool:
        """True if the gradients are gone, and no step is to be made."""
        return SKIPPED in self.sums


def added(parts: list[dict[str, float]]) -> dict[str, float]:
    """One value per name from micro-batches, ranks or passes: sums, and the largest of maxima."""
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            if name in total:
                total[name] = max(total[name], value) if name.endswith(MAXIMUM) else total[name] + value
            else:
                total[name] = value
    return total


def per_token(sums: dict[str, float]) -> dict[str, float]:
    """Sums over tokens become means; weighted sums, totals and maxima stay.

    The difference to the engine's logprobs is a mean over the tokens of the current weights, absent if there are none.
    """
    num_tokens = max(sums.get("train/num_tokens", 0.0), 1.0)
    means = {
        name: value if name in TOTALS or name.endswith((*LOSS, MAXIMUM)) else value / num_tokens for name, value in sums.items()
    }
    if num_replayed := sums.get(NUM_REPLAYED):
        means[ROUTING_DIFFERENCE] = sums[ROUTING_DIFFERENCE] / num_replayed
    if num_current := sums.get("train/num_current_tokens"):
        return means | {f"{DIFFERENCE}_mean": sums[f"{DIFFERENCE}_mean"] / num_current}
    return {name: value for name, value in means.items() if not name.startswith(DIFFERENCE)}


def over_updates(updates: list[dict[str, float]]) -> dict[str, float]:
    """One value per name from the updates of a batch.

    The difference to the engine's logprobs is the first update's, because later ones have moved away on purpose.
    """
    result: dict[str, float] = {}
    for name in dict.fromkeys(name for update in updates for name in update):
        values = [update[name] for update in updates if name in update]
        if name.startswith(DIFFERENCE):
            result[name] = values[0]
        elif name in TOTALS:
            result[name] = sum(values)
        else:
            result[name] = max(values) if name.endswith(MAXIMUM) else sum(values) / len(values)
    return result


def of_update(sums: dict[str, float], stepped: dict[str, float], shard: Shard) -> dict[str, float]:
    """The metrics of one update from those of its passes and its step, with the seconds of both."""
    seconds = {SECONDS: sums[SECONDS] + (stepped[SECONDS] if stepped is not sums else 0.0)}
    if SKIPPED in stepped:
        return stepped | seconds
    return per_token(sums) | stepped | seconds | {SKIPPED: 0.0, "train/useful_token_share": shard.useful_token_share}


def of_critic(found: dict[str, float]) -> dict[str, float]:
    """The metrics of a batch of the critic's updates under names of their own: `train/value_…` and `train/critic_…`."""
    own = {name: value for name, value in found.items() if name.startswith("train/value_")}
    return own | {name.replace("train/", "train/critic_"): found[name] for name in CRITICS if name in found}


def of_batch(updates: list[dict[str, float]], shards: Sequence[Shard], trainer: TrainerConfig) -> dict[str, float]:
    """The metrics of a batch from those of its updates, which went over the shards once in each epoch."""
    if not shards:
        return {"train/num_samples": 0.0, "train/num_tokens": 0.0, SKIPPED: 0.0}
    found, num_epochs = over_updates(updates), trainer.num_epochs_per_batch
    num_tokens = num_epochs * sum(shard.update_tokens for shard in shards)
    return found | {
        "train/num_samples": float(num_epochs * sum(shard.update_samples for shard in shards)),
        "train/tokens_per_second": num_tokens / max(found[SECONDS], 1e-9),
    }
