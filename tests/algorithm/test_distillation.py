"""Teachers: the advantage and the divergences of the objective, who teaches what, and a term with an average of its own."""

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from vime.algorithm.algorithm import Tokens
from vime.algorithm.batch import build_updates
from vime.algorithm.choice import algorithm_of
from vime.algorithm.distillation import Distillation, drawn_teacher
from vime.algorithm.divergence import LEAST_TAIL, divergence
from vime.config import (
    Aggregation,
    AlgorithmConfig,
    DistillationConfig,
    Divergence,
    RunConfig,
    TeacherConfig,
    TeacherTerm,
    TopKOf,
)
from vime.types import Group, Prompt, Rollout, Sample, StopReason

VOCAB = 12


def run_of(**own: Any) -> RunConfig:
    own = {"teachers": {"solver": TeacherConfig()}, **own}
    return RunConfig(algorithm=AlgorithmConfig(distillation=DistillationConfig(**own)))


def pair(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a student (a leaf) and logprobs of a teacher, [VOCAB], float64."""
    generator = torch.Generator().manual_seed(seed)
    student, teacher = (torch.randn(VOCAB, generator=generator, dtype=torch.float64) * 1.5 for _ in range(2))
    return student.requires_grad_(), teacher.log_softmax(0)


def whole(config: DistillationConfig, student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """The divergence over the whole vocabulary, term by term."""

    def kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return (p.exp() * (p - q)).sum()

    if config.divergence is Divergence.reverse_kl:
        return kl(student, teacher)
    if config.divergence is Divergence.forward_kl:
        return kl(teacher, student)
    mean = (config.mixture * teacher.exp() + (1 - config.mixture) * student.exp()).log()
    return config.mixture * kl(teacher, mean) + (1 - config.mixture) * kl(student, mean)


def over_top(config: DistillationConfig, student: torch.Tensor, teacher: torch.Tensor, num: int) -> torch.Tensor:
    """The divergence over the teacher's `num` likeliest tokens and the rest, with one more place that has no token."""
    ids = teacher.topk(num).indices
    nothing, known = torch.full((1, 1), float("nan")), torch.tensor([[True] * num + [False]])
    own, others = (torch.cat([each[ids].unsqueeze(0), nothing.to(each.dtype)], 1) for each in (student, teacher))
    return divergence(config, own, others, known).sum()


def gradient(value: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(value, logits)[0]


@pytest.mark.parametrize("kind", Divergence)
def test_a_divergence_over_the_likeliest_tokens_grows_to_the_whole_one_and_so_does_its_gradient(kind: Divergence):
    for seed in range(10):
        config, (logits, teacher) = DistillationConfig(divergence=kind, mixture=0.3), pair(seed)
        full = whole(config, logits.log_softmax(0), teacher)
        wanted, values, errors = gradient(full, logits), [], []
        for num in (1, 3, 6, VOCAB - 1, VOCAB):
            found = over_top(config, logits.log_softmax(0), teacher, num)
            values.append(found.item())
            errors.append(float((gradient(found, logits) - wanted).abs().max()))
        assert values[0] >= 0 and all(later > value - 1e-9 for value, later in itertools.pairwise(values[:-1])), "a lower bound"
        assert values[-2:] == [pytest.approx(full.item(), abs=1e-5)] * 2
        assert errors[-2] < 1e-9 and errors[-1] < 20 * LEAST_TAIL < errors[0]


@pytest.mark.parametrize("kind", Divergence)
def test_the_gradient_is_that_of_finite_differences(kind: Divergence):
    config, (logits, teacher) = DistillationConfig(divergence=kind), pair(3)
    assert torch.autograd.gradcheck(lambda each: over_top(config, each.log_softmax(0), teacher, 4), (logits,))


def test_without_the_rest_the_sum_over_the_likeliest_tokens_can_be_negative():
    cut, with_rest = [], []
    for logits, teacher in map(pair, range(20)):
        student, ids = logits.detach().log_softmax(0), teacher.topk(3).indices
        cut.append(float((student[ids].exp() * (student - teacher)[ids]).sum()))
        with_rest.append(float(over_top(DistillationConfig(), student, teacher, 3)))
    assert min(cut) < -0.1 and min(with_rest) >= 0


def tokens_of(student_N: torch.Tensor, sampler_N: torch.Tensor, **columns: torch.Tensor) -> Tokens:
    ones = torch.ones_like(sampler_N)
    given = {"logprob": sampler_N, "weight": ones, "teacher_weight": ones, "advantage": 0 * ones, **columns}
    return Tokens(logprobs=student_N, entropy=ones, sequences=(0 * ones).long(), staleness=(0 * ones).long(), columns=given)


def weighted(algorithm: Distillation, tokens: Tokens) -> torch.Tensor:
    found = algorithm.loss(tokens)
    return torch.stack([(found.weights[name] * term).sum() for name, term in found.terms.items()]).sum()


def test_the_advantage_of_a_token_is_the_teachers_logprob_minus_the_students():
    student = torch.tensor([-0.5, -2.0, -1.0], requires_grad=True)
    teacher = torch.tensor([-0.1, -3.5, -1.0])
    tokens = tokens_of(student, student.detach().clone(), teacher=teacher)
    found = gradient(weighted(Distillation(run_of(coefficient=2.0)), tokens), student)
    torch.testing.assert_close(found, -2.0 * torch.tensor([0.4, -1.5, 0.0]))  # ratio 1: minus coefficient · advantage


def test_its_expected_gradient_is_that_of_the_reverse_kl():
    logits, teacher = pair(5)
    student = logits.log_softmax(0)
    wanted = gradient(whole(DistillationConfig(), student, teacher), logits)
    algorithm, found = Distillation(run_of()), torch.zeros(VOCAB, dtype=torch.float64)
    for token in range(VOCAB):
        own = logits.log_softmax(0)[token : token + 1]
        loss = weighted(algorithm, tokens_of(own, own.detach(), teacher=teacher[token : token + 1]))
        found += student[token].exp().detach() * gradient(loss, logits)
    torch.testing.assert_close(found, wanted)


def test_a_divergence_over_the_likeliest_tokens_as_an_advantage_and_a_log_ratio_as_a_loss_have_no_gradient():
    logits, teacher = pair(7)
    value = float(over_top(DistillationConfig(), logits.detach().log_softmax(0), teacher, 4))
    as_advantage, as_loss = (torch.zeros(VOCAB, dtype=torch.float64) for _ in range(2))
    for token in range(VOCAB):
        own = logits.log_softmax(0)[token]
        probability = own.exp().detach()
        as_advantage += probability * gradient(-value * own, logits)
        as_loss += probability * gradient(logits.log_softmax(0)[token] - teacher[token], logits)
    assert value > 0.05
    assert float(as_advantage.abs().max()) < 1e-12 and float(as_loss.abs().max()) < 1e-12


def sample(mask: list[int], *, is_taught: bool = True, gain: float = 0.5, **more: Any) -> Sample:
    """A sequence whose teacher gives each trained token `gain` more than the student."""
    columns = {"teacher": np.full(sum(mask), -1.0 + gain, np.float32)} if is_taught else {}
    logprobs = [-1.0] * len(mask)
    return Sample(tokens=[1, *range(2, 2 + len(mask))], loss_mask=mask, rollout_log_probs=logprobs, columns=columns, **more)


def group_of(*rollouts: list[Sample], rewards: list[float]) -> Group:
    made = [
        Rollout(rollout_id=number, group_index=0, samples=samples, reward=reward, stop_reason=StopReason.ANSWERED)
        for number, (samples, reward) in enumerate(zip(rollouts, rewards))
    ]
    return Group(prompt=Prompt(index=0, row=0, messages=[], ground_truth=[]), rollouts=made)


def test_the_teachers_term_is_an_average_over_what_is_taught():
    taught, tool, alone = sample([1, 1]), sample([1, 0, 0, 1, 1, 1], gain=-0.1), sample([1] * 10, is_taught=False)
    algorithm = algorithm_of(run_of(reward_coefficient=1.0))
    (update,), metrics = build_updates(algorithm, [group_of([taught, tool], [alone], rewards=[1.0, 0.0])])
    assert [each.columns["weight"] for each in update] == [1 / 16] * 3
    assert [each.columns["teacher_weight"] for each in update] == [1 / 6, 1 / 6, 0.0]
    assert metrics["train/taught_share"] == pytest.approx(6 / 16)
    assert metrics["train/teacher_kl"] == pytest.approx(-(2 * 0.5 - 4 * 0.1) / 6)


def test_the_share_of_each_of_several_teachers_is_shown():
    teachers = {name: TeacherConfig(seats=[name]) for name in ("white", "black", "lost")}
    group = group_of([sample([1], seat="white"), sample([1, 1, 1], seat="black")], rewards=[0.0])
    _, metrics = build_updates(algorithm_of(run_of(teachers=teachers)), [group])
    assert [metrics[f"train/taught_share_{name}"] for name in teachers] == [0.25, 0.75, 0.0]


@pytest.mark.parametrize("reward_coefficient", [0.0, 1.0])
def test_equal_rewards_teach_nothing_and_a_teacher_does(reward_coefficient: float):
    algorithm = algorithm_of(run_of(reward_coefficient=reward_coefficient))
    group = group_of([sample([1, 1])], [sample([1, 1, 1], is_taught=False)], rewards=[0.0, 0.0])
    (update,), metrics = build_updates(algorithm, [group])
    assert [each.rollout_id for each in update] == [0] and metrics["train/num_samples_left_out"] == 1
    assert ("train/groups_without_signal_share" in metrics) is (reward_coefficient > 0)


def test_alone_the_teachers_term_is_the_loss_and_beside_rewards_it_is_added():
    student = torch.tensor([-0.5, -2.0], requires_grad=True)
    columns = {"teacher": torch.tensor([-0.1, -3.5]), "advantage": torch.tensor([1.0, -1.0])}
    tokens = tokens_of(student, student.detach().clone(), **columns)
    alone = gradient(weighted(Distillation(run_of()), tokens), student)
    both = gradient(weighted(Distillation(run_of(reward_coefficient=3.0)), tokens), student)
    torch.testing.assert_close(both - alone, 3.0 * torch.tensor([-1.0, 1.0]))


def test_the_loss_over_likeliest_tokens_is_the_divergence_of_their_columns():
    logits, teacher = pair(1)
    ids = teacher.topk(5).indices
    run = run_of(term=TeacherTerm.loss, divergence=Divergence.forward_kl, top_k=5)
    top = logits.log_softmax(0)[ids].unsqueeze(0)
    columns = {"teacher": teacher[:1], "teacher_ids": ids.unsqueeze(0), "teacher_logprobs": teacher[ids].unsqueeze(0)}
    tokens = tokens_of(top[:, 0], top[:, 0].detach(), **columns)
    tokens.top = top
    algorithm = Distillation(run)
    assert algorithm.top_column == "teacher_ids" and {kind.name: kind.shape for kind in algorithm.columns}["teacher_ids"] == (5,)
    assert weighted(algorithm, tokens).item() == pytest.approx(
        over_top(run.algorithm.distillation, logits.log_softmax(0), teacher, 5).item()
    )


def test_the_loss_over_the_students_likeliest_tokens_reads_what_the_sampler_recorded():
    logits, teacher = pair(1)
    ids = logits.detach().topk(5).indices
    run = run_of(term=TeacherTerm.loss, top_k=5, top_k_of=TopKOf.student)
    run.rollout.num_logprobs = 5
    top = logits.log_softmax(0)[ids].unsqueeze(0)
    columns = {"teacher": teacher[:1], "top_ids": ids.unsqueeze(0), "teacher_logprobs": teacher[ids].unsqueeze(0)}
    tokens = tokens_of(top[:, 0], top[:, 0].detach(), **columns)
    tokens.top = top
    algorithm = Distillation(run)
    assert algorithm.top_column == "top_ids" and [(kind.name, kind.shape) for kind in algorithm.recorded] == [("top_ids", (5,))]
    assert "teacher_ids" not in {kind.name for kind in algorithm.columns}
    known = torch.ones(1, 5, dtype=torch.bool)
    expected = divergence(run.algorithm.distillation, top, teacher[ids].unsqueeze(0), known)
    assert weighted(algorithm, tokens).item() == pytest.approx(expected.sum().item())


@pytest.mark.parametrize("kind", Divergence)
@pytest.mark.parametrize("top_k_of", TopKOf)
def test_an_untaught_sequence_adds_nothing_to_the_loss(kind: Divergence, top_k_of: TopKOf):
    logits, teacher = pair(1)
    ids = teacher.topk(3).indices
    algorithm = Distillation(run_of(term=TeacherTerm.loss, divergence=kind, top_k=3, top_k_of=top_k_of))
    taught = {"teacher": teacher[:1], "teacher_weight": torch.ones(1), "teacher_logprobs": teacher[ids].unsqueeze(0)}
    untaught = {each.name: torch.full((1, *each.shape), each.fill or 0.0) for each in algorithm.columns}
    taught["top_ids"] = untaught["top_ids"] = ids.unsqueeze(0)  # which the sampler records for both
    taught["teacher_ids"] = ids.unsqueeze(0)
    found = []
    for columns in (taught, {name: torch.cat([taught[name], fill]) for name, fill in untaught.items()}):
        top = logits.log_softmax(0)[ids].expand(len(columns["teacher"]), -1)
        tokens = tokens_of(top[:, 0], top[:, 0].detach(), **columns)
        tokens.top = top
        found.append(gradient(weighted(algorithm, tokens), logits))
    torch.testing.assert_close(found[1], found[0])


def test_teachers_are_chosen_by_data_set_and_seat_and_drawn_by_weight():
    config = DistillationConfig(
        teachers={
            "maths": TeacherConfig(datasets=["sums", "proofs"]),
            "black": TeacherConfig(datasets=["chess"], seats=["black"]),
            "rare": TeacherConfig(datasets=["words"], weight=1.0),
            "usual": TeacherConfig(datasets=["words"], weight=3.0),
        }
    )

    def draw(dataset: str, *, seat: str = "", rollout_id: int = 0) -> str | None:
        return drawn_teacher(config, dataset=dataset, seat=seat, seed=0, rollout_id=rollout_id)

    assert draw("sums") == draw("proofs") == "maths"
    assert draw("chess", seat="black") == "black" and draw("chess", seat="white") is None and draw("other") is None
    drawn = [draw("words", rollout_id=number) for number in range(2000)]
    assert drawn == [draw("words", rollout_id=number) for number in range(2000)], "a run that is resumed draws the same"
    share = Counter(drawn)["usual"] / 2000
    assert abs(share - 0.75) < 4 * math.sqrt(0.75 * 0.25 / 2000)


@pytest.mark.parametrize("aggregation", [each for each in Aggregation if each is not Aggregation.constant])
def test_weights_of_the_taught_sum_to_one_under_every_average(aggregation: Aggregation):
    run = run_of()
    run.algorithm.aggregation = aggregation
    group = group_of([sample([1, 1]), sample([1] * 3, is_taught=False)], [sample([1, 0, 1, 1])], rewards=[0.0, 0.0])
    (update,), _ = build_updates(algorithm_of(run), [group])
    assert sum(each.columns["teacher_weight"] * each.num_trained_tokens for each in update) == pytest.approx(1.0)
