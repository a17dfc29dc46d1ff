"""Nim with three heaps: who takes the last piece wins (normal play).

    +method=environment method.environment=agentic.games.nim.Nim

A heap is a word of equal letters and a move is the word of the pieces that are taken: in "aaa bb cccc" the move "cc" takes two
of the third heap. A position is lost for the player who is to move if the exclusive or of its heaps is 0, and a perfect player
leaves such positions (Bouton, Nim, a game with a complete mathematical theory, 1901).
"""

import random
from functools import reduce
from operator import xor

from agentic.games.two_players import Side, TwoPlayerGame
from vime.errors import ConfigError, Problem

HEAPS = "abc"


class Nim(TwoPlayerGame):
    """Nim from drawn positions; every second one is lost for the player who begins.

    Against a program the model has the seat that can win.
    """

    name = "nim"
    rules = "Take letters of one kind. The last one wins."

    def __init__(self, *, opponent: str = "", seat: str = "", largest: int = 3) -> None:
        """`largest` is the most pieces of a heap. Raises ConfigError for less than 1, and as the other games do."""
        super().__init__(opponent=opponent, seat=seat)
        if largest < 1:
            remedy = "leaves nothing to take: use 1 or more"
            raise ConfigError([Problem(key="method.settings.largest", value=largest, remedy=remedy)])
        self.largest = largest

    def start(self, number: int) -> tuple[str, Side]:
        """A position that seat `first` wins in an even match and `second` in an odd one, and that seat."""
        chance, is_lost = random.Random(f"nim/{number}"), number % 2
        while True:
            heaps = [chance.randint(0, self.largest) for _ in HEAPS]
            if any(heaps) and (not reduce(xor, heaps)) == is_lost:
                return " ".join(letter * heap for letter, heap in zip(HEAPS, heaps) if heap), 1 if is_lost else 0

    def moves(self, position: str) -> list[str]:
        """All parts of one heap: "aa c" has the moves a, aa and c."""
        return [heap[:taken] for heap in position.split() for taken in range(1, len(heap) + 1)]

    def after(self, position: str, move: str) -> str:
        """The position without the pieces of a move."""
        left = (heap[len(move) :] if heap[0] == move[0] else heap for heap in position.split())
        return " ".join(heap for heap in left if heap)

    def has_lost(self, position: str) -> bool:
        """True where the other player has taken the last piece."""
        return not position

    def best(self, position: str) -> list[str]:
        """The moves to positions that are lost for the other player, or all moves where there is none."""
        winning = [move for move in self.moves(position) if not nim_sum(self.after(position, move))]
        return winning or self.moves(position)

    def shown(self, position: str) -> str:
        """The heaps."""
        return position


def nim_sum(position: str) -> int:
    """The exclusive or of the heaps; 0 is lost for the player who is to move."""
    return reduce(xor, map(len, position.split()), 0)
