"""Games of TextArena, which may be missing: moves of one seat and of two, and the same game from the same seed beside others."""

import importlib.util
import threading
from typing import Any

import pytest

from tests.environments.test_play import played
from vime.environments.environment import IllegalMove, Reply, load_environment
from vime.errors import ConfigError
from vime.types import StopReason

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("textarena") is None, reason="textarena is not installed: pip install -e '.[environments]'"
)


def drawn(game: Any, seed: int) -> list[str]:
    """What both seats of a game of poker see over its rounds, played in this thread."""
    episode, seen = game.open({"seed": seed}), []
    while (observation := episode.observe()) is not None:
        seen.append(observation.content[-1]["content"])
        for move in ("[check]", "[fold]"):
            try:
                episode.act(Reply(seat=observation.seat, text=move))
                break
            except IllegalMove:
                seen.append(episode.observe().content[-1]["content"])
    episode.close()
    return seen


def test_a_seed_is_the_same_game_whatever_else_is_played():
    poker = load_environment("textarena.KuhnPoker-v0", {"players": 2})
    alone, found = [drawn(poker, seed) for seed in range(4)], dict[int, list[str]]()
    assert len({tuple(seen) for seen in alone}) > 1
    start = threading.Barrier(8)

    def many(number: int) -> None:
        start.wait()
        for _ in range(5):
            found[number] = drawn(poker, number % 4)

    threads = [threading.Thread(target=many, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(8)] == [*alone, *alone]


async def test_one_seat_plays_with_illegal_moves_that_the_game_explains(byte_tokenizer: Any):
    game = load_environment("textarena.GuessTheNumber-v0", {"instruction": "Play."})
    moves = ["three", *(f"[{number}]" for number in range(1, 21))]
    rollout = await played(byte_tokenizer, game, moves, max_turns=40, max_model_len=20_000)
    assert rollout.stop_reason is StopReason.ANSWERED and rollout.reward == 1.0
    assert rollout.counts["illegal_moves"] == 1
    text = byte_tokenizer.decode(rollout.samples[0].tokens)
    assert "attempted an invalid move" in text and text.count("[Player") == 0, "its own moves are not told again"
    assert "system\nPlay." in text


async def test_two_seats_have_opposite_rewards(byte_tokenizer: Any):
    game = load_environment("textarena.TicTacToe-v0", {"players": 2})
    rollout = await played(byte_tokenizer, game, ["[0]", "[3]", "[1]", "[4]", "[2]"], max_model_len=20_000)
    assert rollout.stop_reason is StopReason.ANSWERED
    assert [(each.seat, each.reward) for each in rollout.samples] == [("player_0", 1.0), ("player_1", -1.0)]
    assert rollout.reward == 0.0
    assert rollout.metrics["reward_player_0"] == 1.0 and rollout.metrics["lost_by_move_player_1"] == 0.0


@pytest.mark.parametrize(
    ("game", "players", "remedy"), [("Pacman-v9", 1, "KuhnPoker-v0"), ("KuhnPoker-v0", 5, r"method\.settings\.players")]
)
def test_a_game_that_cannot_start_is_a_problem(game: str, players: int, remedy: str):
    with pytest.raises(ConfigError, match=remedy):
        load_environment(f"textarena.{game}", {"players": players})
