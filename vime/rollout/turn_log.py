"""The model calls of one rollout that ended, so that a rollout which is run again does not sample them twice.

A hook is run again from its beginning, and a call that asks the same model the same thing within the same limit gets the answer
of the first time, once; every other call is sampled anew. So it is sound for every hook: an answer is only used for exactly the
prompt that it was sampled for, in whatever order the calls come. Tools are called again: their sandboxes are gone.
"""

import hashlib
from array import array

from vime.data.progress import SavedTurn


class TurnLog:
    """Turns of one rollout; `saved` are those of an earlier run of it."""

    __slots__ = ("_pending", "turns")

    def __init__(self, saved: list[SavedTurn] | None = None) -> None:
        self.turns: list[SavedTurn] = []
        self._pending: dict[str, list[SavedTurn]] = {}
        self._expect(saved or [])

    def find(self, key: str) -> SavedTurn | None:
        """The answer that an earlier run got to this call, once."""
        found = self._pending.get(key)
        return found.pop(0) if found else None

    def keep(self, turn: SavedTurn) -> None:
        """Adds a call that ended."""
        self.turns.append(turn)

    def saved(self) -> list[SavedTurn]:
        """All turns that another run could use, those of an earlier one included that were not asked for yet."""
        return [*self.turns, *(turn for turns in self._pending.values() for turn in turns)]

    def start_again(self, *, keep_turns: bool) -> None:
        """A new attempt begins: its calls get the answers of this one, or all are sampled anew."""
        turns = self.saved() if keep_turns else []
        self.turns = []
        self._expect(turns)

    def _expect(self, turns: list[SavedTurn]) -> None:
        self._pending = {}
        for turn in turns:
            self._pending.setdefault(turn.key, []).append(turn)


def call_key(model: str, token_ids: list[int], max_tokens: int) -> str:
    """What identifies a model call: the model, the prompt's token ids and the limit."""
    digest = hashlib.blake2b(f"{model}/{max_tokens}/".encode(), digest_size=16)
    digest.update(array("q", token_ids).tobytes())
    return digest.hexdigest()
