"""Hooks: users' functions by dotted path, their protocols, and the check of their signatures before anything starts.

A path is `module.attribute`, or `path/to/file.py:attribute` for a file outside any package.
"""

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from vime.config import AlgorithmConfig, RolloutConfig, RunConfig
from vime.errors import HookError, Problem, VimeError
from vime.types import EvalLog, Group, Prompt, Reward, Sample


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


class GroupFunction(Protocol):
    """Replaces the code that runs the rollouts of one group; the producer still decides which groups run, and when."""

    async def __call__(self, context: Any, prompt: Prompt, num_rollouts: int) -> Group: ...


class RunGroup(Protocol):
    """The runner of a producer's groups (`vime.orchestration.own_producer.GroupRunner`)."""

    version: int
    """The weight version that the servers hold."""

    async def run_group(self, prompt: Prompt, *, num_rollouts: int | None = None) -> Group: ...


class RolloutProducer(Protocol):
    """Replaces the whole orchestration: which prompts run when, how asynchronously, and which groups make a batch.

    Only `batch` is needed. It returns `rollout.num_prompts` groups for the step that trains weight `version`; their tokens are at
    most `rollout.max_staleness` versions older. Groups come from `runner.run_group`, or are made by hand. `state` and `load`
    carry over the state that a resumed run needs; the prompt source remembers its position by itself. `stop` ends everything that
    still runs.
    """

    async def batch(self, version: int) -> list[Group]: ...
    def state(self) -> dict[str, Any]: ...
    def load(self, state: dict[str, Any]) -> None: ...
    async def stop(self) -> None: ...


class ProducerClass(Protocol):
    """The class of a `RolloutProducer`; an instance is created at each start of the run, once the servers hold the weights."""

    def __call__(self, config: RunConfig, source: Any, runner: RunGroup) -> RolloutProducer: ...


class GroupFilter(Protocol):
    """True keeps the group, False draws another prompt."""

    def __call__(self, config: RolloutConfig, group: Group) -> bool: ...


class Advantage(Protocol):
    """Advantage of every trained rollout by `rollout_id`, or a list with one for each of its samples."""

    def __call__(self, config: AlgorithmConfig, groups: list[Group]) -> Mapping[int, float | list[float]]: ...


class PolicyLoss(Protocol):
    """Loss per token; tensors are flat over the response tokens of a micro-batch, `sequences` numbers each token's sequence."""

    def __call__(
        self, config: AlgorithmConfig, logprobs: Any, old_logprobs: Any, advantages: Any, mask: Any, sequences: Any
    ) -> Any: ...


class PromptSource(Protocol):
    """An endless stream of prompts that can save and restore its position.

    If it has `prompts()`, which yields all prompts it draws from, a run that is evaluated on one of them is refused. If it has
    `seen(group)`, it is given each finished group, also one that `rollout.filter` leaves out; `metrics()` are those of a step.
    """

    def __call__(self, config: RunConfig) -> Any: ...


class Demonstrations(Protocol):
    """Supervised sequences for one optimizer step, about `num_tokens` tokens in all."""

    def __call__(self, tokenizer: Any, step: int, num_steps: int, num_tokens: int, seed: int) -> list[Sample]: ...


HOOKS: dict[str, type] = {
    "method.generate": Generate,
    "method.reward": RewardFunction,
    "method.group_reward": GroupReward,
    "method.eval_log": EvalLogFunction,
    "method.single_turn": Generate,
    "rollout.producer": ProducerClass,
    "rollout.group_function": GroupFunction,
    "rollout.filter": GroupFilter,
    "data.source": PromptSource,
    "data.demonstrations": Demonstrations,
    "algorithm.advantage": Advantage,
    "algorithm.loss": PolicyLoss,
}
"""Configuration key of every hook, and its protocol."""
INSTANCES: dict[str, type] = {"rollout.producer": RolloutProducer}
"""Hooks that are classes, and the protocol of their instances."""
NEEDED = ("batch",)
"""Methods of this protocol that are required; the others may be left out."""


def load_hook(path: str) -> Callable[..., Any]:
    """The object at a dotted path or at `file.py:name`.

    Raises ImportError with the reason in one line, for any error of the user's module.
    """
    try:
        return _find(path)
    except (Exception, SystemExit) as error:  # a script without `if __name__ == "__main__"` may exit
        raise ImportError(" ".join(f"{type(error).__name__}: {error}".split())) from error


def load_named(key: str, path: str) -> Callable[..., Any]:
    """The function at a path, wrapped so that any error it raises becomes a `HookError` with key, path and place."""
    hook = load_hook(path)

    def named(*arguments: Any, **keywords: Any) -> Any:
        with naming(key, path):
            return hook(*arguments, **keywords)

    return named


class Named:
    """A user's object: any error that one of its methods raises becomes a `HookError` with key, path and place."""

    def __init__(self, key: str, path: str, own: Any) -> None:
        self._key, self._path, self._own = key, path, own

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._own, name)
        if not callable(found):
            return found

        def named(*arguments: Any, **keywords: Any) -> Any:
            with naming(self._key, self._path):
                return found(*arguments, **keywords)

        return named


@contextmanager
def naming(key: str, path: str) -> Iterator[None]:
    """Wraps the call of a user's function: any error that it raises becomes a `HookError` that names the function."""
    try:
        yield
    except VimeError:  # says what to do itself
        raise
    except Exception as error:  # the boundary of a user's function, which ends the run with its name
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
        where = "".join(traceback.format_list(frames)).rstrip()
        raise HookError(f"{key}={path} raised {type(error).__name__}: {error}\n{where}") from error


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


def import_remedy(path: str, error: ImportError) -> str:
    """Advice on the path to write instead of one whose function cannot be imported; it names the folder of relative paths."""
    module, _, name = path.rpartition(".")
    example = f", like {module.replace('.', '/')}.py:{name}" if module.isidentifier() and ":" not in path else ""
    return f"cannot be imported ({error}): use module.function, or file.py:function with a path from {Path.cwd()}{example}"


def check_hook(key: str, path: str) -> list[Problem]:
    """Problems of one hook: it cannot be imported, is not callable, is not async where it must be, or takes other arguments."""
    protocol = HOOKS[key].__call__
    try:
        hook = load_hook(path)
    except ImportError as error:
        return [Problem(key=key, value=path, remedy=import_remedy(path, error))]
    if not callable(hook):
        return [Problem(key=key, value=path, remedy=f"is a {type(hook).__name__}, not a function")]
    parameters = list(inspect.signature(protocol).parameters)[1:]
    wanted = f"{'async ' if inspect.iscoroutinefunction(protocol) else ''}def {path.rpartition('.')[2]}({', '.join(parameters)})"
    if inspect.iscoroutinefunction(protocol) and not inspect.iscoroutinefunction(hook):
        return [Problem(key=key, value=path, remedy=f"must be async: {wanted}")]
    if inspect.iscoroutinefunction(hook) and not inspect.iscoroutinefunction(protocol):
        return [Problem(key=key, value=path, remedy=f"must not be async: {wanted}")]
    try:
        inspect.signature(hook).bind(*parameters)
    except (TypeError, ValueError) as error:
        return [Problem(key=key, value=path, remedy=f"has the wrong signature ({error}): define it as {wanted}")]
    return _class_problems(key, path, hook) if key in INSTANCES else []


def _class_problems(key: str, path: str, hook: Any) -> list[Problem]:
    """Methods that a class lacks, or whose signatures differ from its protocol."""
    if not inspect.isclass(hook):
        return [Problem(key=key, value=path, remedy=f"is a function, not a class with {' and '.join(NEEDED)}")]
    problems = []
    for name, wanted in inspect.getmembers(INSTANCES[key], inspect.isfunction):
        method = getattr(hook, name, None)
        if name.startswith("_") or (method is None and name not in NEEDED):
            continue
        parameters = ["self", *list(inspect.signature(wanted).parameters)[1:]]
        is_async = inspect.iscoroutinefunction(wanted)
        definition = f"{'async ' if is_async else ''}def {name}({', '.join(parameters)})"
        try:
            fits = callable(method) and inspect.iscoroutinefunction(method) == is_async
            inspect.signature(method).bind(*parameters) if callable(method) else None
        except (TypeError, ValueError):
            fits = False
        if not fits:
            problems.append(Problem(key=key, value=path, remedy=f"its class needs: {definition}"))
    if hasattr(hook, "state") != hasattr(hook, "load"):
        problems.append(Problem(key=key, value=path, remedy="its class has one of state and load: define both or neither"))
    return problems
