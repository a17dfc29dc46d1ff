"""`Datum`: one sequence that a client trains on, checked before it comes near the trainer, and as a sequence of the trainer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vime.errors import BadRequestError
from vime.service.client_loss import CLOSED, CROSS_ENTROPY, LOSSES, NUMBERS, RATIO_MASK, WEIGHTS, ChosenLoss
from vime.types import Sample, Turn

TARGETS, WEIGHT_INPUT, LOGPROBS, ADVANTAGES, SEQUENCE_MASK = (
    "target_tokens",
    "weights",
    "logprobs",
    "advantages",
    "sequence_ratio_mask",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Datum:
    """Tokens of a sequence and what a loss reads at each of them: the target and its weight, or its logprob and advantage.

    Example: tokens 1 5 9 whose next tokens are 5 9 2, the last two with a weight:
    `Datum(tokens=[1, 5, 9], inputs={"target_tokens": [5, 9, 2], "weights": [0.0, 1.0, 1.0]})`.
    """

    tokens: Sequence[int] | np.ndarray
    """Ids [L]."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Arrays by name, [L] each; targets and weights of cross_entropy may be [L, K]."""

    @classmethod
    def sampled(cls, prompt: Sequence[int], turn: Turn, advantage: float) -> "Datum":
        """A sampled reply with one advantage for all of its tokens; those of the prompt have none."""
        before, reply = [0.0] * (len(prompt) - 1), list(turn.output_ids)
        tokens = [*prompt, *reply]
        inputs = {
            TARGETS: tokens[1:],
            LOGPROBS: [*before, *turn.logprobs],
            ADVANTAGES: [*before, *[advantage] * len(reply)],
        }
        return cls(tokens=tokens[:-1], inputs=inputs)


def chosen_loss(name: str, numbers: Mapping[str, float], data: Sequence[Datum]) -> ChosenLoss:
    """The loss of a request for these data. Raises BadRequestError for a loss or a number that there is not."""
    if name in CLOSED:
        raise BadRequestError(f"loss_fn={name} is not supported: {CLOSED[name]}")
    if name not in LOSSES:
        raise BadRequestError(f"loss_fn={name} is unknown: use {', '.join(LOSSES)}")
    if unknown := sorted(set(numbers) - set(NUMBERS[name])):
        takes = ", ".join(NUMBERS[name]) or "no numbers"
        raise BadRequestError(f"loss_fn_config.{unknown[0]}={numbers[unknown[0]]}: {name} takes {takes}")
    if bad := [key for key, value in numbers.items() if not np.isfinite(value)]:
        raise BadRequestError(f"loss_fn_config.{bad[0]}={numbers[bad[0]]}: it must be finite")
    widths = {np.shape(datum.inputs.get(TARGETS, ()))[1:] for datum in data}
    if len(widths) > 1:
        raise BadRequestError("target_tokens have as many targets at each position in all data of a request")
    (width,) = widths or {()}
    return ChosenLoss(loss=name, num_targets=width[0] if width else 1, **(NUMBERS[name] | dict(numbers)))


def as_sample(datum: Datum, chosen: ChosenLoss, *, vocab_size: int, max_tokens: int, where: str) -> Sample:
    """The datum as a sequence of the trainer, in which every position is trained.

    Raises BadRequestError, which begins with `where`, if an input is missing, too many, of another length, or out of its range.
    """

    def refused(reason: str) -> BadRequestError:
        return BadRequestError(f"{where}: {reason}")

    tokens = np.asarray(datum.tokens)
    if tokens.ndim != 1 or not len(tokens):
        raise refused(f"model_input is a list of tokens, and not empty (its shape is {tokens.shape})")
    if len(tokens) > max_tokens:
        raise refused(f"model_input has {len(tokens)} tokens, more than the {max_tokens} of the model's context")
    taken = {
        CROSS_ENTROPY: (TARGETS, WEIGHT_INPUT),
        "gspo": (TARGETS, LOGPROBS, ADVANTAGES, SEQUENCE_MASK),
    }.get(chosen.loss, (TARGETS, LOGPROBS, ADVANTAGES))
    if missing := [name for name in taken if name not in datum.inputs and name != WEIGHT_INPUT]:
        raise refused(f"loss_fn_inputs lack {missing[0]}, which {chosen.loss} reads")
    if unknown := sorted(set(datum.inputs) - set(taken)):
        raise refused(f"loss_fn_inputs.{unknown[0]} is not read by {chosen.loss}, which takes {', '.join(taken)}")
    several = chosen.num_targets > 1
    if several and chosen.loss != CROSS_ENTROPY:
        raise refused(f"{chosen.loss} has one target at each position, cross_entropy several")
    shape = (len(tokens), chosen.num_targets) if np.ndim(datum.inputs[TARGETS]) == 2 else (len(tokens),)
    arrays = {name: np.asarray(datum.inputs[name]) for name in taken if name in datum.inputs}
    for name, array in arrays.items():
        if array.shape != shape:
            raise refused(f"loss_fn_inputs.{name} has the shape {array.shape}, expected is {shape}")
        if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
            raise refused(f"loss_fn_inputs.{name} has values that are no finite numbers")
    targets = arrays.pop(TARGETS).reshape(len(tokens), chosen.num_targets)
    weights = arrays.pop(WEIGHT_INPUT, np.ones(shape, np.float32)).reshape(targets.shape).astype(np.float32)
    for name, array in (("model_input", tokens), ("loss_fn_inputs.target_tokens", targets[weights != 0])):
        if array.dtype.kind not in "iu" or (len(array) and not 0 <= array.min() <= array.max() < vocab_size):
            raise refused(f"{name} has values that are no tokens: ids are 0 to {vocab_size - 1}")
    targets = np.where((targets >= 0) & (targets < vocab_size), targets, 0).astype(np.int32)  # those without weight
    columns: dict[str, Any] = {"target": targets[:, 0], "weight": 1.0 if several else weights[:, 0]}
    if several:
        columns |= {"top_ids": targets[:, 1:], WEIGHTS.name: weights}
    if LOGPROBS in arrays:
        columns |= {"logprob": arrays[LOGPROBS].astype(np.float32), "advantage": arrays[ADVANTAGES].astype(np.float32)}
    if SEQUENCE_MASK in arrays:
        columns[RATIO_MASK.name] = arrays[SEQUENCE_MASK].astype(np.float32)
    # the token that nothing follows is not in the context of any other, so that its id is of no importance
    return Sample(tokens=[*tokens.tolist(), int(targets[-1, 0])], loss_mask=[1] * len(tokens), columns=columns)
