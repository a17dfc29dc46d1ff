"""Data of clients: what fits becomes a sequence of the trainer, and all else is refused with the place and the reason."""

from typing import Any

import numpy as np
import pytest

from vime.errors import BadRequestError
from vime.service.client_loss import LOSSES, ChosenLoss
from vime.service.datum import Datum, as_sample, chosen_loss
from vime.types.column import TARGET, WEIGHT

LIMITS: dict[str, Any] = {"vocab_size": 100, "max_tokens": 8, "where": "datum 0"}
RL = {"target_tokens": [5, 9, 2], "logprobs": [-1.0, -2.0, -0.5], "advantages": [0.0, 1.0, 1.0]}


def sample_of(loss: str = "cross_entropy", tokens: Any = (1, 5, 9), **inputs: Any) -> Any:
    datum = Datum(tokens=tokens, inputs=inputs)
    return as_sample(datum, chosen_loss(loss, {}, [datum]), **LIMITS)


def test_every_position_of_a_datum_is_trained_on_its_target():
    sample = sample_of(target_tokens=[5, 9, 2], weights=[0.0, 0.5, 1.0])
    assert list(sample.tokens) == [1, 5, 9, 2]
    assert sample.num_trained_tokens == 3
    assert sample.values(TARGET).tolist() == [5, 9, 2]
    assert sample.values(WEIGHT).tolist() == [0.0, 0.5, 1.0]


def test_targets_need_not_be_the_next_tokens_and_weights_are_one_by_default():
    sample = sample_of(target_tokens=[7, 7, 7])
    assert sample.values(TARGET).tolist() == [7, 7, 7]
    assert sample.values(WEIGHT).tolist() == [1.0, 1.0, 1.0]


def test_several_targets_go_with_the_first_one():
    sample = sample_of(target_tokens=[[5, 6], [9, 8], [2, 3]], weights=np.full((3, 2), 0.5))
    assert sample.values(TARGET).tolist() == [5, 9, 2]
    assert np.asarray(sample.columns["top_ids"]).tolist() == [[6], [8], [3]]


def test_targets_without_a_weight_may_be_anything():
    assert sample_of(target_tokens=[-100, 9, 2], weights=[0.0, 1.0, 1.0]).values(TARGET).tolist() == [0, 9, 2]


@pytest.mark.parametrize(
    ("loss", "changed", "reason"),
    [
        ("cross_entropy", {"target_tokens": [5, 9]}, r"target_tokens has the shape \(2,\), expected is \(3,\)"),
        ("cross_entropy", {"target_tokens": [5, 9, 100]}, "no tokens: ids are 0 to 99"),
        ("cross_entropy", {"target_tokens": [5.0, 9.0, 2.0]}, "no tokens"),
        ("cross_entropy", {"target_tokens": [5, 9, 2], "weights": [1.0, float("nan"), 1.0]}, "no finite numbers"),
        ("cross_entropy", {"target_tokens": [5, 9, 2], "advantages": [1.0] * 3}, "advantages is not read by cross_entropy"),
        ("cross_entropy", {"tokens": [], "target_tokens": []}, "not empty"),
        ("cross_entropy", {"tokens": [[1, 2]], "target_tokens": [5]}, "not empty"),
        ("cross_entropy", {"tokens": [1] * 9, "target_tokens": [5] * 9}, "9 tokens, more than the 8"),
        ("cross_entropy", {"tokens": [1, -5, 9], "target_tokens": [5, 9, 2]}, "model_input has values that are no tokens"),
        ("ppo", RL | {"weights": [1.0] * 3}, "weights is not read by ppo"),
        ("ppo", {"target_tokens": [5, 9, 2], "logprobs": [-1.0] * 3}, "lack advantages, which ppo reads"),
        ("gspo", RL, "lack sequence_ratio_mask"),
        ("importance_sampling", {name: np.stack([value] * 2, 1) for name, value in RL.items()}, "has one target"),
    ],
)
def test_what_does_not_fit_is_refused(loss: str, changed: dict[str, Any], reason: str):
    with pytest.raises(BadRequestError, match=reason):
        sample_of(loss, **changed)


@pytest.mark.parametrize(
    ("loss", "numbers", "reason"),
    [
        ("stable_reinforce", {}, "its formula is not public"),
        ("reinforce", {}, f"is unknown: use {', '.join(LOSSES)}"),
        ("ppo", {"beta": 0.1}, "ppo takes clip_low_threshold, clip_high_threshold"),
        ("dro", {"beta": float("inf")}, "must be finite"),
    ],
)
def test_losses_and_numbers_that_there_are_not_are_refused(loss: str, numbers: dict[str, float], reason: str):
    with pytest.raises(BadRequestError, match=reason):
        chosen_loss(loss, numbers, [Datum(tokens=[1], inputs={"target_tokens": [2]})])


def test_numbers_have_defaults():
    assert chosen_loss("dro", {}, []) == ChosenLoss(loss="dro", beta=0.05)
