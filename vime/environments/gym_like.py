"""Environments with `reset` and `step` on text: Gymnasium, GEM, skyrl-gym, ScienceWorld, TextWorld, and your own.

    +method=environment method.environment=gym_like 'method.settings={make: mine.py:make}'

`make()` returns an environment. `reset` gives an observation, or an observation and a dictionary; `step(action)` gives 5 values
(observation, reward, terminated, truncated, info), 4 (observation, reward, done, info), or skyrl-gym's dictionary. Rewards of
steps are summed. A text is shown as it is, messages too, anything else as JSON or `str` has it.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any

import orjson

from vime.data.split import Split
from vime.environments.environment import IllegalMove, Observation, Outcome, Reply, Row, found_hook, in_split, rows_of
from vime.errors import ConfigError, Problem
from vime.types import StopReason


class GymLike:
    """Environments of one maker, for example `GymLike(make="gymnasium.make", arguments={"id": "Taxi-v3"}, action=r"\\d+")`."""

    seats = ("agent",)

    def __init__(
        self,
        *,
        make: str,
        arguments: Mapping[str, Any] | None = None,
        rows: str | None = None,
        instruction: str = "",
        action: str | None = None,
        text: bool = False,
        observation: str | None = None,
        success: str | None = None,
    ) -> None:
        """`make` is a dotted path; it is called with `arguments`, and with the row if it has a parameter `row`.

        Rows are seeds, or those of `rows(num_items, seed)`, a dotted path; the `init` of skyrl-gym is given a row's `prompt`.
        `action` is a regular expression whose last match in a reply, or its group, is the action; a reply without one is an
        illegal move. By default all of the reply is the action. `instruction` begins the conversation. `text` makes it a plain
        text, a line for each action, which base models continue. `observation` is an entry of observations that are
        dictionaries; `success` one of the last `info`, which becomes a metric. Raises ConfigError for a maker that there is not.
        """
        self.make, self._rows = found_hook("make", make), None if rows is None else found_hook("rows", rows)
        try:
            self.action = re.compile(action, re.DOTALL) if action else None
        except re.error as error:
            remedy = f"is no regular expression ({error}): correct it"
            raise ConfigError([Problem(key="method.settings.action", value=action, remedy=remedy)]) from error
        self.name, self.arguments, self.instruction = make, dict(arguments or {}), instruction
        self.text, self.observation, self.success = text, observation, success

    def rows(self, *, split: Split, num_items: int, seed: int) -> Iterable[Row]:
        """The rows of `rows`, or seeds; `reset` is given that of the row if it takes one."""
        if self._rows is not None:
            return rows_of(self._rows, split=split, num_items=num_items, seed=seed)
        candidates = ({"key": f"{self.name}, seed {number}", "seed": number} for number in count(seed * 2**20))
        return in_split(candidates, split=split, num_items=num_items)

    def open(self, row: Row) -> "Steps":
        """An environment that was reset."""
        own = {"row": row} if "row" in _parameters(self.make) else {}
        env = self.make(**self.arguments, **own)
        try:
            return Steps(self, env, row)
        except BaseException:  # raised again: what was made is closed in any case
            _close(env)
            raise


class Steps:
    """An episode of resets and steps."""

    def __init__(self, made: GymLike, env: Any, row: Row) -> None:
        self._made, self._env = made, env
        self._is_over = self._is_truncated = False
        self._info: Mapping[str, Any] = {}
        if hasattr(env, "init") and not hasattr(env, "reset"):  # skyrl-gym
            first = env.init(row.get("prompt") or [])
        else:
            first = env.reset(seed=row["seed"]) if "seed" in row and _takes_seed(env.reset) else env.reset()
        is_pair = isinstance(first, tuple) and len(first) == 2 and isinstance(first[1], Mapping)
        self._seen = first[0] if is_pair else first
        self._is_first = True

    def observe(self) -> Observation | None:
        """The observation of the last step."""
        if self._is_over:
            return None
        seen, is_first, self._is_first = self._seen, self._is_first, False
        if isinstance(seen, Mapping) and self._made.observation is not None:
            seen = seen[self._made.observation]
        if isinstance(seen, list) and seen and all(isinstance(each, dict) and "role" in each for each in seen):
            return Observation(content=[*self._instruction(is_first), *seen])
        shown = seen if isinstance(seen, str) else _written(seen)
        if self._made.text:
            before = f"{self._made.instruction}\n" if is_first and self._made.instruction else "" if is_first else "\n"
            return Observation(content=f"{before}{shown}\nAction:", stop=("\n",))
        return Observation(content=[*self._instruction(is_first), {"role": "user", "content": shown}])

    def act(self, reply: Reply) -> float:
        """One step with the action that the reply names."""
        result = self._env.step(self._action(reply.text))
        if isinstance(result, Mapping):  # skyrl-gym
            self._seen, reward, self._is_over = result["observations"], result["reward"], bool(result["done"])
            self._info = result.get("metadata") or {}
        elif len(result) == 5:
            self._seen, reward, terminated, truncated, self._info = result
            self._is_over, self._is_truncated = bool(terminated or truncated), bool(truncated and not terminated)
        else:
            self._seen, reward, done, self._info = result
            self._is_over = bool(done)
        return float(reward or 0.0)

    def outcome(self) -> Outcome:
        """The sum of the rewards of all steps."""
        metrics = {} if self._made.success is None else {self._made.success: float(self._info.get(self._made.success) or 0.0)}
        return Outcome(metrics=metrics, end=StopReason.TURN_LIMIT if self._is_truncated else None)

    def close(self) -> None:
        """Closes the environment, if it can be closed."""
        _close(self._env)

    def _instruction(self, is_first: bool) -> list[dict[str, Any]]:
        return [{"role": "system", "content": self._made.instruction}] if is_first and self._made.instruction else []

    def _action(self, text: str) -> Any:
        """The action in a reply: a text, or the number of one where the environment's actions are numbered."""
        found = text.strip()
        if self._made.action is not None:
            matches = list(self._made.action.finditer(text))
            if not matches:
                raise IllegalMove(f"Your reply has no action of the form {self._made.action.pattern}.")
            found = matches[-1][1] if self._made.action.groups else matches[-1][0]
        number = getattr(getattr(self._env, "action_space", None), "n", None)
        if number is None:
            return found
        if not found.strip().isdecimal() or int(found) >= int(number):
            raise IllegalMove(f"Reply with the number of an action, from 0 to {int(number) - 1}.")
        return int(found)


def _close(env: Any) -> None:
    close = getattr(env, "close", None)
    if close is not None:
        close()


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # built in
        return {}


def _takes_seed(reset: Callable[..., Any]) -> bool:
    parameters = _parameters(reset)
    return "seed" in parameters or any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())


def _written(value: Any) -> str:
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY).decode()
    except TypeError:
        return str(value)
