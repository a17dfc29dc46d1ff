"""Tic-tac-toe: three in a row win.

    +method=environment method.environment=agentic.games.tictactoe.TicTacToe

The cells are the letters a to i, row by row, and a move is the letter of a free cell. A player sees the own cells as capitals:
"You A E. Other b." A perfect player looks at all that may follow (minimax).
"""

from functools import cache

from agentic.games.two_players import Side, TwoPlayerGame

CELLS = "abcdefghi"
LINES = ("abc", "def", "ghi", "adg", "beh", "cfi", "aei", "ceg")


class TicTacToe(TwoPlayerGame):
    """Tic-tac-toe from the empty board; a position is the text of the moves so far.

    Against a program the model begins in every second match.
    """

    name = "tictactoe"
    rules = "Three in a row win: abc def ghi."

    def start(self, number: int) -> tuple[str, Side]:
        """The empty board, and the sides in turn."""
        return "", 1 if number % 2 else 0

    def moves(self, position: str) -> list[str]:
        """The free cells, unless a player has won."""
        return [] if self.has_lost(position) else [cell for cell in CELLS if cell not in position]

    def after(self, position: str, move: str) -> str:
        """The position with one more move."""
        return position + move

    def has_lost(self, position: str) -> bool:
        """True if the other player has three in a row."""
        return _has_line(_sides(position)[1])

    def best(self, position: str) -> list[str]:
        """The moves with the best result, which may be reached early or late."""
        mine, theirs = map(frozenset, _sides(position))
        values = {move: -_value(theirs, mine | {move}) for move in self.moves(position)}
        return [move for move, value in values.items() if value == max(values.values())]

    def shown(self, position: str) -> str:
        """The cells of both players."""
        mine, theirs = _sides(position)
        own, other = (f" {' '.join(cells)}" if cells else "" for cells in (sorted(mine.upper()), sorted(theirs)))
        return f"You{own}. Other{other}."


def _sides(position: str) -> tuple[str, str]:
    """The cells of the player who is to move, and those of the other one."""
    return position[len(position) % 2 :: 2], position[1 - len(position) % 2 :: 2]


def _has_line(cells: str | frozenset[str]) -> bool:
    return any(set(line) <= set(cells) for line in LINES)


@cache
def _value(mine: frozenset[str], theirs: frozenset[str]) -> int:
    """The result under perfect play for the player who is to move: 1 is won, 0 a draw, -1 lost."""
    if _has_line(theirs):
        return -1
    free = set(CELLS) - mine - theirs
    return max((-_value(theirs, mine | {cell}) for cell in free), default=0)
