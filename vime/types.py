"""The data that crosses boundaries: prompts, samples, rollouts, groups, and what each stop reason counts for.

A *prompt* is one row of data. A *group* is the n rollouts of one prompt. A *rollout* is one execution of the agent, with
one reward and one stop reason; it yields one or more *samples*, each a trainable token sequence. Positions in a list
mean nothing: identity is carried by `group_index` and `rollout_id`.
"""

import copy
from collections import Counter
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

import numpy as np

from vime.column import Column
from vime.errors import SampleError

Message = dict[str, Any]
Integers = list[int] | Column[int]
Reals = list[float] | Column[float]
COLUMNS = {"tokens": np.int32, "loss_mask": np.uint8, "rollout_log_probs": np.float32, "weight_versions": np.int32}
"""Fields of a sample with a number for each token, and the type of these numbers once the sample has been accepted."""


class Status(str, Enum):
    """How far a rollout or sample came (the names are slime's)."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


class StopReason(str, Enum):
    """Why a rollout ended. `COUNTS` says for each what follows."""

    ANSWERED = "answered"
    TOKEN_LIMIT = "token_limit"
    TURN_LIMIT = "turn_limit"
    TIME_LIMIT = "time_limit"
    MALFORMED = "malformed"
    SERVER_LOST = "server_lost"
    GENERATE_RAISED = "generate_raised"
    REWARD_RAISED = "reward_raised"
    REWARD_TIMEOUT = "reward_timeout"
    SANDBOX_CRASHED = "sandbox_crashed"
    WORKER_LOST = "worker_lost"
    ABORTED = "aborted"


@dataclass(frozen=True, kw_only=True, slots=True)
class Counting:
    """What one stop reason counts for: is the rollout trained, is it in the baseline, is it tried again."""

    trained: bool
    in_baseline: bool
    retried: bool
    status: Status


_AGENT = {"trained": True, "in_baseline": True, "retried": False}
_INFRASTRUCTURE = {"trained": False, "in_baseline": False, "retried": True}

COUNTS: dict[StopReason, Counting] = {
    StopReason.ANSWERED: Counting(**_AGENT, status=Status.COMPLETED),
    StopReason.TOKEN_LIMIT: Counting(**_AGENT, status=Status.TRUNCATED),
    StopReason.TURN_LIMIT: Counting(**_AGENT, status=Status.TRUNCATED),
    StopReason.TIME_LIMIT: Counting(**_AGENT, status=Status.TRUNCATED),
    StopReason.MALFORMED: Counting(**_AGENT, status=Status.COMPLETED),
    StopReason.SERVER_LOST: Counting(**_INFRASTRUCTURE, status=Status.FAILED),
    StopReason.GENERATE_RAISED: Counting(**_INFRASTRUCTURE, status=Status.FAILED),
    StopReason.REWARD_RAISED: Counting(**_INFRASTRUCTURE, status=Status.FAILED),
    StopReason.REWARD_TIMEOUT: Counting(**_INFRASTRUCTURE, status=Status.FAILED),
    StopReason.SANDBOX_CRASHED: Counting(**_INFRASTRUCTURE, status=Status.FAILED),
    StopReason.WORKER_LOST: Counting(**_INFRASTRUCTURE, status=Status.FAILED),
    StopReason.ABORTED: Counting(trained=False, in_baseline=False, retried=True, status=Status.ABORTED),
}
"""What the agent did stays, with the reward it earned; what the infrastructure did is retried, then leaves the group."""


def as_dict(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, not copied: a copy of every token costs more than all else that is done with it."""
    return {item.name: getattr(instance, item.name) for item in fields(instance)}


@dataclass(kw_only=True, slots=True)
class Prompt:
    """One row of data.

    Example: `Prompt(index=7, messages=[{"role": "user", "content": "2+2?"}], ground_truth=["4"], metadata={"context": …})`.
    `index` is the position in the epoch-ordered stream, so it never repeats within a run; `row` is the row's number.
    """

    index: int
    row: int
    messages: list[Message]
    ground_truth: list[str]
    metadata: dict[str, Any] = field(default_factory=dict)
    dataset: str = "train"


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One model call: sampled ids are the truth, text is derived.

    Example: `Turn(prompt_ids=[1, 5], output_ids=[9, 2], logprobs=[-0.1, -0.7], weight_versions=[3, 3], finish_reason="stop",
    message={"role": "assistant", "content": "hi"})`; logprobs are natural logarithms under the sampling temperature.
    """

    prompt_ids: list[int]
    output_ids: list[int]
    logprobs: list[float]
    weight_versions: list[int]
    finish_reason: str
    message: Message
    usage: tuple[int, int] | None = None
    """Tokens read and written, as an endpoint counted them whose ids are not seen; None where ids are."""
    seconds: float = 0.0
    """From the request that was answered to its last token: without waiting for a sync, and without servers that were lost or
    attempts that failed before. A turn that is not sampled again has the seconds of when it was."""

    @property
    def text(self) -> str:
        """The reply's text without special tokens."""
        return self.message["content"]


@dataclass(kw_only=True, slots=True)
class Sample:
    """One trainable token sequence (field names are slime's).

    Example of a prompt P of two tokens, a sampled answer A of three and a tool result E of two, then a sampled B of one:

        tokens            P0 P1 A0 A1 A2 E0 E1 B0
        response_length         6
        loss_mask               1  1  1  0  0  1
        rollout_log_probs       a  a  a  0  0  b
        weight_versions         4  4  4  4  4  5

    `generate` fills these with lists. In a sample that has been accepted they are columns: read-only, and otherwise as lists.
    """

    prompt: str | list[Message] = field(default_factory=list)
    label: list[str] = field(default_factory=list)
    tokens: Integers = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    loss_mask: Integers = field(default_factory=list)
    rollout_log_probs: Reals = field(default_factory=list)
    weight_versions: Integers = field(default_factory=list)
    reward: float | None = None
    status: Status = Status.PENDING
    stop_reason: StopReason | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    group_index: int = -1
    index: int = -1
    rollout_id: int = -1
    session_id: str = ""
    remove_sample: bool = False

    def with_turn(self, turn: Turn, /, **metadata: Any) -> "Sample":
        """A new sample of this rollout that holds one turn: its prompt untrained, its sampled tokens trained.

        `metadata` replaces the template's (a document need not travel with each of its turns).
        """
        sample = copy.copy(self)
        sample.tokens = [*turn.prompt_ids, *turn.output_ids]
        sample.response = turn.text
        sample.response_length = len(turn.output_ids)
        sample.loss_mask = [1] * len(turn.output_ids)
        sample.rollout_log_probs = list(turn.logprobs)
        sample.weight_versions = list(turn.weight_versions)
        sample.prompt, sample.metadata = [], metadata
        return sample

    @property
    def num_trained_tokens(self) -> int:
        """Response tokens in the loss mask."""
        return int(np.count_nonzero(np.asarray(self.loss_mask)))

    @property
    def versions(self) -> set[int]:
        """Weight versions of its response tokens, trained or not."""
        return set(_counts(np.asarray(self.weight_versions)))

    @property
    def trained_versions(self) -> dict[int, int]:
        """How many of its trained tokens are of each weight version, by version."""
        versions, mask = np.asarray(self.weight_versions), np.asarray(self.loss_mask, dtype=bool)
        return _counts(versions if mask.all() else versions[mask])

    def to_columns(self) -> None:
        """Keeps the numbers of each token as columns from now on. Raises `SampleError` for what is no such number."""
        for name, dtype in COLUMNS.items():
            try:
                setattr(self, name, Column(getattr(self, name), dtype))
            except (TypeError, ValueError, OverflowError) as error:
                raise SampleError(f"{self._where()}: {name}: {error}") from error

    def validate(self) -> None:
        """Raises `SampleError`, naming the rollout, if lengths disagree, the prompt is empty or a logprob is missing."""
        length = self.response_length
        for name in ("loss_mask", "rollout_log_probs", "weight_versions"):
            if len(getattr(self, name)) != length:
                raise SampleError(f"{self._where()}: {name} has {len(getattr(self, name))} entries for {length} response tokens")
        if len(self.tokens) <= length:
            raise SampleError(f"{self._where()}: the prompt is empty ({len(self.tokens)} tokens, {length} of them response)")
        mask, logprobs = np.asarray(self.loss_mask), np.asarray(self.rollout_log_probs, dtype=np.float64)
        if (neither := (mask != 0) & (mask != 1)).any():
            position = int(neither.argmax())
            raise SampleError(f"{self._where()}: loss_mask is {mask[position]} at response token {position}, not 0 or 1")
        if (missing := (mask == 1) & ~np.isfinite(logprobs)).any():
            position = int(missing.argmax())
            raise SampleError(f"{self._where()}: logprob {logprobs[position]} at trainable response token {position}")

    def _where(self) -> str:
        return f"rollout {self.rollout_id} of group {self.group_index}"

    def to_dict(self) -> dict[str, Any]:
        """A dictionary for `vime.files.serialization` that shares lists and columns; `from_dict` reads it back equal."""
        return as_dict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Sample":
        """Reads what `to_dict` wrote, with lists or the text of columns; an unknown key is an error, not an attribute."""
        unknown = set(data) - {f.name for f in fields(cls)}
        if unknown:
            raise SampleError(f"unknown sample fields {sorted(unknown)}")
        stop_reason = data.get("stop_reason")
        columns = {name: Column.read(data[name], dtype) for name, dtype in COLUMNS.items() if name in data}
        return cls(
            **{
                **data,
                **columns,
                "status": Status(data.get("status", "pending")),
                "stop_reason": StopReason(stop_reason) if stop_reason else None,
            }
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Sampling parameters of the trained model; they are the trainer's, not the agent's."""

    temperature: float
    top_p: float


@dataclass(kw_only=True, slots=True)
class Reward:
    """What a reward hook returns: `score` trains; `metrics` (strict, lenient, …) are averaged and shown, 0 to 1 each.

    Example of a rollout of two turns, of which the second was better: `Reward(score=0.5, samples=[0.0, 1.0])`.
    """

    score: float
    metrics: dict[str, float] = field(default_factory=dict)
    samples: list[float] | None = None
    """A reward for each sample, in their order, where they differ; `score` is then what is compared with other rollouts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A piece of a rollout's time; `kind` is queue, generation, waiting, tool, sandbox, reward or a method's own.

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
    reward: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    status: Status = Status.PENDING
    stop_reason: StopReason = StopReason.ABORTED
    error: str = ""
    num_retries: int = 0
    generation_seconds: float = 0.0
    reward_seconds: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    """Time by the kind of its spans."""
    counts: dict[str, int] = field(default_factory=dict)
    """What happened on the way, for example `{"tool_calls": 3, "tool_timeouts": 1}`."""
    spans: list[Span] = field(default_factory=list)
    """Its timeline, if it is traced (`logger.trace_share`)."""

    @property
    def counting(self) -> Counting:
        """What this rollout's stop reason counts for."""
        return COUNTS[self.stop_reason]

    @property
    def num_response_tokens(self) -> int:
        """Sampled tokens over all samples."""
        return sum(sample.num_trained_tokens for sample in self.samples)

    def to_dict(self) -> dict[str, Any]:
        """A dictionary for `vime.files.serialization` that shares lists and columns; `from_dict` reads it back equal."""
        return {
            **as_dict(self),
            "samples": [sample.to_dict() for sample in self.samples],
            "spans": [as_dict(span) for span in self.spans],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Rollout":
        """Reads what `to_dict` wrote."""
        return cls(
            **{
                **data,
                "samples": [Sample.from_dict(sample) for sample in data["samples"]],
                "status": Status(data["status"]),
                "stop_reason": StopReason(data["stop_reason"]),
                "spans": [Span(**span) for span in data["spans"]],
            }
        )


@dataclass(kw_only=True, slots=True)
class Group:
    """The rollouts of one prompt. `weight_version` is the servers' version when its generation began."""

    prompt: Prompt
    rollouts: list[Rollout] = field(default_factory=list)
    weight_version: int = 0

    @property
    def oldest_version(self) -> int:
        """The weight version of its oldest token that would be trained; `weight_version` if there is none."""
        samples = [s for rollout in self.rollouts if rollout.counting.trained for s in rollout.samples if not s.remove_sample]
        return min((version for sample in samples for version in sample.trained_versions), default=self.weight_version)

    def to_dict(self) -> dict[str, Any]:
        """A dictionary for `vime.files.serialization` that shares lists and columns; `from_dict` reads it back equal."""
        return {
            "prompt": as_dict(self.prompt),
            "rollouts": [rollout.to_dict() for rollout in self.rollouts],
            "weight_version": self.weight_version,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Group":
        """Reads what `to_dict` wrote."""
        return cls(
            prompt=Prompt(**data["prompt"]),
            rollouts=[Rollout.from_dict(rollout) for rollout in data["rollouts"]],
            weight_version=data["weight_version"],
        )


@dataclass(kw_only=True, slots=True)
class TrainSample:
    """One sequence as the trainer takes it: identity is gone, its weight in the loss is fixed.

    The loss of an update is the sum over its samples and response tokens t of `token_weight * loss_mask[t] * loss[t]`, so
    packing, sharding and the order of samples cannot change it.
    Example: `TrainSample(tokens=[1, 5, 9, 2], loss_mask=[1, 1], rollout_log_probs=[-0.1, -0.7], advantage=0.5,
    token_weight=0.25)` holds two prompt and two response tokens.
    """

    tokens: Integers
    loss_mask: Integers
    rollout_log_probs: Reals
    advantage: float
    token_weight: float
    weight_versions: Integers = field(default_factory=list)
    """Of each response token; empty if all are of the current weights."""
    version: int = 0
    """Of the weights in training: a token's staleness is this less its own."""

    @property
    def response_length(self) -> int:
        """Number of tokens after the prompt."""
        return len(self.loss_mask)


@dataclass(kw_only=True, slots=True)
class EvalLog:
    """What `eval_log` returns: metrics by name, and figures as {name: {"x": […], "series": {label: […]}}}."""

    metrics: dict[str, float] = field(default_factory=dict)
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)


def _counts(versions: np.ndarray) -> Counter[int]:
    """How often each version occurs, in one pass if there is only one, as there is nearly always."""
    if not versions.size:
        return Counter()
    first, last = int(versions.min()), int(versions.max())
    if first == last:
        return Counter({first: versions.size})
    found, counts = np.unique(versions, return_counts=True)
    return Counter(dict(zip(found.tolist(), counts.tolist())))
