"""Keeps the completed model calls of a rollout, so that they are not sampled again if the rollout is restarted.

A restarted hook runs from its beginning. A call to the same model with the same prompt and limit gets the kept turn, once;
every other call is sampled. This is sound for every hook, because a turn is only used for exactly the prompt that it was
sampled for, in whatever order the calls come. Tools are called again: their sandboxes are gone.
"""

import hashlib
from collections import Counter

import numpy as np

from vime.rollout.sampled import Sampled
from vime.rollout.seeds import Seeds
from vime.types import Integers, Turn

KEY_CHARACTERS = 32


class TurnLog:
    """The turns of one rollout; `saved` are those of an earlier run of the same rollout."""

    __slots__ = ("_num_asked", "_pending", "sampled", "seeds", "turns")

    def __init__(self, saved: list[Turn] | None = None) -> None:
        self.turns: list[Turn] = []
        self.seeds: Seeds | None = None
        """Seeds of the calls that are sampled; None leaves seeding to the servers."""
        self.sampled: Sampled | None = None
        """What the trained model has sampled in the current attempt, whether a turn is kept of it or not."""
        self._pending: dict[str, list[Turn]] = {}
        self._num_asked: Counter[str] = Counter()
        self._expect(saved or [])

    def seed(self, key: str) -> int | None:
        """The seed of a new call. Equal calls of one attempt get different seeds; every attempt gets the same ones."""
        number, self._num_asked[key] = self._num_asked[key], self._num_asked[key] + 1
        return None if self.seeds is None else self.seeds.of_call(key, number)

    def find(self, key: str) -> Turn | None:
        """Returns and removes the turn that an earlier run kept for this call, if there is one."""
        found = self._pending.get(key)
        return found.pop(0) if found else None

    def keep(self, turn: Turn) -> None:
        """Adds a completed call. Its turn has a key and no prompt, since a later call brings its own."""
        self.turns.append(turn)

    def saved(self) -> list[Turn]:
        """All turns that another run could use, including those of an earlier run that were not asked for yet."""
        return [*self.turns, *(turn for turns in self._pending.values() for turn in turns)]

    def oldest_version(self, unknown: int) -> int | None:
        """The weight version of the oldest token of this rollout, None without tokens; that of calls in flight is `unknown`."""
        versions = {version for turn in self.saved() for version in turn.weight_versions}
        versions |= self.sampled.versions(unknown) if self.sampled is not None else set()
        return min(versions, default=None)

    def start_again(self, *, keep_turns: bool) -> None:
        """Begins a new attempt, whose calls get the turns of this one if `keep_turns`, and are otherwise all sampled."""
        turns = self.saved() if keep_turns else []
        self.turns = []
        self._expect(turns)

    def _expect(self, turns: list[Turn]) -> None:
        self._pending, self._num_asked = {}, Counter()
        for turn in turns:
            self._pending.setdefault(turn.key, []).append(turn)


def call_key(model: str, token_ids: Integers, max_tokens: int) -> str:
    """Identifies a model call by a digest of the model's name, the prompt's token ids and the limit."""
    digest = hashlib.sha256(f"{model}/{max_tokens}/".encode())
    digest.update(np.asarray(token_ids, dtype=np.int32).tobytes())
    return digest.hexdigest()[:KEY_CHARACTERS]
