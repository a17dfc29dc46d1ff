"""The contract of an environment, and the place where one is found by its name.

    class Guess:                                                        # method.environment=guess.py:Guess
        seats = ("agent",)

        def rows(self, *, split, num_items, seed):
            return in_split(({"key": f"game {n}", "number": n % 100} for n in count(seed)), split=split, num_items=num_items)

        def open(self, row):
            return Game(row["number"])

    class Game:
        def __init__(self, number):
            self.number, self.said, self.won = number, "Guess my number, from 0 to 99.", False

        def observe(self):
            return None if self.won else Observation(content=[{"role": "user", "content": self.said}])

        def act(self, reply):
            if not reply.text.strip().isdigit():
                raise IllegalMove("Say a number.")
            guess = int(reply.text)
            self.won, self.said = guess == self.number, "higher" if guess < self.number else "lower"

        def outcome(self):
            return Outcome(rewards=float(self.won))

Every method may be async. Those that are not run in a thread of the episode, one after another.
"""

import functools
import itertools
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from vime.data.split import EVALUATION_SHARE, Split, split_of
from vime.errors import ConfigError, Problem, describe
from vime.hooks import import_remedy, load_hook
from vime.types import Message, StopReason

Row = dict[str, Any]
"""A row of data: JSON. With `question` or `prompt` it has a question, otherwise `key` identifies it."""
AGENT = "agent"
"""The seat of an environment that has only one."""
ADAPTERS = {
    "reasoning_gym": "vime.environments.reasoning_gym.ReasoningGym",
    "textarena": "vime.environments.textarena.TextArena",
    "gym_like": "vime.environments.gym_like.GymLike",
    "openenv": "vime.environments.openenv.OpenEnv",
    "mcp": "vime.environments.mcp.McpTools",
    "bridge": "vime.environments.bridge.Bridge",
    "verifiers": "vime.environments.bridge.verifiers",
    "inspect": "vime.environments.bridge.inspect_ai",
    "miniwob": "vime.environments.bridge.miniwob",
}
"""Environments of other packages: `NAME` or `NAME.TASK` in `method.environment`."""
_making = threading.RLock()
MOST_REPEATED = 2_000
"""Rows in a row that are of the other split or known, after which there are no new ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """The part of an episode that a seat sees next; that seat's model is then asked.

    Example: `Observation(seat="white", content=[{"role": "user", "content": "Your move."}])`. Text instead of messages is
    continued by the model without a chat template, which base models can do: `Observation(content="2 + 2 =", stop=("\\n",))`.
    """

    content: list[Message] | str
    """The messages, or the text, that are new since this seat's last reply."""
    seat: str = AGENT
    tools: list[dict[str, Any]] = field(default_factory=list)
    """Tools that the model may call, in OpenAI's form; those of a seat's first observation count."""
    stop: tuple[str, ...] = ()
    """The reply ends with the first of these texts."""
    max_tokens: int | None = None
    """Most tokens of the reply, if they are fewer than `method.max_turn_tokens`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """The reply of a seat's model. Example: `Reply(seat="agent", text="42")`."""

    seat: str
    text: str
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    """Calls of tools in OpenAI's form, if the observation has tools."""
    is_cut: bool = False
    """True if a limit of tokens ended it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The result of an episode, whether it has ended or was left at a limit.

    Example of a game that white has won: `Outcome(rewards={"white": 1.0, "black": -1.0}, metrics={"draw": 0.0})`.
    """

    rewards: float | Mapping[str, float] | None = None
    """The reward of each seat, one number for all seats, or None for the sums of their step rewards."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers from 0 to 1, which are averaged and shown."""
    end: StopReason | None = None
    """The stop reason, if it is not `answered` for an episode that has ended."""


class IllegalMove(Exception):
    """Raised by `act` for a reply that is no legal move: the same seat is asked again, after the error's text.

    Without a text the next observation says what was wrong. Illegal moves are counted, and take a turn.
    """


class NoPlaceError(Exception):
    """Raised by `open` or `run` where all places are taken; it is asked again until there is one, on no one's time."""


class Episode(Protocol):
    """One execution of an environment, for one rollout."""

    def observe(self) -> Observation | None:
        """The observation of the seat that is to move; None once the episode is over."""
        ...

    def act(self, reply: Reply) -> float | Mapping[str, float] | None:
        """Takes the reply to the last observation. Returns the reward of this step, or of each seat; None for 0.

        It is called once for each reply. Raises IllegalMove for a reply that is no move; any other error means that the
        environment is lost, and the rollout is run again.
        """
        ...

    def outcome(self) -> Outcome:
        """The result, also of an episode that is not over. It is not asked for after a step that exceeded its time limit."""
        ...

    def close(self) -> None:
        """Frees what the episode holds. It may be missing."""
        ...


class Environment(Protocol):
    """A kind of episodes, made once per process from its name and settings; `open` makes one episode."""

    seats: tuple[str, ...]
    """Names of the agents that take part; without this attribute there is one, `agent`."""
    step_seconds: float
    """Time limit of a step; without this attribute `rollout.tool_timeout_seconds`."""

    def rows(self, *, split: Split, num_items: int, seed: int) -> Iterable[Row]:
        """Rows of one split, which the other one does not have (`in_split`)."""
        ...

    def open(self, row: Row) -> Episode:
        """An episode of a row; it is also given the rollout's `context`, if it has such a parameter.

        Raises NoPlaceError if there is no place for one at the moment.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """The model of a seat, as an agent calls it: with any client of OpenAI's or Anthropic's protocols."""

    base_url: str
    """`base_url` of OpenAI's clients."""
    anthropic_url: str
    """`base_url` of Anthropic's clients."""
    api_key: str
    model: str
    max_tokens: int
    """Most tokens of a reply, for the agent to ask for (`method.max_turn_tokens`)."""


class Harness(Protocol):
    """An environment with agents of its own, which call the models of their seats by URL.

    Example of one that asks once:

        class Sums:
            def rows(self, *, split, num_items, seed):
                return in_split(({"question": f"{n} + 1 =", "sum": n + 1} for n in count(seed)), split=split, num_items=num_items)

            async def run(self, row, seats):
                client = AsyncOpenAI(base_url=seats["agent"].base_url, api_key=seats["agent"].api_key)
                ask = [{"role": "user", "content": row["question"]}]
                reply = await client.chat.completions.create(model="policy", messages=ask)
                return float(reply.choices[0].message.content == str(row["sum"]))
    """

    seats: tuple[str, ...]
    """Names of the agents that take part; without this attribute there is one, `agent`."""

    def rows(self, *, split: Split, num_items: int, seed: int) -> Iterable[Row]:
        """Rows of one split, which the other one does not have (`in_split`)."""
        ...

    def run(self, row: Row, seats: Mapping[str, Seat]) -> Outcome | Mapping[str, Any] | float:
        """Runs an episode to its end; its result as `Outcome`, as the fields of one, or as the reward of all seats.

        An error means that the environment is lost, and the rollout is run again, unless a limit of a seat's calls or a full
        context came before it: then the episode has ended there with reward 0. Raises NoPlaceError if there is no place.
        """
        ...


def seats_of(environment: Any) -> tuple[str, ...]:
    """The names of an environment's seats."""
    return tuple(getattr(environment, "seats", (AGENT,)))


def load_environment(name: str, settings: Mapping[str, Any]) -> Any:
    """The environment of this name, once per process: an adapter's, or a class or function of the user's, called with settings.

    Threads that ask for one while it is made wait for it.

    Raises ConfigError if there is none, its package is not installed, or it does not take the settings.
    """
    with _making:
        return _made(name, json.dumps(settings, sort_keys=True, default=str))


@functools.lru_cache
def _made(name: str, settings: str) -> Any:
    adapter, _, task = name.partition(".")
    keywords = json.loads(settings)
    if adapter in ADAPTERS and ":" not in name:
        path, arguments = ADAPTERS[adapter], (task,) if task else ()
    else:
        path, arguments = name, ()
    try:
        make = load_hook(path)
    except ImportError as error:
        remedy = f"{import_remedy(path, error)}; environments of other packages are {', '.join(ADAPTERS)}"
        raise ConfigError([Problem(key="method.environment", value=name, remedy=remedy)]) from error
    try:
        return make(*arguments, **keywords)
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:
        remedy = f"{name} does not take these settings ({describe(error)})"
        raise ConfigError([Problem(key="method.settings", value=keywords, remedy=remedy)]) from error


def found_hook(setting: str, path: str) -> Callable[..., Any]:
    """The function that a setting of an environment names by a dotted path. Raises ConfigError if there is none."""
    try:
        return load_hook(path)
    except ImportError as error:
        key = f"method.settings.{setting}"
        raise ConfigError([Problem(key=key, value=path, remedy=import_remedy(path, error))]) from error


def tells_of_losses(lost: str) -> bool:
    """True for `lost=tell`: a server's error is shown to the model, where `lost=repeat` runs the rollout again."""
    if lost not in ("repeat", "tell"):
        raise ConfigError([Problem(key="method.settings.lost", value=lost, remedy="use repeat or tell")])
    return lost == "tell"


class MissingPackageError(ConfigError):
    """The package of an environment is not installed here."""


def required(name: str, requirement: str, error: ImportError) -> MissingPackageError:
    """The error of an environment whose package is not installed."""
    remedy = f"its package is not installed ({error}): pip install '{requirement}'"
    return MissingPackageError([Problem(key="method.environment", value=name, remedy=remedy)])


def rows(
    num_items: int, seed: int, *, environment: str, settings: Mapping[str, Any] | None = None, split: Split = "train"
) -> list[Row]:
    """The rows of an environment, for `data.*.generator`. A row without a question gets `prompt: []` and a `key`."""
    made = load_environment(environment, settings or {}).rows(split=split, num_items=num_items, seed=seed)
    asks = ("question", "prompt")
    return [
        row if any(row.get(name) for name in asks) else {**row, "prompt": [], "key": key_of(row)}
        for row in itertools.islice(made, num_items)
    ]


def rows_of(make: Callable[..., Iterable[Row]], *, split: Split, num_items: int, seed: int) -> list[Row]:
    """The rows of one split of a function `make(num_items, seed)`; it is asked for twice as many as the split should need."""
    share = EVALUATION_SHARE if split == "eval" else 1 - EVALUATION_SHARE
    return in_split(make(num_items=round(2 * num_items / share), seed=seed), split=split, num_items=num_items)


def key_of(row: Row) -> str:
    """The text that tells a row from others: its `key`, its question, or all of it."""
    return str(row.get("key") or row.get("question") or json.dumps(row, sort_keys=True, default=str))


def in_split(candidates: Iterable[Row], *, split: Split, num_items: int) -> list[Row]:
    """The first rows whose `key`, question or whole belongs to a split by its hash (`vime.data.split`), each once.

    They are fewer than `num_items` where the candidates end, or repeat themselves.
    """
    found: list[Row] = []
    known: set[str] = set()
    num_passed = 0
    for row in candidates:
        key = key_of(row)
        num_passed += 1
        if key not in known and split_of(key) == split:
            known.add(key)
            found.append(row)
            num_passed = 0
        if len(found) >= num_items or num_passed >= MOST_REPEATED:
            break
    return found
