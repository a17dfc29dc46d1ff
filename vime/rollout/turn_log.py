"""The model calls of one rollout that ended, so that a rollout which is run again does not sample them twice.

A hook is run again from its beginning, and a call that asks the same model the same thing within the same limit gets the answer
of the first time, once; every other call is sampled anew. So it is sound for every hook: an answer is only used for exactly the
prompt that it was sampled for, in whatever order the calls come. Tools are called again: their sandboxes are gone.
"""

import hashlib
from collections import Counter

import numpy as np

from vime.rollout.seeds import Seeds
from vime.types import Integers, Turn


class TurnLog:
    """Turns of one rollout; `saved` are those of an earlier run of it."""

    __slots__ = ("_num_asked", "_pending", "seeds", "turns")

    def __init__(self, saved: list[Turn] | None = None) -> None:
        self.turns: list[Turn] = []
        self.seeds: Seeds | None = None
        """Of the calls that are sampled; None leaves them to the servers."""
        self._pending: dict[str, list[Turn]] = {}
        self._num_asked: Counter[str] = Counter()
        self._expect(saved or [])

    def seed(self, key: str) -> int | None:
        """The seed of a call that begins; equal calls of one attempt have different ones, and each attempt the same again."""
        number, self._num_asked[key] = self._num_asked[key], self._num_asked[key] + 1
        return None if self.seeds is None else self.seeds.of_call(key, number)

    def find(self, key: str) -> Turn | None:
        """The answer that an earlier run got to this call, once."""
        found = self._pending.get(key)
        return found.pop(0) if found else None

    def keep(self, turn: Turn) -> None:
        """Adds a call that ended, with its key and without its prompt, which whoever asks again knows."""
        self.turns.append(turn)

    def saved(self) -> list[Turn]:
        """All turns that another run could use, those of an earlier one included that were not asked for yet."""
        return [*self.turns, *(turn for turns in self._pending.values() for turn in turns)]

    def start_again(self, *, keep_turns: bool) -> None:
        """A new attempt begins: its calls get the answers of this one, or all are sampled anew."""
        turns = self.saved() if keep_turns else []
        self.turns = []
        self._expect(turns)

    def _expect(self, turns: list[Turn]) -> None:
        self._pending, self._num_asked = {}, Counter()
        for turn in turns:
            self._pending.setdefault(turn.key, []).append(turn)


def call_key(model: str, token_ids: Integers, max_tokens: int) -> str:
    """What identifies a model call: the model, the prompt's token ids and the limit."""
    digest = hashlib.blake2b(f"{model}/{max_tokens}/".encode(), digest_size=16)
    digest.update(np.asarray(token_ids, dtype=np.int64).tobytes())
    return digest.hexdigest()
