"""What the trained model has sampled in one attempt at a rollout, call by call, tokens of calls that were cut included.

If the agent's time is over before it returns, its samples are made of this. A call whose prompt goes on from all tokens of
another is a later turn of the same sequence, as in a conversation whose token ids are held; any other begins its own sequence.
"""

from dataclasses import dataclass, field
from typing import Any

from vime.types import Sample, Turn


@dataclass(kw_only=True, slots=True)
class SampledCall:
    """One model call as far as it has come.

    Example: `SampledCall(prompt_ids=[1, 5], output_ids=[9], logprobs=[-0.1], weight_versions=[3])`.
    """

    prompt_ids: list[int]
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    weight_versions: list[int] = field(default_factory=list)

    def extend(self, output_ids: list[int], logprobs: list[float], weight_versions: list[int]) -> None:
        """Adds tokens that have come."""
        self.output_ids += output_ids
        self.logprobs += logprobs
        self.weight_versions += weight_versions


@dataclass(kw_only=True, slots=True)
class _Sequence:
    """Calls that go on from each other."""

    tokens: list[int]
    num_prompt_tokens: int
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def goes_on_in(self, prompt_ids: list[int]) -> bool:
        """Whether a prompt begins with all of it."""
        return len(prompt_ids) >= len(self.tokens) and prompt_ids[: len(self.tokens)] == self.tokens

    def add(self, call: SampledCall) -> None:
        """Adds what stands in a call's prompt behind it, which nobody sampled, and the call's tokens."""
        between = call.prompt_ids[len(self.tokens) :]
        self.tokens += [*between, *call.output_ids]
        self.mask += [0] * len(between) + [1] * len(call.output_ids)
        self.logprobs += [0.0] * len(between) + call.logprobs
        before = self.versions[-1] if self.versions else call.weight_versions[0]
        self.versions += [before] * len(between) + call.weight_versions


class Sampled:
    """The calls of one attempt, in the order in which they began."""

    def __init__(self) -> None:
        self._calls: list[SampledCall] = []
        self._tokenizer: Any = None

    def begin(self, prompt_ids: list[int], *, tokenizer: Any) -> SampledCall:
        """A call begins."""
        call = SampledCall(prompt_ids=prompt_ids)
        self._calls.append(call)
        self._tokenizer = tokenizer
        return call

    def samples(self, template: Sample) -> list[Sample]:
        """Every sampled token in exactly one trainable sequence; none if nothing was sampled."""
        sequences: list[_Sequence] = []
        for call in self._calls:
            if not call.output_ids:
                continue
            before = next((sequence for sequence in reversed(sequences) if sequence.goes_on_in(call.prompt_ids)), None)
            if before is None:
                before = _Sequence(tokens=list(call.prompt_ids), num_prompt_tokens=len(call.prompt_ids))
                sequences.append(before)
            before.add(call)
        return [self._sample(template, sequence) for sequence in sequences]

    def _sample(self, template: Sample, sequence: _Sequence) -> Sample:
        response = sequence.tokens[sequence.num_prompt_tokens :]
        turn = Turn(
            prompt_ids=sequence.tokens[: sequence.num_prompt_tokens],
            output_ids=response,
            logprobs=sequence.logprobs,
            weight_versions=sequence.versions,
            finish_reason="",
            message={"role": "assistant", "content": self._tokenizer.decode(response, skip_special_tokens=False)},
        )
        sample = template.with_turn(turn)
        sample.loss_mask = sequence.mask
        return sample
