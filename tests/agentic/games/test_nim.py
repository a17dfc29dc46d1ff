"""Nim: legal moves, the perfect player, and the matches that are drawn."""

import itertools
import random

import pytest

from agentic.games.nim import HEAPS, Nim, nim_sum
from agentic.games.two_players import SEATS
from vime.environments.environment import Reply
from vime.errors import ConfigError

POSITIONS = [
    " ".join(letter * heap for letter, heap in zip(HEAPS, heaps) if heap)
    for heaps in itertools.product(range(5), repeat=len(HEAPS))
    if any(heaps)
]


def can_win(position: str, known: dict[str, bool] = {"": False}) -> bool:  # noqa: B006  # a cache
    """By search, without the theory."""
    if position not in known:
        known[position] = any(not can_win(Nim().after(position, move)) for move in Nim().moves(position))
    return known[position]


def test_a_position_is_lost_where_the_nim_sum_is_zero():
    assert [can_win(position) for position in POSITIONS] == [nim_sum(position) != 0 for position in POSITIONS]


def test_every_move_takes_one_or_more_pieces_of_one_heap_and_all_of_them_are_moves():
    for position in POSITIONS:
        moves = Nim().moves(position)
        assert len(set(moves)) == len(moves) == sum(map(len, position.split()))
        for move in moves:
            left = Nim().after(position, move)
            assert [len(move) if letter == move[0] else 0 for letter in HEAPS] == [
                position.count(letter) - left.count(letter) for letter in HEAPS
            ]


def test_the_perfect_player_never_loses_from_a_position_that_it_can_win():
    for number, position in enumerate(filter(nim_sum, POSITIONS)):
        chance, side = random.Random(number), number % 2
        match = Nim().open({"key": str(number), "position": position, "opponent": "perfect", "seat": SEATS[1]})
        while (seen := match.observe()) is not None:
            assert seen.seat == SEATS[1]
            move = chance.choice(Nim().best(match.position) if side else match.moves)
            match.act(Reply(seat=seen.seat, text=move))
        assert match.outcome().rewards == {"first": 1.0, "second": -1.0}


@pytest.mark.parametrize("split", ["train", "eval"])
def test_either_seat_can_win_in_half_of_the_matches_and_the_model_has_that_seat(split: str):
    rows = list(Nim(opponent="random").rows(split=split, num_items=200, seed=5))  # type: ignore[arg-type]
    for row in rows:
        assert row["seat"] == SEATS[0 if nim_sum(row["position"]) else 1]
        assert all(len(heap) <= 3 for heap in row["position"].split())
    assert 70 < sum(row["seat"] == "first" for row in rows) < 130


def test_a_largest_heap_without_pieces_is_refused():
    with pytest.raises(ConfigError, match=r"method.settings.largest"):
        Nim(largest=0)
