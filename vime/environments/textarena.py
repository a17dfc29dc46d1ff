"""Games of TextArena, for one seat or several.

    +method=environment method.environment=textarena.GuessTheNumber-v0
    +method=environment method.environment=textarena.KuhnPoker-v0 'method.settings={players: 2}'

An observation has what is new for its seat, whose whole reply is its move. Games draw their cards and words from Python's
global `random` and from NumPy's, which the episodes of a process would share: here each episode's thread has generators of its
own, so a row is the same game whatever else is played.
"""

import random
import sys
import threading
from collections.abc import Iterable
from importlib import import_module
from itertools import count
from typing import Any

import numpy

from vime.data.split import Split
from vime.environments.environment import IllegalMove, Observation, Outcome, Reply, Row, in_split, required
from vime.errors import ConfigError, Problem, describe

REQUIREMENT = "textarena==0.7.4"
RAW = "-raw"
"""Ending of the variant of a game whose observations have only what is new."""
ENDED_BY_PACKAGE = (Exception, SystemExit)
_own = threading.local()
_patching = threading.Lock()


class TextArena:
    """One game of the package with the number of its players, for example `TextArena("KuhnPoker-v0", players=2)`."""

    def __init__(self, game: str, /, *, players: int = 1, instruction: str = "", **arguments: Any) -> None:
        """Raises ConfigError for a game that there is not, that does not start here, or if the package is missing."""
        try:
            self._package: Any = import_module("textarena")
        except ImportError as error:
            raise required(f"textarena.{game}", REQUIREMENT, error) from error
        self.game, self.instruction, self._arguments = game, instruction, arguments
        self.seats = tuple(f"player_{number}" for number in range(players))
        registered = self._package.envs.registration.ENV_REGISTRY
        if game + RAW not in registered:
            known = ", ".join(sorted(name.removesuffix(RAW) for name in registered if name.endswith(RAW)))
            remedy = f"textarena {REQUIREMENT.partition('==')[2]} has no such game: {known}"
            raise ConfigError([Problem(key="method.environment", value=f"textarena.{game}", remedy=remedy)])
        try:
            self.open({"seed": 0}).observe()
        except ENDED_BY_PACKAGE as error:  # words that are not there, another number of players
            reason = " ".join(describe(error).replace("*", "").split())[:200]
            remedy = f"does not start with {players} player(s) ({reason}): set method.settings.players, or take another game"
            raise ConfigError([Problem(key="method.environment", value=f"textarena.{game}", remedy=remedy)]) from error
        finally:
            vars(_own).clear()

    def rows(self, *, split: Split, num_items: int, seed: int) -> Iterable[Row]:
        """Seeds of games."""
        candidates = ({"key": f"{self.game}, seed {number}", "seed": number} for number in count(seed * 2**20))
        return in_split(candidates, split=split, num_items=num_items)

    def open(self, row: Row) -> "Game":
        """The game of a seed."""
        env = self._package.make(self.game + RAW, **self._arguments)
        with _patching:
            _use_own_generators()
        _own.python, _own.numpy = random.Random(row["seed"]), numpy.random.RandomState(row["seed"] % 2**32)
        env.reset(num_players=len(self.seats), seed=row["seed"])
        return Game(env, self.seats, self.instruction)


class Game:
    """One game; all of its methods are called in one thread."""

    def __init__(self, env: Any, seats: tuple[str, ...], instruction: str) -> None:
        self._env, self._seats, self._instruction = env, seats, instruction
        self._is_over = False
        self._seen = set[str]()

    def observe(self) -> Observation | None:
        """The texts of the game and of the others since this seat's last move."""
        if self._is_over:
            return None
        player, parts = self._env.get_observation()
        seat = self._seats[player]
        told = [(sender, text) for sender, text, kind in parts if sender != player or kind.name != "PLAYER_ACTION"]
        names = self._env.state.role_mapping
        content = "\n".join(f"[{names.get(sender, f'Player {sender}')}] {text}" for sender, text in told)
        messages = [{"role": "user", "content": content}]
        if seat not in self._seen and self._instruction:
            messages.insert(0, {"role": "system", "content": self._instruction})
        self._seen.add(seat)
        return Observation(seat=seat, content=messages)

    def act(self, reply: Reply) -> None:
        """A move. One that the game does not accept is an illegal move, which the game itself explains."""
        player, state = self._seats.index(reply.seat), self._env.state
        before = self._errors(player)
        self._is_over, _ = self._env.step(reply.text)
        if self._errors(player) > before or state.game_info[player].get("invalid_move"):
            raise IllegalMove

    def outcome(self) -> Outcome:
        """The game's rewards, 0 for all in a game that was left; `lost_by_move_SEAT` is 1 if illegal moves lost the game."""
        rewards, about = self._env.close()
        lost = {f"lost_by_move_{seat}": float(bool(about[n].get("invalid_move"))) for n, seat in enumerate(self._seats)}
        return Outcome(rewards={seat: float((rewards or {}).get(n, 0.0)) for n, seat in enumerate(self._seats)}, metrics=lost)

    def close(self) -> None:
        """Drops the thread's generators."""
        vars(_own).clear()

    def _errors(self, player: int) -> int:
        counted = getattr(self._env.state, "error_count", 0)
        return counted.get(player, 0) if isinstance(counted, dict) else counted


class _OwnGenerator:
    """Stands for a module whose functions draw from one generator: those of the thread's own, where it has one."""

    def __init__(self, module: Any, name: str) -> None:
        self._module, self._name = module, name

    def __getattr__(self, name: str) -> Any:
        own = getattr(_own, self._name, None)
        return getattr(own if own is not None and hasattr(own, name) else self._module, name)


class _Numpy:
    """NumPy, with the thread's own generator as `random`."""

    random = _OwnGenerator(numpy.random, "numpy")

    def __getattr__(self, name: str) -> Any:
        return getattr(numpy, name)


_RANDOM, _NUMPY = _OwnGenerator(random, "python"), _Numpy()


def _use_own_generators() -> None:
    """Lets the package's modules draw from the thread's generators; they are imported with their games."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "textarena" and module is not None:
            for attribute, value in list(vars(module).items()):
                if value is random:
                    setattr(module, attribute, _RANDOM)
                elif value is numpy:
                    setattr(module, attribute, _NUMPY)
