"""Hooks: users' functions by dotted path, their protocols, and the check of their signatures before anything starts.

A path is `module.attribute`, or `path/to/file.py:attribute` for a file outside any package.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from vime.config import AlgorithmConfig, RolloutConfig, RunConfig
from vime.errors import Problem
from vime.types import EvalLog, Group, Prompt, Reward, Sample, TrainSample


class Generate(Protocol):
    """One rollout of the agent; returns its trainable sequences."""

    async def __call__(self, context: Any, sample: Sample, sampling: Any) -> Sample | list[Sample]: ...


class RewardFunction(Protocol):
    """Scores one rollout from its samples."""

    async def __call__(self, context: Any, samples: list[Sample]) -> float | Reward: ...


class GroupReward(Protocol):
    """Scores the rollouts of a group together; one reward per rollout, in the group's order."""

    async def __call__(self, context: Any, group: Group) -> list[Reward]: ...


class EvalLogFunction(Protocol):
    """Metrics and figures of one finished evaluation."""

    def __call__(self, context: Any, results: list[dict[str, Any]]) -> EvalLog: ...


class RolloutFunction(Protocol):
    """Replaces the orchestration of one group."""

    async def __call__(self, context: Any, prompt: Prompt, num_rollouts: int) -> Group: ...


class GroupFilter(Protocol):
    """True keeps the group, False draws another prompt."""

    def __call__(self, config: RolloutConfig, group: Group) -> bool: ...


class Advantage(Protocol):
    """Advantage of every trained rollout by `rollout_id`, or a list with one for each of its samples."""

    def __call__(self, config: AlgorithmConfig, groups: list[Group]) -> Mapping[int, float | list[float]]: ...


class PolicyLoss(Protocol):
    """Loss per token; tensors are flat over the response tokens of a micro-batch, `sequences` numbers what they belong to."""

    def __call__(
        self, config: AlgorithmConfig, logprobs: Any, old_logprobs: Any, advantages: Any, mask: Any, sequences: Any
    ) -> Any: ...


class PromptSource(Protocol):
    """An endless stream of prompts that can say and restore its position."""

    def __call__(self, config: RunConfig) -> Any: ...


class Demonstrations(Protocol):
    """Supervised sequences for one optimizer step, about `num_tokens` tokens in all."""

    def __call__(self, tokenizer: Any, step: int, num_steps: int, num_tokens: int, seed: int) -> list[TrainSample]: ...


HOOKS: dict[str, type] = {
    "method.generate": Generate,
    "method.reward": RewardFunction,
    "method.group_reward": GroupReward,
    "method.eval_log": EvalLogFunction,
    "method.single_turn": Generate,
    "rollout.function": RolloutFunction,
    "rollout.filter": GroupFilter,
    "data.source": PromptSource,
    "data.demonstrations": Demonstrations,
    "algorithm.advantage": Advantage,
    "algorithm.loss": PolicyLoss,
}
"""Configuration key of every hook, and its protocol."""


def load_hook(path: str) -> Callable[..., Any]:
    """The object at a dotted path or at `file.py:name`.

    Raises ImportError with the reason in one line, whatever the user's module raised.
    """
    try:
        return _find(path)
    except (Exception, SystemExit) as error:  # a script without `if __name__ == "__main__"` may exit
        raise ImportError(" ".join(f"{type(error).__name__}: {error}".split())) from error


def _find(path: str) -> Callable[..., Any]:
    if ":" in path:
        file, _, name = path.rpartition(":")
        return getattr(_load_file(Path(file).resolve()), name)
    module, _, name = path.rpartition(".")
    if not module:
        raise ImportError(f"{path!r} is not a dotted path (module.function) nor file.py:function")
    return getattr(importlib.import_module(module), name)


def _load_file(file: Path) -> Any:
    name = f"vime_hook_{file.stem}_{abs(hash(str(file)))}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.exists():
        raise ImportError(f"no Python file {file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:  # raised again: a module that was read halfway must not be found there
        del sys.modules[name]
        raise
    return module


def check_hook(key: str, path: str) -> list[Problem]:
    """Problems of one hook: it cannot be imported, is not callable, is not async where it must be, or takes other arguments."""
    protocol = HOOKS[key].__call__
    try:
        hook = load_hook(path)
    except ImportError as error:
        return [Problem(key=key, value=path, remedy=f"cannot be imported ({error}); give module.function or file.py:function")]
    if not callable(hook):
        return [Problem(key=key, value=path, remedy=f"is a {type(hook).__name__}, not a function")]
    parameters = list(inspect.signature(protocol).parameters)[1:]
    wanted = f"{'async ' if inspect.iscoroutinefunction(protocol) else ''}def {path.rpartition('.')[2]}({', '.join(parameters)})"
    if inspect.iscoroutinefunction(protocol) and not inspect.iscoroutinefunction(hook):
        return [Problem(key=key, value=path, remedy=f"must be async: {wanted}")]
    try:
        inspect.signature(hook).bind(*parameters)
    except (TypeError, ValueError) as error:
        return [Problem(key=key, value=path, remedy=f"has the wrong signature ({error}); wanted: {wanted}")]
    return []
