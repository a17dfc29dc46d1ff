"""A game of two players who see everything and move in turn: its rules, its rows, and a match as an episode with two seats.

A row of the training leaves both seats to the trained model. A row with an `opponent` seats a program at the other side of
`seat`: `random` draws one of the legal moves, `perfect` one of the best, both from a generator that the row seeds.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import count
from typing import Literal

from vime.data.split import Split
from vime.environments.environment import IllegalMove, Observation, Outcome, Reply, Row, in_split
from vime.errors import ConfigError, Problem

SEATS = ("first", "second")
OPPONENTS = ("random", "perfect")
MOST_ILLEGAL = 2
"""Illegal moves of one seat in a match; the last of them loses it."""
Side = Literal[0, 1]
"""The place of a seat in `SEATS`."""


class TwoPlayerGame(ABC):
    """The rules of a game on positions that are texts, and an environment of its matches.

    A move is a text as well. Example: `Nim(opponent="perfect")`, whose rows are played against the perfect player.
    """

    seats = SEATS
    name: str
    rules: str
    """The rules in a few words, for the first message of each seat."""

    def __init__(self, *, opponent: str = "", seat: str = "") -> None:
        """`opponent` is that of this environment's rows: `random`, `perfect`, or none; `seat` the model's in all of them.

        Raises ConfigError for another opponent or seat, and for a seat without an opponent.
        """
        if opponent and opponent not in OPPONENTS:
            remedy = f"is no program here: use {', '.join(OPPONENTS)}, or leave it out for matches of the model with itself"
            raise ConfigError([Problem(key="method.settings.opponent", value=opponent, remedy=remedy)])
        if seat and (seat not in SEATS or not opponent):
            remedy = f"is the model's seat against a program: use {' or '.join(SEATS)} beside an opponent, or leave it out"
            raise ConfigError([Problem(key="method.settings.seat", value=seat, remedy=remedy)])
        self.opponent, self.seat = opponent, seat

    @abstractmethod
    def start(self, number: int) -> tuple[str, Side]:
        """The first position of match `number`, and the side that a model has in it against a program."""

    @abstractmethod
    def moves(self, position: str) -> list[str]:
        """The legal moves; none where the match is over."""

    @abstractmethod
    def after(self, position: str, move: str) -> str:
        """The position after a legal move."""

    @abstractmethod
    def has_lost(self, position: str) -> bool:
        """True if the player who is to move has lost; a position that is over and not lost is a draw."""

    @abstractmethod
    def best(self, position: str) -> list[str]:
        """The moves of a perfect player, all that lead to the best result which the position allows."""

    @abstractmethod
    def shown(self, position: str) -> str:
        """The position as the player who is to move sees it."""

    def rows(self, *, split: Split, num_items: int, seed: int) -> Iterable[Row]:
        """Numbered matches of one split, with the first position, and the opponent and the model's seat where there is one."""
        matches = (self._row(number) for number in count(seed * 2**20))
        return in_split((row for row in matches if not self.seat or row["seat"] == self.seat), split=split, num_items=num_items)

    def open(self, row: Row) -> "Match":
        """The match of a row."""
        return Match(self, row)

    def _row(self, number: int) -> Row:
        position, side = self.start(number)
        row = {"key": f"{self.name}, match {number}", "number": number, "position": position}
        if not self.opponent:
            return row
        return {**row, "opponent": self.opponent, "seat": SEATS[side], "players": {}}  # whoever plays the training's matches


class Match:
    """One match; `first` is to move in the row's position."""

    def __init__(self, game: TwoPlayerGame, row: Row) -> None:
        self._game, self.position = game, str(row["position"])
        self._opponent, self._seat = row.get("opponent", ""), row.get("seat")
        self._chance = random.Random(f"{row['key']}/{self._opponent}")
        self._num_moves = 0
        self._illegal: dict[str, int] = dict.fromkeys(SEATS, 0)
        self._is_wrong = False

    def observe(self) -> Observation | None:
        """The position for the seat that is to move, after the move of a program; the rules come before a seat's first."""
        if self._opponent and self.mover != self._seat and not self._is_over:
            choose = self._game.best if self._opponent == "perfect" else self._game.moves
            self._move(self._chance.choice(choose(self.position)))
        if self._is_over:
            return None
        shown = self._game.shown(self.position)
        content = [{"role": "user", "content": f"Illegal. {shown}" if self._is_wrong else shown}]
        if self._num_moves < len(SEATS) and not self._is_wrong:
            content.insert(0, {"role": "system", "content": self._game.rules})
        return Observation(seat=self.mover, content=content)

    def act(self, reply: Reply) -> None:
        """A move, which is the whole reply. Raises IllegalMove; the next observation says so, unless the match is lost by it."""
        move = reply.text.strip()
        self._is_wrong = move not in self._game.moves(self.position)
        if self._is_wrong:
            self._illegal[reply.seat] += 1
            raise IllegalMove
        self._move(move)

    @property
    def mover(self) -> str:
        """The seat that is to move."""
        return SEATS[self._num_moves % 2]

    @property
    def moves(self) -> list[str]:
        """The legal moves of the seat that is to move; none once the match is over."""
        return [] if self._loser_by_illegal else self._game.moves(self.position)

    def outcome(self) -> Outcome:
        """1 for the winner and -1 for the loser, 0 in a draw and in a match that was left.

        Metrics of a match against a program are `strict`, the model's points (1 for a win, 0.5 for a draw), and of one of the
        model with itself `won_first`; of both `draw`, and `illegal`, which is 1 if illegal moves lost the match.
        """
        winner = self._winner
        draw = float(self._is_over and winner is None)
        rewards = {seat: 0.0 if winner is None else 1.0 if seat == winner else -1.0 for seat in SEATS}
        metrics = {"draw": draw, "illegal": float(self._loser_by_illegal is not None)}
        if self._opponent:
            metrics["strict"] = 1.0 if winner == self._seat else draw / 2
        else:
            metrics["won_first"] = float(winner == SEATS[0])
        return Outcome(rewards=rewards, metrics=metrics)

    @property
    def _loser_by_illegal(self) -> str | None:
        return next((seat for seat, number in self._illegal.items() if number >= MOST_ILLEGAL), None)

    @property
    def _is_over(self) -> bool:
        return not self.moves

    @property
    def _winner(self) -> str | None:
        loser = self._loser_by_illegal or (self.mover if self._is_over and self._game.has_lost(self.position) else None)
        return None if loser is None else SEATS[1 - SEATS.index(loser)]

    def _move(self, move: str) -> None:
        self.position, self._num_moves = self._game.after(self.position, move), self._num_moves + 1
