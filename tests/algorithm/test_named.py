"""Every algorithm as `conf/algorithm` composes it equals its paper's formula, written out per rollout, with its gradient."""

import math
import random
import statistics

import numpy as np
import pytest
import torch

from vime.algorithm.algorithm import Tokens
from vime.algorithm.batch import build_updates, sequences_of
from vime.algorithm.choice import algorithm_of
from vime.algorithm.sft import Supervised
from vime.config import RunConfig
from vime.preflight.compose import compose_run
from vime.types import Group, Prompt, Rollout, Sample, StopReason

Logprobs = list[torch.Tensor]
"""Current logprobs of a response's tokens; leaves of the graph."""
NAMES = ("grpo", "dr_grpo", "dapo", "rloo", "gspo", "cispo", "sapo", "gmpo", "ipo", "dppo", "dppo_kl", "maxrl")
NAMES += ("reinforce_plus_plus", "reinforce_plus_plus_baseline", "ppo", "sao")


class Problem:
    """Groups of one-sample rollouts with random lengths, rewards, and current, old and reference logprobs."""

    def __init__(self, seed: int) -> None:
        generator = random.Random(seed)
        self.rewards = [[float(generator.random() < 0.5) for _ in range(size)] for size in (4, 3, 2)]
        self.rewards[0][:2] = [1.0, 0.0]
        self.old, self.reference, self.current, self.values = {}, {}, {}, {}
        for number in range(9):
            base = [-generator.uniform(0.9, 3.0) for _ in range(generator.randint(1, 6))]
            self.old[number] = [value + generator.gauss(0, 0.2) for value in base]
            self.reference[number] = [value + generator.gauss(0, 0.2) for value in base]
            self.current[number] = [leaf(value + generator.gauss(0, 0.2)) for value in base]
            self.values[number] = [generator.gauss(0.5, 0.3) for _ in base]

    def groups(self) -> list[Group]:
        numbers = iter(range(9))
        return [
            Group(
                prompt=Prompt(index=index, row=index, messages=[], ground_truth=[]),
                rollouts=[self._rollout(next(numbers), index, reward) for reward in rewards],
            )
            for index, rewards in enumerate(self.rewards)
        ]

    def _rollout(self, number: int, group: int, reward: float) -> Rollout:
        length = len(self.old[number])
        sample = Sample(
            tokens=[number] * (length + 1), response_length=length, loss_mask=[1] * length, rollout_log_probs=self.old[number]
        )
        return Rollout(rollout_id=number, group_index=group, samples=[sample], reward=reward, stop_reason=StopReason.ANSWERED)


def leaf(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def ours(run: RunConfig, problem: Problem) -> torch.Tensor:
    """The loss as driver and trainer put it together, but in float64 and in one micro-batch."""
    algorithm, groups = algorithm_of(run), problem.groups()
    of_rollout = {rollout.rollout_id: rollout.samples[0].tokens[0] for group in groups for rollout in group.rollouts}
    known = [
        s.with_columns(reference=problem.reference[number], value=problem.values[number])
        for s in sequences_of(groups)
        for number in [of_rollout[s.rollout_id]]
    ]
    (samples,), _ = build_updates(algorithm, groups, algorithm.advantages(groups, known))
    numbers = [of_rollout[sample.rollout_id] for sample in samples]
    lengths = [len(problem.old[number]) for number in numbers]
    columns = {name: per_token(samples, lengths, name) for name in ("advantage", "weight")}
    old, reference = (flat([table[number] for number in numbers]) for table in (problem.old, problem.reference))
    columns |= {"logprob": old, "old": old} | ({"reference": reference} if run.algorithm.kl_coefficient else {})
    current = torch.stack([token for number in numbers for token in problem.current[number]])
    sequences = torch.arange(len(samples)).repeat_interleave(torch.tensor(lengths))
    nothing = torch.zeros_like(current)
    tokens = Tokens(logprobs=current, entropy=nothing, sequences=sequences, staleness=nothing, columns=columns)
    (loss,) = algorithm.loss(tokens).terms.values()
    return (columns["weight"] * loss).sum()


def flat(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor([value for row in rows for value in row], dtype=torch.float64)


def per_token(samples: list[Sample], lengths: list[int], name: str) -> torch.Tensor:
    values = [np.broadcast_to(sample.columns[name], (length,)) for sample, length in zip(samples, lengths)]
    return flat([value.tolist() for value in values])


def papers(name: str, problem: Problem, *, budget: int) -> torch.Tensor:
    """The objective as its paper writes it, with a minus sign."""
    advantages: dict[int, float] = {}
    number = 0
    for rewards in problem.rewards:
        for position, reward in enumerate(rewards):
            others = rewards[:position] + rewards[position + 1 :]
            deviation = statistics.stdev(rewards)
            normalized = (reward - statistics.mean(rewards)) / (deviation + 1e-6)
            advantages[number] = {
                **{each: normalized for each in ("grpo", "dapo", "gspo", "cispo", "sapo", "gmpo")},
                **{each: reward - statistics.mean(rewards) for each in ("dr_grpo", "ipo", "dppo", "dppo_kl")},
                "maxrl": (reward - statistics.mean(rewards)) / (statistics.mean(rewards) or 1.0),
                "rloo": reward - statistics.mean(others),
                **dict.fromkeys(("reinforce_plus_plus", "ppo", "sao"), reward),
                "reinforce_plus_plus_baseline": reward - statistics.mean(rewards),
            }[name]
            number += 1
    per_token = {n: [value] * len(problem.old[n]) for n, value in advantages.items()}
    if name in ("ppo", "sao"):  # the reward is at the last token; lambda is 1 for PPO, and 0 for SAO's short rollouts
        for n, values in problem.values.items():
            targets = [*values[1:], advantages[n]] if name == "sao" else [advantages[n]] * len(values)
            per_token[n] = [target - value for target, value in zip(targets, values)]
    if name == "reinforce_plus_plus":
        for n, values in per_token.items():
            kl = [o - r for o, r in zip(problem.old[n], problem.reference[n])]
            per_token[n] = [value - 1e-3 * sum(kl[t:]) for t, value in enumerate(values)]
    if name.startswith("reinforce_plus_plus") or name == "ppo":
        every = [value for values in per_token.values() for value in values]
        mean, deviation = statistics.mean(every), statistics.pstdev(every)
        per_token = {n: [(value - mean) / deviation for value in values] for n, values in per_token.items()}
    num_tokens = sum(map(len, per_token.values()))
    total = torch.zeros((), dtype=torch.float64)
    for n, values in per_token.items():
        objective = of_one_response(name, problem.current[n], problem.old[n], problem.reference[n], values)
        if name in ("dr_grpo", "rloo", "dppo", "dppo_kl"):
            total = total + objective / budget / len(per_token)
        elif name in ("gspo", "gmpo"):
            total = total + objective / len(per_token)
        elif name == "sapo":
            total = total + objective / len(values) / len(per_token)
        else:
            total = total + objective / num_tokens
    return -total


def of_one_response(
    name: str, current: Logprobs, old: list[float], reference: list[float], advantages: list[float]
) -> torch.Tensor:
    """The sum over tokens, GSPO's and GMPO's single term for the sequence."""
    if name == "gspo":
        log_ratio = sum((c - o for c, o in zip(current, old)), torch.zeros((), dtype=torch.float64)) / len(old)
        return clipped(torch.exp(log_ratio), advantages[0], 1 - 3e-4, 1 + 4e-4)
    if name == "gmpo":
        sign = 1.0 if advantages[0] > 0 else -1.0
        ratios = [clipped(torch.exp(c - o), sign, 0.6703, 1.4918) * sign for c, o in zip(current, old)]
        return torch.stack(ratios).prod() ** (1 / len(old)) * advantages[0]
    total = torch.zeros((), dtype=torch.float64)
    for c, o, r, advantage in zip(current, old, reference, advantages):
        ratio = torch.exp(c - o)
        if name == "cispo":
            total = total + min(float(ratio.detach()), 5.0) * advantage * c
        elif name == "sapo":
            tau = 1.0 if advantage > 0 else 1.05
            total = total + 4 / tau / (1 + torch.exp(-tau * (ratio - 1))) * advantage
        elif name == "sao":
            total = total + (ratio * advantage if 0.2 <= float(ratio.detach()) <= 4.0 else 0.0)
        elif name in ("ipo", "dppo", "dppo_kl"):
            total = total + (0.0 if is_masked(name, math.exp(c.detach()), math.exp(o), advantage) else 1.0) * ratio * advantage
        else:
            total = total + clipped(ratio, advantage, 0.8, 1.28 if name == "dapo" else 1.2)
        if name == "reinforce_plus_plus_baseline":
            total = total - 1e-3 * (c - r) ** 2 / 2
    return total


def is_masked(name: str, p: float, q: float, advantage: float) -> bool:
    """True for a token that IPO or DPPO drops: p is the trainer's probability, q the sampler's."""
    if name == "ipo":
        return abs(p - q) > 0.3
    kl = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
    is_away = (advantage > 0 and p > q) or (advantage < 0 and p < q)
    return is_away and (kl > 0.05 if name == "dppo_kl" else abs(p - q) > 0.15)


def clipped(ratio: torch.Tensor, advantage: float, low: float, high: float) -> torch.Tensor:
    value = float(ratio.detach())
    bounded = ratio if low <= value <= high else torch.tensor(low if value < low else high, dtype=torch.float64)
    return min(ratio * advantage, bounded * advantage, key=lambda value: float(value.detach()))


def gradients(value: torch.Tensor, problem: Problem) -> tuple[float, list[float]]:
    leaves = [token for tokens in problem.current.values() for token in tokens]
    found = torch.autograd.grad(value, leaves, allow_unused=True)
    return float(value.detach()), [0.0 if gradient is None else float(gradient) for gradient in found]


@pytest.mark.parametrize("name", NAMES)
def test_a_named_algorithm_equals_its_papers_formula(name: str):
    config = compose_run([f"algorithm={name}", "mode=plan"]).config
    for seed in range(10):
        problem = Problem(seed)
        budget = config.serving.models["actor"].max_model_len
        loss, gradient = gradients(ours(config, problem), problem)
        expected, expected_gradient = gradients(papers(name, problem, budget=budget), problem)
        assert loss == pytest.approx(expected, abs=1e-6)
        assert gradient == pytest.approx(expected_gradient, abs=1e-6)


def test_supervised_loss_is_the_negative_log_likelihood():
    logprobs = torch.tensor([-0.5, -2.0], dtype=torch.float64)
    nothing = torch.zeros(2)
    tokens = Tokens(logprobs=logprobs, entropy=nothing, sequences=nothing.long(), staleness=nothing, columns={})
    assert Supervised(RunConfig()).loss(tokens).terms["policy"].tolist() == [0.5, 2.0]
