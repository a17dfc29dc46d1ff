"""Runs a user's class in the producer's place (`rollout.producer`), which decides which prompts run when; checks its batches.

Workers and their isolation, the staleness bound, evaluation, checkpoints and resuming work as with the built-in producer.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from vime.config import RolloutConfig, RunConfig
from vime.errors import CheckpointError, HookError
from vime.files.serialization import from_json, to_json
from vime.hooks import load_hook, naming
from vime.orchestration.producer import PromptStream, Runner
from vime.orchestration.tally import Tally
from vime.serving.sampling import in_training
from vime.types import Group, Prompt
from vime.workers.isolation import check_samples, template_of
from vime.workers.own_verdict import adopt

logger = logging.getLogger(__name__)
KEY = "rollout.producer"


class GroupRunner:
    """Runs groups on the workers, under the weights that the servers hold, each in a slot of its own.

    Example: `group = await runner.run_group(source.next())`.
    """

    def __init__(self, config: RolloutConfig, workers: Runner, *, version: int, seen: Callable[[Group], None]) -> None:
        """`seen` is given each finished group."""
        self.version, self._seen = version, seen
        self.next_slot = 0
        self.on_group: Callable[[Group], None] = lambda group: None
        self._config, self._workers = config, workers
        self._tally = Tally(config)

    async def run_group(self, prompt: Prompt, *, num_rollouts: int | None = None) -> Group:
        """The rollouts of one prompt, by default `rollout.num_samples_per_prompt` of them; none has older tokens.

        Raises InfrastructureError when too large a share of all rollouts since the last batch has failed.
        """
        slot, self.next_slot = self.next_slot, self.next_slot + 1
        number = self._config.num_samples_per_prompt if num_rollouts is None else num_rollouts
        group = await self._workers.run_group(
            prompt=prompt, slot=slot, num_rollouts=number, version=self.version, num_wanted=number, progress=None
        )
        self._seen(group)
        self._tally.add(group)
        if (error := self._tally.problem()) is not None:
            raise error
        self.on_group(group)
        return group

    def forget(self) -> None:
        """Resets the counts, because a batch is complete."""
        self._tally.take()


class OwnProducer:
    """Adapts a user's class (`rollout.producer`) to the interface of `vime.orchestration.producer.Producer`."""

    def __init__(self, config: RunConfig, *, path: str, source: PromptStream, runner: Runner, version: int) -> None:
        """Makes the user's object, with the servers at weight `version`. Raises HookError for any error that it raises."""
        self._config, self._path, self._sampling = config.rollout, path, in_training(config)
        seen: Callable[[Group], None] = getattr(source, "seen", lambda group: None)
        self._runner = GroupRunner(config.rollout, runner, version=version, seen=seen)
        with naming(KEY, path):
            self._own = load_hook(path)(config, source, self._runner)

    @property
    def on_group(self) -> Callable[[Group], None]:
        """Called with each group that the runner finishes."""
        return self._runner.on_group

    @on_group.setter
    def on_group(self, call: Callable[[Group], None]) -> None:
        self._runner.on_group = call

    def set_version(self, version: int, *, num_batches_left: int | None = None) -> None:
        """Announces that the servers now hold `version`."""
        self._runner.version = version

    async def batch(self) -> tuple[list[Group], dict[str, float]]:
        """The user's next batch, and counts of its failures.

        Raises HookError, which names the class, for any error that it raises and for a batch that breaks its contract.
        """
        version = self._runner.version
        with naming(KEY, self._path):
            groups = await self._own.batch(version)
        self._check(groups, version)
        tally = Tally(self._config)
        for group in groups:
            tally.add(group)
        if (error := tally.problem()) is not None:
            raise error
        self._runner.forget()
        return groups, tally.take()

    def give_back(self, groups: list[Group]) -> None:
        """Does nothing: which groups the next batch has is the user's object to say."""

    async def state(self) -> dict[str, Any]:
        """The state that a resumed run needs: the number of the next slot, and the result of the user's `state`."""
        own = None
        if hasattr(self._own, "state"):
            with naming(KEY, self._path):
                given = self._own.state()
            own = from_json(to_json(given))  # a copy: it is written while the object goes on
            if own != given:
                raise HookError(
                    f"{KEY}={self._path}: state() returned what JSON cannot hold: use dictionaries with text as keys, "
                    "lists, texts, numbers"
                )
        return {"next_slot": self._runner.next_slot, "own": own}

    def load(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned. Raises CheckpointError for the state of the built-in producer."""
        if "own" not in state:
            raise CheckpointError(f"the checkpoint was made without {KEY}={self._path}: resume without it")
        self._runner.next_slot = state["next_slot"]
        if state["own"] is not None and hasattr(self._own, "load"):
            with naming(KEY, self._path):
                self._own.load(state["own"])

    async def stop(self) -> None:
        """Lets the user's object stop what it still runs; an error is only logged, because the run has ended."""
        if hasattr(self._own, "stop"):
            try:
                await asyncio.wait_for(self._own.stop(), self._config.max_blocked_seconds)
            except Exception:  # the boundary of a user's function, at the end of the run
                logger.warning("%s=%s did not stop cleanly", KEY, self._path, exc_info=True)

    def _check(self, groups: Any, version: int) -> None:
        """Numbers the groups and their rollouts, and refuses a batch that cannot be trained as it is."""
        wanted, where = self._config.num_prompts, f"{KEY}={self._path}: batch({version})"
        if not isinstance(groups, list) or not all(isinstance(group, Group) for group in groups):
            raise HookError(f"{where} returned {type(groups).__name__}, not a list of groups")
        if len({id(group) for group in groups}) != wanted or len(groups) != wanted:
            raise HookError(f"{where} returned {len(groups)} groups; a batch is rollout.num_prompts={wanted} different ones")
        for group in groups:
            with naming(KEY, self._path):
                self._number(group)
            group.weight_version = version
            if (oldest := group.oldest_version) < version - self._config.max_staleness:
                raise HookError(
                    f"{where} returned a group with tokens of weight version {oldest}; rollout.max_staleness="
                    f"{self._config.max_staleness} allows {version - self._config.max_staleness} and later"
                )

    def _number(self, group: Group) -> None:
        """Numbers the group and each of its rollouts, and checks their samples like those of `generate`."""
        slot, self._runner.next_slot = self._runner.next_slot, self._runner.next_slot + 1
        group.index = slot
        for member, rollout in enumerate(group.rollouts):
            session = rollout.samples[0].session_id if rollout.samples else ""
            template = template_of(group.prompt, slot=slot, member=member, session=session)
            rollout.rollout_id, rollout.group_index = template.rollout_id, slot
            found = rollout.samples
            rollout.samples = check_samples(found, template, sampling=self._sampling) if found else []
            adopt(rollout)
