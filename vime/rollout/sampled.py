"""What the trained model has sampled in one attempt at a rollout, call by call, tokens of calls that were cut included.

If the agent's time is over before it returns, its samples are made of this. A call whose prompt goes on from all tokens of
another is a later turn of the same sequence, as in a conversation whose token ids are held; any other begins its own sequence.
"""

from typing import Any

from vime.rollout.agent_clock import AgentClock
from vime.rollout.sequence import TokenSequence
from vime.rollout.traffic import Traffic
from vime.types import Integers, Sample, Turn


class Call:
    """A model call under way (a `vime.serving.reply.Listener`): notes the tokens that come, and stops the agent's clock during
    a loss."""

    def __init__(self, prompt_ids: Integers, clock: AgentClock, traffic: Traffic | None) -> None:
        self.prompt_ids = prompt_ids
        self._pieces: list[Turn] = []
        self._clock, self._traffic = clock, traffic
        self._is_lost = False

    @property
    def turn(self) -> Turn:
        """What it has given until now, without prompt and message."""
        return self._pieces[0] if len(self._pieces) == 1 else Turn.joined(self._pieces)

    def finish(self, turn: Turn) -> None:
        """The reply is complete."""
        self._pieces = [turn]

    def received(self, piece: Turn) -> None:
        """Tokens have come."""
        self._pieces.append(piece)
        self.ended()

    def lost(self) -> None:
        """The server is lost: until tokens come again, the agent waits through no fault of its own."""
        if not self._is_lost:
            self._clock.stop()
        self._is_lost = True

    def ended(self) -> None:
        """Nobody waits for a lost server any more."""
        if self._is_lost:
            self._clock.go()
        self._is_lost = False

    def is_paused(self) -> bool:
        """Whether servers are silent because of a weight sync."""
        return self._traffic is not None and self._traffic.is_paused()


class Sampled:
    """The calls of one attempt, in the order in which they began."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._tokenizer: Any = None

    def add(self, call: Call, *, tokenizer: Any) -> None:
        """A call begins."""
        self._calls.append(call)
        self._tokenizer = tokenizer

    def samples(self, template: Sample) -> list[Sample]:
        """Every sampled token in exactly one trainable sequence; none if nothing was sampled."""
        sequences: list[TokenSequence] = []
        for call in self._calls:
            turn = call.turn
            if not turn.output_ids:
                continue
            sequence = next((held for held in reversed(sequences) if held.continues_in(call.prompt_ids)), None)
            if sequence is None:
                sequence = TokenSequence.begin(call.prompt_ids)
                sequences.append(sequence)
            sequence.add_environment(call.prompt_ids[len(sequence.ids) :])
            sequence.add_turn(turn)
        return [sequence.sample(template, self._text(sequence)) for sequence in sequences]

    def _text(self, sequence: TokenSequence) -> str:
        return self._tokenizer.decode(sequence.ids[sequence.num_prompt_tokens :], skip_special_tokens=False)
