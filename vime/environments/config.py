"""The settings of environments; importing this module registers `schema/method/environment` with Hydra."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore

from vime.config import MethodConfig, Mode, RunConfig
from vime.config.ranges import Count
from vime.errors import ConfigError, Problem, SandboxError

ACTOR = "actor"


@dataclass(kw_only=True, slots=True)
class EnvironmentConfig(MethodConfig):
    """Agents that take turns with an environment."""

    name: str = "environment"
    generate: str = "vime.environments.play.generate"
    reward: str | None = "vime.environments.play.reward"
    single_turn: str = "vime.environments.play.generate"
    environment: str = ""
    """The environment: `reasoning_gym.TASK` or another adapter, or the dotted path of a class of your own
    (`vime.environments.environment.Environment`)."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Arguments with which the environment is made."""
    players: dict[str, str] = field(default_factory=dict)
    """The served model that plays a seat, by the seat's name; every other seat is played by the trained model. A row with
    `players` of its own is played by those."""
    rotate_players: bool = False
    """True if players change seats from row to row, by a hash of the row; `players` then names every seat."""
    max_turns: Count = 32
    """Most replies of an episode, of all seats together; it is then left, and its rewards count."""
    max_turn_tokens: Count = 512
    """Most tokens of a reply."""

    def players_of(self, row: Mapping[str, Any]) -> Mapping[str, str]:
        """The models of the seats in an episode of a row, by the seats' names; all attempts at one row have the same."""
        if (own := row.get("players")) is not None:
            return own
        if not self.rotate_players:
            return self.players
        places = int.from_bytes(hashlib.sha256(json.dumps(row, sort_keys=True, default=str).encode()).digest()[:4])
        seats, models = list(self.players), list(self.players.values())
        return {seat: models[(number + places) % len(models)] for number, seat in enumerate(seats)}

    def problems(self, config: RunConfig) -> list[Problem]:
        """Checks that the environment can be made, and that the players are there.

        A plan, which may be for another machine, does without the environment's package.
        """
        from vime.environments.environment import MissingPackageError, load_environment, seats_of

        if not self.environment:
            remedy = "name one, for example method.environment=reasoning_gym.chain_sum, or a class, my_game.py:Game"
            return [Problem(key="method.environment", value=self.environment, remedy=remedy)]
        try:
            seats = seats_of(load_environment(self.environment, dict(self.settings)))
        except SandboxError as error:
            return [Problem(key="method.settings", value=dict(self.settings), remedy=str(error))]
        except MissingPackageError as error:
            return [] if config.mode is Mode.plan else error.problems
        except ConfigError as error:
            return error.problems
        found: list[Problem] = []
        for seat, model in self.players.items():
            if seat not in seats:
                remedy = f"{self.environment} has no such seat: {', '.join(seats)}"
                found.append(Problem(key=f"method.players.{seat}", value=model, remedy=remedy))
            elif model not in config.serving.models:
                remedy = f"is no served model: use {', '.join(config.serving.models)}, or add serving.models.{model}"
                found.append(Problem(key=f"method.players.{seat}", value=model, remedy=remedy))
        if self.rotate_players and (unnamed := [seat for seat in seats if seat not in self.players]):
            remedy = (
                f"players that change seats must all be named, and {', '.join(unnamed)} is not: use {ACTOR} for the trained model"
            )
            found.append(Problem(key="method.players", value=dict(self.players), remedy=remedy))
        if seats and all(self.players.get(seat, ACTOR) != ACTOR for seat in seats):
            remedy = "leave a seat to the trained model: without one there is nothing to learn"
            found.append(Problem(key="method.players", value=dict(self.players), remedy=remedy))
        return found


ConfigStore.instance().store(group="schema/method", name="environment", node=EnvironmentConfig)
