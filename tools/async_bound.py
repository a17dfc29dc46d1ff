"""The best that asynchronous training could do on an ideal machine: a simulation of groups, trainer and shared cores.

The simulated run has the same tool times, batches and `max_staleness` as a real one, and admits, waits for and resamples groups
by the rules of `vime.orchestration.buffer`. Nothing else costs time: a message arrives at once, a call has no latency of its own,
the processor's work is divided among the cores without loss, and the trainer always has them first.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from vime.orchestration.buffer import Buffer
from vime.types import Group, Prompt

EPSILON = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Batches and machine of a run.

    Example: on two cores a batch of 8 groups of 4 rollouts trains in 0.5 s, and a rollout's tokens take 0.06 s of one core:
    `Run(num_steps=24, num_prompts=8, num_samples=4, max_staleness=8, num_cores=2, training_seconds=0.5, rollout_seconds=0.06,
    tool_seconds=…)`.
    """

    num_steps: int
    num_prompts: int
    num_samples: int
    max_staleness: int
    num_cores: int
    training_seconds: float
    """Seconds of a step with its weight sync, on all cores."""
    rollout_seconds: float
    """Seconds of one core, for a rollout's tokens."""
    tool_seconds: Callable[[int, int, int], float]
    """Tool seconds of a group's member, before it samples for the first time (0), for the second (1), …."""
    oldest_first: bool = True
    """True if the rollouts of older groups have the cores first; otherwise all have equal shares, as in a server's batch."""
    resamples: bool = True
    """True if stale rollouts of a late group are sampled again; otherwise the whole group is waited for."""


@dataclass(kw_only=True, slots=True)
class Member:
    """A rollout: in its tool until `tool_end`, then with `work` left, then finished."""

    slot: int
    number: int
    attempt: int
    tool_seconds: float
    tool_end: float
    work: float
    version: int = -1
    """The weight version of its tokens, once it samples."""


@dataclass(kw_only=True, slots=True)
class Ended:
    """The outcome of a simulated run, by step. Example: `Ended(step_seconds=[3.1, 0.9], ages=[0, 1], num_resampled=3)`."""

    step_seconds: list[float] = field(default_factory=list)
    ages: list[int] = field(default_factory=list)
    """The age of the oldest token."""
    num_resampled: int = 0
    tool_seconds: list[float] = field(default_factory=list)
    """Tool seconds of each rollout that is kept."""


class Simulation:
    """One run; `end` plays it."""

    def __init__(self, run: Run) -> None:
        self._run, self._buffer, self._ended = run, Buffer(), Ended()
        self._now, self._version, self._step_began = 0.0, 0, 0.0
        self._training = 0.0
        """Seconds that the step in training has left, 0 while the trainer waits."""
        self._members: dict[int, list[Member]] = {}
        """Members of unfinished groups, by slot."""

    def end(self) -> Ended:
        """Plays the run to its last step."""
        self._admit()
        while len(self._ended.step_seconds) < self._run.num_steps:
            self._begin_step()
            self._advance()
        return self._ended

    def _admit(self) -> None:
        """Starts the groups that the new weights admit, as `vime.orchestration.producer.Producer.set_version`."""
        run = self._run
        num_batches = min(run.max_staleness + 1, run.num_steps - self._version)
        while len(self._buffer) < num_batches * run.num_prompts:
            self._buffer.admit(Prompt(index=0, row=0, messages=[], ground_truth=[]))
        for slot in self._buffer.start(self._version, max_staleness=run.max_staleness):
            self._members[slot] = [self._member(slot, number) for number in range(run.num_samples)]

    def _member(self, slot: int, number: int, attempt: int = 0) -> Member:
        seconds = self._run.tool_seconds(slot, number, attempt)
        end, work = self._now + seconds, self._run.rollout_seconds
        return Member(slot=slot, number=number, attempt=attempt, tool_seconds=seconds, tool_end=end, work=work)

    def _begin_step(self) -> None:
        if self._training:
            return
        run = self._run
        bound = {"version": self._version, "max_staleness": run.max_staleness}
        groups = self._buffer.take(run.num_prompts, **bound)
        if groups is None and run.resamples:
            for slot in self._buffer.late(run.num_prompts, **bound):
                self._resample(slot)
            groups = self._buffer.take(run.num_prompts, **bound)
        if groups is not None:
            self._training = run.training_seconds
            self._ended.ages.append(self._version - min(group.weight_version for group in groups))

    def _resample(self, slot: int) -> None:
        """Samples stale rollouts again, as `vime.workers.group_run.GroupRun.resample` does."""
        oldest, members = self._version - self._run.max_staleness + 1, self._members[slot]
        if any(member.work > EPSILON and 0 <= member.version < oldest for member in members):
            return
        stale = [member for member in members if 0 <= member.version < oldest]
        self._members[slot] = [self._member(slot, m.number, m.attempt + 1) if m in stale else m for m in members]
        self._ended.num_resampled += len(stale)
        versions = [member.version for member in self._members[slot] if member.version >= 0]
        self._buffer.resampled(slot, version=min([self._version, *versions]))

    def _advance(self) -> None:
        """Advances to the next end: of a tool, of a rollout, or of the step in training."""
        in_tools = [m for members in self._members.values() for m in members if m.version < 0]
        sampling = [m for members in self._members.values() for m in members if m.version >= 0 and m.work > EPSILON]
        served = sampling[: self._run.num_cores] if self._run.oldest_first else sampling
        served = [] if self._training else served
        rate = min(1.0, self._run.num_cores / len(served)) if served else 0.0
        waits = [member.tool_end - self._now for member in in_tools]
        waits += [min(member.work for member in served) / rate] if served else []
        waits += [self._training] if self._training else []
        seconds = max(0.0, min(waits))
        self._now += seconds
        for member in served:
            member.work -= seconds * rate
        for member in in_tools:
            if member.tool_end <= self._now + EPSILON:
                member.version = self._version
        for slot in {member.slot for member in served}:
            self._finish_if_done(slot)
        if self._training:
            self._training -= seconds
            if self._training <= EPSILON:
                self._end_step()

    def _finish_if_done(self, slot: int) -> None:
        members = self._members[slot]
        if all(member.version >= 0 and member.work <= EPSILON for member in members):
            del self._members[slot]
            oldest = min(member.version for member in members)
            self._ended.tool_seconds += [member.tool_seconds for member in members]
            self._buffer.finish(slot, Group(index=slot, prompt=self._buffer[slot].prompt, weight_version=oldest))

    def _end_step(self) -> None:
        self._training = 0.0
        self._ended.step_seconds.append(self._now - self._step_began)
        self._step_began = self._now
        self._version += 1
        self._admit()
