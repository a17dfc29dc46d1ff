"""`Rollout` and `Group`: the executions of an agent on one prompt, and the rewards and logs that hooks return for them."""

from dataclasses import dataclass, field
from typing import Any

from vime.types.identity import member_of
from vime.types.prompt import Prompt
from vime.types.sample import Sample, as_dict
from vime.types.stop_reason import COUNTS, Counting, Status, StopReason


@dataclass(kw_only=True, slots=True)
class Reward:
    """The return value of a reward hook: `score` trains; `metrics` (strict, lenient, …) are averaged and shown, 0 to 1 each.

    Example of a rollout of two turns, the second being better: `Reward(score=0.5, samples=[0.0, 1.0])`.
    """

    score: float
    metrics: dict[str, float] = field(default_factory=dict)
    samples: list[float] | None = None
    """A reward for each sample, in their order, where they differ; `score` is then compared with other rollouts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A span of a rollout's time; `kind` is queue, generation, waiting, tool, sandbox, reward or a method's own.

    Example: `Span(name="actor", kind="generation", start=1712345678.9, seconds=0.8, details={"tokens": 24})`; `start` is in Unix
    seconds.
    """

    name: str
    kind: str
    start: float
    seconds: float
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class Rollout:
    """One execution of the agent on a prompt: its samples, one reward, one stop reason."""

    rollout_id: int
    group_index: int
    samples: list[Sample] = field(default_factory=list)
    unfinished: list[Sample] = field(default_factory=list)
    """Samples of the model until `generate` failed, or an evaluation's item ran out of time: for readers, never trained."""
    reward: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    status: Status = Status.PENDING
    stop_reason: StopReason = StopReason.ABORTED
    error: str = ""
    traceback: str = ""
    """The place where the error arose, if a hook raised it, from the first line of the user's code."""
    num_retries: int = 0
    generation_seconds: float = 0.0
    reward_seconds: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds spent on each kind of span."""
    counts: dict[str, int] = field(default_factory=dict)
    """Counts of events, for example `{"tool_calls": 3, "tool_timeouts": 1}`."""
    spans: list[Span] = field(default_factory=list)
    """The timeline, if this rollout is traced (`logger.trace_share`)."""

    @property
    def member(self) -> int:
        """The rollout's place in the group, from 0."""
        return member_of(self.rollout_id)

    @property
    def counting(self) -> Counting:
        """The consequences of this rollout's stop reason."""
        return COUNTS[self.stop_reason]

    @property
    def could_not_begin(self) -> bool:
        """True if its first request was refused or fills the context. This depends only on the row: a retry would not help."""
        refused = self.stop_reason in (StopReason.TOKEN_LIMIT, StopReason.REQUEST_REFUSED)
        return refused and bool(self.error) and not self.samples and not self.unfinished

    @property
    def oldest_version(self) -> int | None:
        """The weight version of its oldest token that would be trained; None if there is none."""
        samples = [sample for sample in self.samples if not sample.remove_sample] if self.counting.trained else []
        return min((version for sample in samples for version in sample.trained_versions), default=None)

    @property
    def num_response_tokens(self) -> int:
        """Sampled tokens over all samples."""
        return sum(sample.num_trained_tokens for sample in self.samples)

    def to_dict(self) -> dict[str, Any]:
        """A dictionary for `vime.files.serialization` that shares lists and columns; `from_dict` reads it back equal."""
        return {
            **as_dict(self),
            "samples": [sample.to_dict() for sample in self.samples],
            "unfinished": [sample.to_dict() for sample in self.unfinished],
            "spans": [as_dict(span) for span in self.spans],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Rollout":
        """Reads what `to_dict` wrote."""
        return cls(
            **{
                **data,
                "samples": [Sample.from_dict(sample) for sample in data["samples"]],
                "unfinished": [Sample.from_dict(sample) for sample in data.get("unfinished", ())],
                "status": Status(data["status"]),
                "stop_reason": StopReason(data["stop_reason"]),
                "spans": [Span(**span) for span in data["spans"]],
            }
        )


@dataclass(kw_only=True, slots=True)
class Group:
    """The rollouts of one prompt. `weight_version` is the servers' version when its generation began."""

    index: int = -1
    """The number of the group in the run: the `group_index` of its rollouts and samples, set by the code that runs the group."""
    prompt: Prompt
    rollouts: list[Rollout] = field(default_factory=list)
    weight_version: int = 0

    @property
    def oldest_version(self) -> int:
        """The weight version of its oldest token that would be trained; `weight_version` if there is none."""
        versions = [rollout.oldest_version for rollout in self.rollouts]
        return min((version for version in versions if version is not None), default=self.weight_version)

    def to_dict(self) -> dict[str, Any]:
        """A dictionary for `vime.files.serialization` that shares lists and columns; `from_dict` reads it back equal."""
        return {
            "index": self.index,
            "prompt": as_dict(self.prompt),
            "rollouts": [rollout.to_dict() for rollout in self.rollouts],
            "weight_version": self.weight_version,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Group":
        """Reads what `to_dict` wrote."""
        return cls(
            index=data.get("index", -1),
            prompt=Prompt(**data["prompt"]),
            rollouts=[Rollout.from_dict(rollout) for rollout in data["rollouts"]],
            weight_version=data["weight_version"],
        )


@dataclass(kw_only=True, slots=True)
class EvalLog:
    """The return value of `eval_log`: metrics by name, and figures as {name: {"x": […], "series": {label: […]}}}."""

    metrics: dict[str, float] = field(default_factory=dict)
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
