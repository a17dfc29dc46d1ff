"""Tic-tac-toe: legal moves, lines, and the perfect player."""

import random
from collections.abc import Iterator

import pytest

from agentic.games.tictactoe import CELLS, TicTacToe
from agentic.games.two_players import SEATS
from vime.environments.environment import Reply

GAME = TicTacToe()


def positions(position: str = "", *, most: int = 4) -> Iterator[str]:
    """All positions after up to `most` moves."""
    yield position
    if len(position) < most:
        for move in GAME.moves(position):
            yield from positions(position + move, most=most)


def test_every_free_cell_is_a_move():
    for position in positions():
        assert set(GAME.moves(position)) == {*CELLS} - {*position}


@pytest.mark.parametrize("line", ["abc", "def", "ghi", "adg", "beh", "cfi", "aei", "ceg"])
def test_three_in_a_row_win_and_end_the_match(line: str):
    others = [cell for cell in CELLS if cell not in line]
    position = "".join(own + other for own, other in zip(line, others))[:-1]
    assert GAME.has_lost(position) and not GAME.moves(position)
    assert not GAME.has_lost(position[:-1]) and line[-1] in GAME.best(position[:-1])


def test_each_player_sees_the_own_cells_as_capitals():
    assert GAME.shown("") == "You. Other."
    assert GAME.shown("eab") == "You A. Other b e."
    assert GAME.shown("eabc") == "You B E. Other a c."


@pytest.mark.parametrize("seat", SEATS)
def test_the_perfect_player_never_loses_and_two_of_them_draw(seat: str):
    for number in range(100):
        chance, is_perfect = random.Random(number), number % 5 == 0
        match = GAME.open({"key": str(number), "position": "", "opponent": "perfect", "seat": seat})
        while (seen := match.observe()) is not None:
            options = GAME.best(match.position) if is_perfect else match.moves
            match.act(Reply(seat=seen.seat, text=chance.choice(options)))
        outcome = match.outcome()
        assert outcome.metrics["strict"] == 0.5 if is_perfect else outcome.metrics["strict"] <= 0.5
