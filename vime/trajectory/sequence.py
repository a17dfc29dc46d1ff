"""A token sequence in the making: sampled turns stand in it as they are, and between them tokens that nobody sampled."""

from dataclasses import dataclass, field
from typing import Any

from vime.types import Integers, Sample, Turn


@dataclass(kw_only=True, slots=True)
class TokenSequence:
    """Token ids from a prompt on, and where in them each turn begins.

    Example of a prompt of two tokens, a reply of three and a tool result of two: `TokenSequence(ids=[5, 6, 9, 8, 2, 7, 7],
    num_prompt_tokens=2, turns=[(2, Turn(output_ids=[9, 8, 2], …))])`.
    """

    ids: list[int]
    num_prompt_tokens: int
    turns: list[tuple[int, Turn]] = field(default_factory=list)
    untrained: set[int] = field(default_factory=set)
    """Positions of turns that are context here, because another sequence trains them or nobody received them."""

    @classmethod
    def begin(cls, prompt_ids: Integers) -> "TokenSequence":
        """A prompt whose reply is yet to come."""
        return cls(ids=list(prompt_ids), num_prompt_tokens=len(prompt_ids))

    def continues_in(self, prompt_ids: Integers) -> bool:
        """Whether a prompt begins with all of it."""
        return len(prompt_ids) >= len(self.ids) and prompt_ids[: len(self.ids)] == self.ids

    def add_environment(self, ids: Integers) -> None:
        """Adds tokens that nobody sampled."""
        self.ids += ids

    def add_turn(self, turn: Turn, *, trained: bool = True) -> None:
        """Adds a turn's tokens; a turn without any leaves no trace."""
        if turn.output_ids:
            if not trained:
                self.untrained.add(len(self.ids))
            self.turns.append((len(self.ids), turn))
            self.ids += turn.output_ids

    @property
    def is_trained(self) -> bool:
        """Whether any of its tokens is trained."""
        return len(self.untrained) < len(self.turns)

    def sample(self, template: Sample, /, response: str, **metadata: Any) -> Sample:
        """The sequence up to its last sampled token, ready to be trained; `response` is the text of it that a report shows.

        Tokens of the environment count as of the same weights as the turn before them.
        """
        assert self.turns, "nothing was sampled"
        mask: list[int] = []
        logprobs: list[float] = []
        versions: list[int] = []
        for start, turn in self.turns:
            num_between = start - self.num_prompt_tokens - len(mask)
            mask += [0] * num_between + [int(start not in self.untrained)] * len(turn.output_ids)
            logprobs += [0.0] * num_between
            logprobs += turn.logprobs
            versions += [versions[-1] if versions else 0] * num_between
            versions += turn.weight_versions
        sample = template.with_turn(Turn(message={"role": "assistant", "content": response}), **metadata)
        sample.tokens, sample.response_length = self.ids[: self.num_prompt_tokens + len(mask)], len(mask)
        sample.loss_mask, sample.rollout_log_probs, sample.weight_versions = mask, logprobs, versions
        return sample
