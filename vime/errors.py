"""The errors that vime raises on purpose, each saying what to do about it.

`ConfigError` is what a user can fix before anything starts; it carries every problem found, not the first.
The others end a run that cannot go on honestly.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One thing wrong with a configuration.

    Example: `Problem(key="rollout.num_prompts", value=0, remedy="use at least 1")`.
    """

    key: str
    value: object
    remedy: str
    """The problem in one clause, then what to do: `must divide model.num_layers=28: use 2`."""

    @property
    def setting(self) -> str:
        """The setting as a command line has it: `resume=true`, or for a flag `--help lr`."""
        if self.key.startswith("-") or not self.key:
            return f"{self.key} {written(self.value)}".strip()
        return f"{self.key}={written(self.value)}"

    def __str__(self) -> str:
        return f"{self.setting}: {self.remedy}"


def written(value: object) -> str:
    """A value as a command line has it. Examples: `true`, `null`, `[a,b]`, `{topk:5}`."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(written(entry) for entry in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{written(entry)}' for key, entry in value.items())}}}"
    return str(value)


class VimeError(Exception):
    """Base class of the errors below. All stay picklable, because they cross Ray's process boundaries."""


def describe(error: BaseException) -> str:
    """Class and text of an error; its repr may show the headers of a request, and with them a key."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


class ConfigError(VimeError, ValueError):
    """The configuration is invalid; `problems` holds everything that is wrong with it."""

    def __init__(self, problems: list[Problem]):
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class SampleError(VimeError, ValueError):
    """A sample breaks its contract (lengths, missing logprobs, empty prompt); names the rollout."""


class BadRequestError(VimeError, ValueError):
    """A model cannot answer this request (an unknown parameter, an empty prompt); a retry would not help."""


class ContextFullError(BadRequestError):
    """A prompt leaves no room in its model's context for the reply that is asked for.

    If it is the agent's own model, the rollout ends as `token_limit`.
    """

    def __init__(self, text: str, model: str = "") -> None:
        """`model` is the model's name."""
        super().__init__(text, model)
        self.model = model

    def __str__(self) -> str:
        return self.args[0]


class MalformedError(VimeError, ValueError):
    """The agent failed because a reply did not have the form that it had requested; the rollout ends with reward 0."""


class ToolLimitError(VimeError, RuntimeError):
    """The agent has used up its tool calls; the rollout ends as `turn_limit` and keeps everything that was sampled."""


class ServerError(VimeError, RuntimeError):
    """A server could not be started, reached or brought back within its time limit."""


class SandboxError(VimeError, RuntimeError):
    """A sandbox could not be started or was lost: the infrastructure's fault, so the rollout is run again."""


class RewardServiceError(VimeError, RuntimeError):
    """A reward service gave no reward for a rollout: the infrastructure's fault."""


class RewardServiceTimeout(RewardServiceError):
    """A reward service was too slow."""


class WeightSyncError(VimeError, RuntimeError):
    """Servers do not hold the trainer's weights: the digest or the probe disagreed."""


class InfrastructureError(VimeError, RuntimeError):
    """Too large a share of rollouts failed for reasons that are not the agent's."""

    def __init__(self, text: str, *, groups: Sequence[Any] = ()) -> None:
        """`groups` are some in which a rollout failed (`vime.types.Group`), for the run folder."""
        super().__init__(text)
        self.groups = list(groups)


class RepeatabilityError(VimeError, RuntimeError):
    """With `deterministic=true`, a result depended on timing or on a fault, so that another run might differ."""


class TrainingError(VimeError, RuntimeError):
    """The optimizer step produced a number that must not be trained on (NaN, infinity)."""


class RankLostError(TrainingError):
    """A rank of the trainer has died: nothing can be trained any more, whatever policy it is of."""


class HookError(VimeError, RuntimeError):
    """A user's function failed outside of any rollout, which ends the run; names the function and the line."""


class CheckpointError(VimeError, RuntimeError):
    """A checkpoint is missing, incomplete or of another run."""


class AdapterError(VimeError, RuntimeError):
    """Some of several adapters stopped before their last step, each for a reason of its own, and the others went on to theirs."""


OF_A_POLICY = (ConfigError, HookError, InfrastructureError, RepeatabilityError, SampleError, TrainingError)
"""Errors of one policy's data, agent, reward or objective, which end its training; a `RankLostError` is all policies'."""
