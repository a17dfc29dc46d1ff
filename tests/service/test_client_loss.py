"""Losses of the service: each equals a reference that is written out sequence by sequence."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from vime.algorithm.algorithm import Tokens
from vime.config import RunConfig
from vime.service.client_loss import LOSSES, NUMBERS, ChosenLoss, ClientLoss
from vime.service.training_service import loss_config

LENGTHS = (5, 1, 8)


def reference(name: str, parts: list[dict[str, torch.Tensor]], numbers: dict[str, float]) -> torch.Tensor:
    """The sum over sequences of the loss, by the formulas of the Tinker API's documentation."""
    total = torch.zeros(())
    for part in parts:
        p = part["logprobs"]
        if name == "cross_entropy":
            total = total - (p * part["weight"]).sum()
            continue
        q, a = part["logprob"], part["advantage"]
        low, high = numbers.get("clip_low_threshold", 0.0), numbers.get("clip_high_threshold", 0.0)
        ratio = torch.exp(p - q)
        if name == "importance_sampling":
            loss = -ratio * a
        elif name == "ppo":
            loss = -torch.min(ratio * a, torch.clamp(ratio, low, high) * a)
        elif name == "cispo":
            loss = -torch.clamp(ratio, low, high).detach() * a * p
        elif name == "dro":
            loss = -(p * a - 0.5 * numbers["beta"] * (p - q) ** 2)
        else:
            marked = part["sequence_ratio_mask"] != 0
            mean = (p.detach() - q)[marked].mean() if marked.any() else torch.zeros(())
            ratio = torch.exp(mean + p - p.detach())
            loss = -torch.min(ratio * a, torch.clamp(ratio, low, high) * a)
        total = total + loss.sum()
    return total


def client_loss(**options: Any) -> ClientLoss:
    run = RunConfig()
    return ClientLoss(replace(run, algorithm=loss_config(run.algorithm, ChosenLoss(**options))))


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_and_its_gradient_equal_the_reference(name: str):
    generator = torch.Generator().manual_seed(3)
    drawn = {key: torch.randn(sum(LENGTHS), generator=generator) for key in ("logprob", "advantage")}
    logprobs = (0.3 * torch.randn(sum(LENGTHS), generator=generator) + drawn["logprob"]).requires_grad_()
    columns = drawn | {
        "weight": torch.rand(sum(LENGTHS), generator=generator) if name == "cross_entropy" else torch.ones(sum(LENGTHS)),
        "sequence_ratio_mask": torch.randint(0, 2, (sum(LENGTHS),), generator=generator).float(),
    }
    sequences = torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS))
    tokens = Tokens(
        logprobs=logprobs, entropy=logprobs, sequences=sequences, staleness=torch.zeros_like(sequences), columns=columns
    )
    found = (columns["weight"] * client_loss(loss=name, **NUMBERS[name]).loss(tokens).terms["policy"]).sum()
    parts = [
        {"logprobs": logprobs[sequences == number]} | {key: value[sequences == number] for key, value in columns.items()}
        for number in range(len(LENGTHS))
    ]
    expected = reference(name, parts, NUMBERS[name])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(each, logprobs, retain_graph=True)[0] for each in (found, expected)))


def test_several_targets_of_a_position_have_weights_of_their_own():
    logprobs = torch.log_softmax(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), 1).requires_grad_()
    weights = torch.rand(4, 3)
    algorithm = client_loss(num_targets=3)
    assert [kind.shape for kind in algorithm.recorded] == [(2,)]
    assert algorithm.answers_top
    tokens = Tokens(
        logprobs=logprobs[:, 0],
        top=logprobs[:, 1:],
        entropy=logprobs[:, 0],
        sequences=torch.zeros(4, dtype=torch.long),
        staleness=torch.zeros(4),
        columns={"top_ids": torch.tensor([[1, 2]] * 4), "target_weights": weights},
    )
    torch.testing.assert_close(algorithm.loss(tokens).terms["policy"].sum(), -(weights * logprobs).sum())
