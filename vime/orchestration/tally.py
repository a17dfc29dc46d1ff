"""Counts what happened to groups and rollouts since the last batch, and decides whether the run can continue."""

import logging
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager

from vime.config import RolloutConfig
from vime.errors import InfrastructureError
from vime.types import Group, Prompt, Rollout, StopReason

logger = logging.getLogger(__name__)

MAX_KEPT = 16
"""Most groups with a failed rollout that are kept since the last batch, to show them if the run ends."""


class Tally:
    """Counts by name, for the metrics `rollout/num_<name>`.

    Example: `tally.counts["groups_refused"] += 1`.
    """

    def __init__(self, config: RolloutConfig) -> None:
        self.counts: Counter[str] = Counter()
        self._config = config
        self._asked: dict[tuple[int, int], int] = {}
        """Number of rollouts that each group was asked for, by slot and prompt: those that are at work, and those in the
        counts."""
        self._failed_of: dict[tuple[int, int], int] = {}
        """Number of them that have failed; one that was run again counts once."""
        self._at_work: set[tuple[int, int]] = set()
        self._causes: Counter[str] = Counter()
        self._tracebacks: dict[str, str] = {}
        """A traceback for each cause that a hook raised."""
        self._failed_groups: deque[Group] = deque(maxlen=MAX_KEPT)
        self._filter_error = ""
        self._given_up = ""
        """The last prompt that was given up, with the reason."""

    @contextmanager
    def asked(self, slot: int, prompt: Prompt, num_rollouts: int) -> Iterator[None]:
        """Counts the rollouts of a group in the shares of failures while the block runs, although they have not ended."""
        key = (slot, prompt.index)
        self._asked[key] = num_rollouts
        self._at_work.add(key)
        try:
            yield
        finally:
            self._at_work.discard(key)
            if key not in self._failed_of:
                self._asked.pop(key, None)

    def add(self, group: Group, *, known: dict[int, Rollout] | None = None) -> None:
        """Counts a group that ended, without the rollouts (by member) that were counted before.

        A rollout that was aborted is a failure, unless enough others of its group had ended.
        """
        self.counts["groups"] += 1
        num_counted, num_failed = sum(rollout.counting.in_baseline for rollout in group.rollouts), 0
        of_the_row = all(rollout.could_not_begin for rollout in group.rollouts)
        for rollout in group.rollouts:
            if rollout.member in (known or {}):
                continue
            if rollout.stop_reason is StopReason.ABORTED and num_counted >= self._config.num_samples_per_prompt:
                self.counts["aborted"] += 1
                continue
            self.counts["rollouts"] += 1
            self.counts["retries"] += rollout.num_retries
            if not rollout.counting.in_baseline:
                self.counts["failed"] += 1
                num_failed += not of_the_row
                cause = f"{rollout.stop_reason.value}: {rollout.error}"
                self._causes[cause] += 1
                self._tracebacks.setdefault(cause, rollout.traceback)
                logger.info("rollout %d has failed: %s", rollout.rollout_id, cause)
                if not self._failed_groups or self._failed_groups[-1] is not group:
                    self._failed_groups.append(group)
        key = (group.index, group.prompt.index)
        self._asked[key] = max(self._asked.get(key, 0), len(group.rollouts))
        self._failed_of[key] = max(self._failed_of.get(key, 0), num_failed)

    def add_given_up(self, group: Group) -> None:
        """Counts a prompt for which another one is taken, because its rollouts fail again and again or cannot begin."""
        self.counts["prompts_given_up"] += 1
        cause = next((rollout.error for rollout in group.rollouts if rollout.error), "its rollouts were lost")
        self._given_up = f"row {group.prompt.row} of {group.prompt.dataset or 'the training data'}: {cause}"
        logger.warning("prompt %d is given up for another: %s", group.prompt.index, self._given_up)

    def add_filter_failure(self, error: Exception) -> None:
        """Counts a group for which `rollout.filter` raised, and logs the first such error of the run."""
        self.counts["filter_failures"] += 1
        if not self._filter_error:
            logger.warning("rollout.filter raised; the group is kept, further failures are only counted", exc_info=error)
        self._filter_error = f"{type(error).__name__}: {error}"

    def problem(self) -> InfrastructureError | None:
        """The error to end the run with, if the counts since the last batch show that it cannot continue."""
        for find in (self._failed, self._refused, self._no_prompts, self._filtered, self._filter_broken):
            if (text := find()) is not None:
                return InfrastructureError(text, groups=self._failed_groups)
        return None

    def take(self) -> dict[str, float]:
        """The metrics since the last call of this method."""
        metrics = {f"rollout/num_{name}": float(count) for name, count in self.counts.items()}
        self.counts.clear()
        self._asked = {key: number for key, number in self._asked.items() if key in self._at_work}
        self._failed_of.clear()
        self._causes.clear()
        self._tracebacks.clear()
        self._failed_groups.clear()
        return metrics

    def _failed(self) -> str | None:
        config = self._config
        enough = config.num_samples_per_prompt * min(config.num_prompts, 4)
        failed, rollouts = sum(self._failed_of.values()), sum(self._asked.values())
        if rollouts < enough or failed / rollouts <= config.max_infrastructure_failure_share:
            return None
        cause, times = self._causes.most_common(1)[0]
        return (
            f"{failed} of {rollouts} rollouts that were asked for failed for reasons that are not the agent's, more than "
            f"rollout.max_infrastructure_failure_share={config.max_infrastructure_failure_share}; "
            f"most often ({times} times) {cause}" + (f"\n{found}" if (found := self._tracebacks[cause]) else "")
        )

    def _refused(self) -> str | None:
        if (refused := self.counts["groups_refused"]) <= 4 * self._config.num_prompts:
            return None
        return (
            f"{refused} groups had tokens older than rollout.max_staleness={self._config.max_staleness} versions; do the "
            "servers label what they sample with the version of the last sync?"
        )

    def _no_prompts(self) -> str | None:
        config, given_up, groups = self._config, self.counts["prompts_given_up"], self.counts["groups"]
        if groups < 4 * config.num_prompts or given_up / groups <= config.max_filtered_share:
            return None
        return (
            f"the prompts of {given_up} of {groups} groups were given up, more than rollout.max_filtered_share="
            f"{config.max_filtered_share}; the last was {self._given_up}"
        )

    def _filtered(self) -> str | None:
        config, filtered, groups = self._config, self.counts["groups_filtered"], self.counts["groups"]
        if groups < 4 * config.num_prompts or filtered / groups <= config.max_filtered_share:
            return None
        return (
            f"rollout.filter dropped {filtered} of {groups} groups, more than rollout.max_filtered_share="
            f"{config.max_filtered_share}: the model solves nearly everything or nearly nothing"
        )

    def _filter_broken(self) -> str | None:
        config, failures, groups = self._config, self.counts["filter_failures"], self.counts["groups"]
        if groups < min(config.num_prompts, 4) or failures / groups <= config.max_infrastructure_failure_share:
            return None
        return (
            f"rollout.filter={config.filter} raised for {failures} of {groups} groups, more than rollout."
            f"max_infrastructure_failure_share={config.max_infrastructure_failure_share}; last {self._filter_error}"
        )
