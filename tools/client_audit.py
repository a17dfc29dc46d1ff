"""Checks that everything sampled in a session is trained exactly once, behind the prompt that the engine saw.

It knows only the session's trained samples: its samples. What was sampled comes from the model (`ScriptedModel.asked`).
"""

from dataclasses import dataclass, field

import numpy as np

from vime.gateway.session import AgentSession
from vime.types import Sample, Turn

Asked = tuple[list[int], Turn]


@dataclass(kw_only=True, slots=True)
class Audit:
    """The contents of a session's samples. Example: `Audit(num_sequences=2, num_tokens=310, problems=[])`."""

    num_sequences: int = 0
    num_tokens: int = 0
    """Trained tokens."""
    num_not_delivered: int = 0
    """Turns that no client received; they are not trained."""
    num_tool_calls: int = 0
    forks: dict[str, int] = field(default_factory=dict)
    """Sequences but the first that begin anew, by cause."""
    problems: list[str] = field(default_factory=list)


def audit(session: AgentSession, samples: list[Sample], asked: list[Asked]) -> Audit:
    """Compares the samples of a session with the requests to its model and the sampled replies."""
    found = Audit(forks=dict(session.dialogue.statistics.forks))
    replies = session.dialogue.calls
    found.num_tool_calls = sum(len(reply.message.get("tool_calls") or ()) for reply in replies)
    found.num_not_delivered = sum(not reply.delivered for reply in replies)
    left = [turn for turn in asked if len(turn[1].output_ids)]
    found.num_sequences = len(samples)
    for number, sample in enumerate(samples):
        try:
            sample.to_columns()
            sample.validate()
            found.num_tokens += _trained(sample, left)
        except (ValueError, AssertionError) as error:
            found.problems.append(f"sequence {number}: {error}")
    if len(left) != found.num_not_delivered:
        found.problems.append(f"{len(left)} turns are not trained, {found.num_not_delivered} were not delivered")
    return found


def _trained(sample: Sample, left: list[Asked]) -> int:
    """Takes the turns that a sequence trains from those that are left; returns the number of their tokens.

    Raises ValueError for a trained token that no turn sampled behind the tokens before it.
    """
    tokens, mask = np.asarray(sample.tokens), np.asarray(sample.loss_mask)
    logprobs = np.asarray(sample.rollout_log_probs, dtype=np.float32)
    start, place, num_trained = len(tokens) - len(mask), 0, 0
    while place < len(mask):
        if not mask[place]:
            place += 1
            continue
        number = next((n for n, turn in enumerate(left) if _is_at(turn, tokens, start + place, logprobs[place:])), None)
        if number is None:
            raise ValueError(f"no turn was sampled behind the first {start + place} tokens")
        size = len(left.pop(number)[1].output_ids)
        if not mask[place : place + size].all():
            raise ValueError(f"the turn behind the first {start + place} tokens is trained in part")
        place, num_trained = place + size, num_trained + size
    return num_trained


def _is_at(asked: Asked, tokens: np.ndarray, start: int, logprobs: np.ndarray) -> bool:
    """True if a turn was sampled behind the first `start` tokens, and these are its tokens and logprobs."""
    prompt, turn = asked
    ids, expected = np.asarray(turn.output_ids), np.asarray(turn.logprobs, dtype=np.float32)
    end = start + len(ids)
    return (
        len(prompt) == start
        and end <= len(tokens)
        and np.array_equal(tokens[:start], prompt)
        and np.array_equal(tokens[start:end], ids)
        and np.array_equal(logprobs[: len(ids)], expected)
    )
