"""Keeps everything that the trained model samples in one attempt at a rollout, including tokens of interrupted calls.

If the agent runs out of time before it returns, its samples are built from this. A call whose prompt begins with all tokens of an
earlier sequence becomes a later turn of that sequence, as in a `Conversation`; any other call begins a sequence of its own.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from vime.rollout.agent_clock import AgentClock
from vime.rollout.traffic import Traffic
from vime.trajectory.sequence import TokenSequence
from vime.types import Column, Integers, Sample, Turn


class Call:
    """A model call in flight: records tokens as they arrive, and stops the agent's clock while the server is lost.

    It is the `vime.serving.reply.Listener` of its request.
    """

    def __init__(
        self,
        prompt_ids: Integers,
        clock: AgentClock,
        traffic: Traffic | None,
        *,
        hear: Callable[[Turn], None] | None = None,
    ) -> None:
        """`hear` is called with tokens as they arrive."""
        self.others: list[Call] = []
        """All calls of the attempt."""
        self._before: Call | None = None
        """An earlier call with whose prompt and reply the prompt begins."""
        self._rest = Column(prompt_ids, np.int32)
        """The prompt, or what of it comes after that."""
        self._num_prompt_tokens = len(prompt_ids)
        self._pieces: list[Turn] = []
        self._clock, self._traffic, self._hear = clock, traffic, hear
        self._is_lost = self._is_finished = False

    @property
    def prompt_ids(self) -> Column[int]:
        """The prompt."""
        parts: list[Column[int]] = []
        call: Call | None = self
        while call is not None:
            parts.append(call._rest)
            call = call._before
            if call is not None:
                parts.append(Column(call.turn.output_ids, np.int32))
        return Column(np.concatenate([part.array for part in reversed(parts)]), np.int32) if len(parts) > 1 else self._rest

    def versions(self, unknown: int) -> set[int]:
        """The weight versions of its tokens, with `unknown` for those that may still arrive."""
        return {*self.turn.weight_versions} | (set() if self._is_finished else {unknown})

    @property
    def turn(self) -> Turn:
        """What the call has produced so far, without prompt and message."""
        return self._pieces[0] if len(self._pieces) == 1 else Turn.joined(self._pieces)

    def finish(self, turn: Turn) -> None:
        """Replaces the pieces with the complete reply, and keeps of the prompt only what it adds to an earlier call.

        Prompts of one conversation contain each other: kept whole, they would take memory with the square of its calls.
        """
        self._pieces, self._is_finished = [turn], True
        any(self._begins_with(earlier) for earlier in reversed(self.others))

    def received(self, piece: Turn) -> None:
        """Records tokens that have arrived."""
        self._pieces.append(piece)
        self.ended()
        if self._hear is not None:
            self._hear(piece)

    def lost(self) -> None:
        """Stops the clock until tokens arrive again: the server is lost, through no fault of the agent."""
        if not self._is_lost:
            self._clock.stop()
        self._is_lost = True

    def took(self, seconds: float) -> None:
        """Counts seconds that have not passed as the agent's time, for a rehearsal."""
        self._clock.advance(seconds)

    def ended(self) -> None:
        """Restarts the clock if it was stopped: no lost server is waited for any more."""
        if self._is_lost:
            self._clock.go()
        self._is_lost = False

    def _begins_with(self, earlier: "Call") -> bool:
        """Whether the prompt begins with all of an earlier call, which then stands for its beginning."""
        if not earlier._is_finished:
            return False
        said, prompt = earlier.turn.output_ids, self._rest
        size = earlier._num_prompt_tokens + len(said)
        if not said or size > len(prompt) or prompt[size - 1] != said[-1]:
            return False
        if not np.array_equal(prompt.array[:size], np.concatenate([earlier.prompt_ids.array, np.asarray(said)])):
            return False
        self._before, self._rest = earlier, Column(prompt.array[size:].copy(), np.int32)
        return True

    @property
    def is_heard(self) -> bool:
        """Whether somebody follows the reply while it arrives."""
        return self._hear is not None

    def is_paused(self) -> bool:
        """Whether servers are silent because of a weight sync."""
        return self._traffic is not None and self._traffic.is_paused()


class Sampled:
    """The calls of one attempt, in the order in which they began."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._tokenizer: Any = None

    def add(self, call: Call, *, tokenizer: Any) -> None:
        """Adds a call that begins."""
        call.others = self._calls
        self._calls.append(call)
        self._tokenizer = tokenizer

    def versions(self, unknown: int) -> set[int]:
        """The weight versions of all tokens, with `unknown` for calls that have not ended."""
        return {version for call in self._calls for version in call.versions(unknown)}

    def samples(self, template: Sample) -> list[Sample]:
        """Trainable sequences that contain every sampled token exactly once; an empty list if nothing was sampled."""
        sequences: list[TokenSequence] = []
        for call in self._calls:
            turn = call.turn
            if not turn.output_ids:
                continue
            prompt_ids = call.prompt_ids
            sequence = next((held for held in reversed(sequences) if held.continues_in(prompt_ids)), None)
            if sequence is None:
                sequence = TokenSequence.begin(prompt_ids)
                sequences.append(sequence)
            sequence.add_environment(prompt_ids[len(sequence.ids) :])
            sequence.add_turn(turn)
        return [sequence.sample(template, self._text(sequence)) for sequence in sequences]

    def _text(self, sequence: TokenSequence) -> str:
        return self._tokenizer.decode(sequence.ids[sequence.num_prompt_tokens :], skip_special_tokens=False)
