"""Matches for the supervised training of the games' tiny model: it learns what a move is, and of tic-tac-toe what a good one is.

In Nim every move is drawn from all legal ones. In tic-tac-toe half of the moves are a perfect player's, so that the model knows
good moves without preferring them enough. ILLEGAL of the replies are drawn from all words of the game. A batch depends on the
seed and the step only.
"""

import random

from transformers import PreTrainedTokenizerBase

from agentic.games.nim import HEAPS, Nim
from agentic.games.tictactoe import CELLS, TicTacToe
from agentic.games.two_players import TwoPlayerGame
from vime.environments.environment import IllegalMove, Reply
from vime.tiny.demonstration import DemonstratedConversation, Demonstration, encode_conversation, filled
from vime.types import Message, Sample

ILLEGAL = 0.05
"""Share of replies that are drawn from all words, legal or not."""
PERFECT = {"nim": 0.0, "tictactoe": 0.5}
"""Share of the legal moves that a perfect player makes, by the name of the game; the others are random."""
LARGEST = 4
"""Most pieces of a heap of Nim."""
WORDS = {"nim": [letter * number for letter in HEAPS for number in range(1, LARGEST + 1)], "tictactoe": list(CELLS)}
"""All moves of a game, by its name."""


def conversations(game: TwoPlayerGame, number: int, chance: random.Random) -> list[list[Message]]:
    """The conversations of both seats in a match."""
    position, _ = game.start(number)
    match = game.open({"key": f"demonstration {number}", "position": position})
    told: dict[str, list[Message]] = {}
    while (seen := match.observe()) is not None:
        assert not isinstance(seen.content, str), "matches are conversations"
        is_perfect = chance.random() < PERFECT[game.name]
        legal = game.best(match.position) if is_perfect else match.moves
        move = chance.choice(WORDS[game.name] if chance.random() < ILLEGAL else legal)
        told.setdefault(seen.seat, []).extend([*seen.content, {"role": "assistant", "content": move}])
        try:
            match.act(Reply(seat=seen.seat, text=move))
        except IllegalMove:
            continue
    return list(told.values())


def texts() -> list[str]:
    """Texts that the model reads and writes, from which the vocabulary is made."""
    chance = random.Random("vocabulary")
    matches = [conversations(game, number, chance) for game in (Nim(largest=LARGEST), TicTacToe()) for number in range(200)]
    spoken = [word for words in WORDS.values() for word in words]
    return spoken + [message["content"] for match in matches for told in match for message in told]


def demonstrations(tokenizer: PreTrainedTokenizerBase, step: int, num_steps: int, num_tokens: int, seed: int) -> list[Sample]:
    """Return the batch of one step of num_steps, about num_tokens tokens."""
    chance = random.Random(f"games/{seed}/{step}")
    games = (Nim(largest=LARGEST), TicTacToe())

    def make() -> list[Demonstration]:
        told = conversations(chance.choice(games), chance.randrange(2**20), chance)
        return [encode_conversation(DemonstratedConversation(messages=each), tokenizer=tokenizer) for each in told]

    return filled(make, num_tokens=num_tokens)
