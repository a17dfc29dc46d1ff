"""`Distillation`: learns from teachers that score the student's own rollouts (`algorithm.distillation`), alone or beside rewards.

Rollout workers ask a served teacher for the logprobs of the tokens that the student sampled, while other rollouts still run
(`vime.workers.teachers`); they travel as columns of the samples. Teachers that are second weights in the trainer are asked once
there is a batch (`Distillation.questions`), and the same columns hold their answers. Reverse KL makes them advantages, log
p(teacher) - log p(student) per token; a divergence over likeliest tokens is differentiated (`vime.algorithm.divergence`).
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, ClassVar

import numpy as np

from vime.algorithm.algorithm import Columns, Forward, Loss, Question, Tokens, Weights
from vime.algorithm.policy_gradient import PolicyGradient
from vime.config import DistillationConfig, RunConfig, TeacherPlace, TeacherTerm, TopKOf
from vime.types import ColumnType, Group, Sample
from vime.types.column import LOGPROB, TOP_IDS, Column

TEACHER = ColumnType(name="teacher", fill=0.0)
"""The teacher's logprobs of the sampled tokens, at temperature 1; a sequence without a teacher has none."""
TEACHER_WEIGHT = ColumnType(name="teacher_weight", fill=0.0)
"""Weights of the teachers' term: an average over the sequences that have a teacher."""
TEACHER_IDS = ColumnType(name="teacher_ids", dtype="int32", shape=(0,), fill=-1)
"""The teacher's likeliest tokens in the place of each sampled one, likeliest first."""
TEACHER_LOGPROBS = ColumnType(name="teacher_logprobs", shape=(0,), fill=float("-inf"))
"""The teacher's logprobs of these, or of the sampler's likeliest tokens."""

HINT = "teacher_hint"
"""Name of the tokens that the teacher of a sequence reads ahead of it, an array of any length; a sequence has them if a teacher
in the trainer is to score it."""
HINT_PLACE = "teacher_hint_place"
"""Name of the place of the hint, if it is not 0: the number of the sequence's own tokens ahead of it."""


def is_taught(sequence: Sample) -> bool:
    """True for a sequence that a teacher has scored."""
    return TEACHER.name in sequence.columns


def teachers_in_trainer(config: DistillationConfig) -> dict[str, Forward]:
    """The teachers among the trainer's weights, by name, each as the need that they answer."""
    found = {}
    for name, teacher in config.teachers.items():
        if teacher.place is not TeacherPlace.trainer:
            continue
        if teacher.decay is None:
            weights = Forward(column=TEACHER.name, weights=Weights.checkpoint, checkpoint=str(teacher.checkpoint))
        elif 0 < teacher.decay < 1:
            weights = Forward(column=TEACHER.name, weights=Weights.average, decay=teacher.decay)
        else:
            weights = Forward(column=TEACHER.name, weights=Weights.first if teacher.decay else Weights.present)
        is_named = config.top_k_of is TopKOf.student
        top = {"named": TOP_IDS.name} if is_named else {"num_likeliest": config.top_k}
        found[name] = replace(weights, **(top if config.top_k else {}))
    return found


def read_by_teacher(sample: Sample) -> Sample:
    """The sequence as its teacher in the trainer reads it: the hint, and all tokens up to the last trained one."""
    trained = np.asarray(sample.trained, np.uint8)
    length = int(np.flatnonzero(trained)[-1]) + 1
    tokens = np.asarray(sample.tokens, np.int32)[: len(sample.tokens) - len(trained) + length]
    read = with_hint(tokens, np.asarray(sample.columns[HINT], np.int32), place=int(sample.columns.get(HINT_PLACE, 0)))
    named = {TOP_IDS.name: sample.columns[TOP_IDS.name][:length]} if TOP_IDS.name in sample.columns else {}
    mask = Column(trained[:length], np.uint8)
    return Sample(tokens=Column(read, np.int32), loss_mask=mask, columns=named)


def with_hint(tokens: np.ndarray, hint: np.ndarray, *, place: int) -> np.ndarray:
    """The tokens of a sequence with those of a hint behind the first `place` of them."""
    return np.concatenate([tokens[:place], hint, tokens[place:]])


def teachers_of(config: DistillationConfig, *, dataset: str, seat: str) -> list[str]:
    """Names of the teachers of sequences of this data set and seat."""
    return [
        name
        for name, teacher in config.teachers.items()
        if (not teacher.datasets or dataset in teacher.datasets) and (not teacher.seats or seat in teacher.seats)
    ]


def drawn_teacher(config: DistillationConfig, *, dataset: str, seat: str, seed: int, rollout_id: int) -> str | None:
    """The teacher of the sequences on one seat of a rollout, drawn by weight among those that there are; None without any."""
    names = teachers_of(config, dataset=dataset, seat=seat)
    if len(names) < 2:
        return names[0] if names else None
    return random.Random(f"{seed} {rollout_id} {seat}").choices(names, [config.teachers[name].weight for name in names])[0]


class Distillation(PolicyGradient):
    """The teachers' term and, with a `reward_coefficient`, a policy gradient on rewards; each has an average of its own."""

    weights: ClassVar[Mapping[str, Callable[[Sample], bool]]] = {TEACHER_WEIGHT.name: is_taught}

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        self._own = run.algorithm.distillation

    @property
    def source(self) -> str:
        """The setting that chooses it, for messages."""
        return "algorithm.distillation"

    @property
    def compares_groups(self) -> bool:  # type: ignore[override]
        """False without an objective of rewards."""
        return super().compares_groups and self._own.reward_coefficient > 0

    @property
    def columns(self) -> Sequence[ColumnType]:  # type: ignore[override]
        """The teacher's logprobs, and with `top_k` those of the likeliest tokens; the student's are recorded already."""
        kinds = (TEACHER_LOGPROBS,) if self._own.top_k_of is TopKOf.student else (TEACHER_IDS, TEACHER_LOGPROBS)
        top = [replace(kind, shape=(self._own.top_k,)) for kind in kinds]
        return [TEACHER, TEACHER_WEIGHT, *(top if self._own.top_k else ())]

    @property
    def top_column(self) -> str:
        """The teacher's likeliest tokens, or the student's, with `top_k`."""
        if not self._own.top_k:
            return super().top_column
        return TOP_IDS.name if self._own.top_k_of is TopKOf.student else TEACHER_IDS.name

    @property
    def asked(self) -> Sequence[Forward]:  # type: ignore[override]
        """The needs that teachers in the trainer answer."""
        return list(teachers_in_trainer(self._own).values())

    def questions(self, groups: list[Group]) -> list[Question]:
        """The sequences of each teacher in the trainer, with its hint ahead of them."""
        taught: dict[str, list[Sample]] = {}
        for group in groups:
            for rollout in (each for each in group.rollouts if each.counting.trained):
                about = {"dataset": group.prompt.dataset, "seed": self.run.seed, "rollout_id": rollout.rollout_id}
                for sample in (each for each in rollout.samples if HINT in each.columns and each.num_trained_tokens):
                    if name := drawn_teacher(self._own, seat=sample.seat, **about):
                        taught.setdefault(name, []).append(sample)
        needs, columns = teachers_in_trainer(self._own), self.recorded
        return [
            Question(need=needs[name], samples=samples, sequences=[*map(read_by_teacher, samples)], columns=columns)
            for name, samples in taught.items()
            if name in needs
        ]

    def advantages(self, groups: list[Group], known: Sequence[Sample]) -> Columns:
        """Advantages of the rewards, 0 without their objective; that of the teacher is computed by `loss`, from columns.

        Shown are then the means over a rollout's tokens of log p(teacher) - log p(student).
        """
        gains: dict[int, list[float]] = {sequence.rollout_id: [] for sequence in known}
        for sequence in filter(is_taught, known):
            gained = np.asarray(sequence.columns[TEACHER.name]) - np.asarray(sequence.values(LOGPROB))[sequence.trained]
            gains[sequence.rollout_id] += gained.tolist()
        taught = [gain for own in gains.values() for gain in own]
        num_tokens = sum(sequence.num_trained_tokens for sequence in known)
        metrics = {"train/taught_share": len(taught) / num_tokens if num_tokens else 0.0}
        metrics |= {"train/teacher_kl": -fmean(taught)} if taught else {}
        if len(self._own.teachers) > 1:
            metrics |= {f"train/taught_share_{name}": share for name, share in self._shares(groups, known, num_tokens).items()}
        if self._own.reward_coefficient:
            found = super().advantages(groups, known)
            return Columns(found.values, metrics=found.metrics | metrics, shown=found.shown)
        shown = {rollout_id: fmean(own) if own else 0.0 for rollout_id, own in gains.items()}
        return Columns({"advantage": dict.fromkeys(gains, 0.0)}, metrics=metrics, shown=shown)

    def _shares(self, groups: list[Group], known: Sequence[Sample], num_tokens: int) -> dict[str, float]:
        """Shares of the trained tokens that each teacher has taught."""
        datasets = {rollout.rollout_id: group.prompt.dataset for group in groups for rollout in group.rollouts}
        shares = dict.fromkeys(self._own.teachers, 0.0)
        for sequence in filter(is_taught, known):
            of, about = sequence.rollout_id, {"seat": sequence.seat, "seed": self.run.seed}
            if name := drawn_teacher(self._own, dataset=datasets[of], rollout_id=of, **about):
                shares[name] += sequence.num_trained_tokens / num_tokens
        return shares

    def loss(self, tokens: Tokens) -> Loss:
        """The teachers' term, and the objective of rewards as a second one."""
        own = self._own
        if own.term is TeacherTerm.advantage:
            teacher_N, metrics = self.surrogate(tokens, (tokens[TEACHER.name] - self.old_logprobs(tokens)).detach())
        else:
            teacher_N, metrics = self._divergence(tokens), {}
        terms: dict[str, Any] = {"teacher": teacher_N}
        weights = {"teacher": own.coefficient * tokens[TEACHER_WEIGHT.name]}
        if own.reward_coefficient:
            of_rewards = super().loss(tokens)
            terms |= of_rewards.terms
            weights |= {"policy": own.reward_coefficient * tokens["weight"]}
            metrics = {**metrics, **of_rewards.metrics}
        return Loss(terms=terms, weights=weights, metrics=metrics)

    def _divergence(self, tokens: Tokens) -> Any:
        from vime.algorithm.divergence import divergence

        assert tokens.top is not None, "the trainer gives the logprobs of the likeliest tokens"
        teacher_NK = tokens[TEACHER_LOGPROBS.name]
        is_taught_NK = teacher_NK > -np.inf  # the sampler records tokens of other sequences as well
        return divergence(self._own, tokens.top, teacher_NK, (tokens[self.top_column] >= 0) & is_taught_NK)

    def has_gradient(self, sequence: Sample) -> bool:
        """True for a sequence with a teacher, or with a reward that has a gradient."""
        return is_taught(sequence) or (self._own.reward_coefficient > 0 and super().has_gradient(sequence))
