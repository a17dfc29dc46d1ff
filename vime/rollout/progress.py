"""`Progress`: the completed parts of an unfinished group, kept across a restart so that they are not sampled again."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from vime.types import Rollout, Turn


@dataclass(kw_only=True, slots=True)
class Progress:
    """The finished rollouts of a group, and the turns of unfinished ones, by member.

    Example: of four rollouts, 0 and 2 are finished and 1 has two turns: `Progress(prompt_index=7, version=3, finished={0: …, 2:
    …}, turns={1: [turn, turn]})`. All of it belongs to one prompt, and its tokens are of `version` or newer.
    """

    prompt_index: int
    version: int
    finished: dict[int, Rollout] = field(default_factory=dict)
    turns: dict[int, list[Turn]] = field(default_factory=dict)

    def has_any(self) -> bool:
        """Whether anything is worth keeping."""
        return bool(self.finished) or any(self.turns.values())

    def with_finished(self, finished: dict[int, Rollout]) -> "Progress":
        """This progress with more finished rollouts, whose turns are dropped."""
        finished = {**self.finished, **finished}
        turns = {member: turns for member, turns in self.turns.items() if member not in finished}
        return Progress(prompt_index=self.prompt_index, version=self.version, finished=finished, turns=turns)

    def without(self, members: Collection[int], *, version: int) -> "Progress":
        """This progress without the finished rollouts of some members; the rest has no tokens older than `version`."""
        finished = {member: rollout for member, rollout in self.finished.items() if member not in members}
        return Progress(prompt_index=self.prompt_index, version=version, finished=finished, turns=self.turns)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary; `from_dict` reads it back equal."""
        return {
            "prompt_index": self.prompt_index,
            "version": self.version,
            "finished": {str(member): rollout.to_dict() for member, rollout in self.finished.items()},
            "turns": {str(member): [turn.to_dict() for turn in turns] for member, turns in self.turns.items()},
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Progress":
        """Reads what `to_dict` wrote."""
        return cls(
            prompt_index=data["prompt_index"],
            version=data["version"],
            finished={int(member): Rollout.from_dict(rollout) for member, rollout in data["finished"].items()},
            turns={int(member): [Turn(**turn) for turn in turns] for member, turns in data["turns"].items()},
        )
