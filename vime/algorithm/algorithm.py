"""`Algorithm`: a training objective, as the driver and the trainer see it. Each is one object in a file of its own.

    known = sequences with the columns of `algorithm.needs_before`     # the trainer answers, under other weights
    columns = algorithm.advantages(groups, known)                      # on the driver, which has no torch
    loss = algorithm.loss(tokens)                                      # on the trainer, for each micro-batch

Shape suffixes: N trained tokens of a micro-batch, K likeliest tokens at each place.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from vime.config import RunConfig
from vime.config.ranges import numbers_of
from vime.errors import ConfigError, Problem
from vime.hooks import naming
from vime.types import ColumnType, Group, Sample
from vime.types.column import TOP_IDS, TOP_LOGPROBS

if TYPE_CHECKING:
    import torch

OBJECT, OPTIONS = "algorithm.object", "algorithm.options"
Metrics = dict[str, "torch.Tensor"]
"""Metrics of a micro-batch by name: sums over its trained tokens, which become means over those of an update. A name that ends in
`_max` is a maximum instead, one that ends in `_loss` a sum that is weighted already and stays one."""


class Weights(Enum):
    """Weights of the trainer: the present ones, those that the run began with, a running average of them, those of another
    checkpoint of the same architecture, or the critic's."""

    present = "present"
    first = "first"
    average = "average"
    checkpoint = "checkpoint"
    critic = "critic"


@dataclass(frozen=True, kw_only=True, slots=True)
class Forward:
    """A column that the trainer computes before the first update of a batch: logprobs of the trained tokens under some weights.

    The critic's weights answer with the values of the states in which the tokens were sampled.
    Example: `Forward(column="reference", weights=Weights.first)`.
    """

    column: str
    weights: Weights = Weights.present
    decay: float = 0.0
    """Decay of the average: after each optimizer step it is decay · average + (1 - decay) · weights."""
    checkpoint: str = ""
    """Folder or Hugging Face id of the other checkpoint."""
    num_likeliest: int = 0
    """Likeliest tokens at each place whose ids and logprobs are columns too: `NAME_ids` and `NAME_logprobs` beside the column
    `NAME`."""
    named: str = ""
    """Column with ids of K tokens at each place, whose logprobs are the column `NAME_logprobs`."""

    @property
    def weights_only(self) -> "Forward":
        """This pass without its columns; it is equal for all columns that are computed under the same weights."""
        return replace(self, column="", num_likeliest=0, named="")

    def columns(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """Its columns by name, from the values of a pass: [N], or [N, J] with the logprobs of K tokens behind those of the
        wanted ones, and then with `num_likeliest` their ids."""
        if values.ndim == 1:
            return {self.column: values}
        num = self.num_likeliest or values.shape[1] - 1
        found = {self.column: values[:, 0], f"{self.column}_logprobs": values[:, 1 : 1 + num]}
        return found | ({f"{self.column}_ids": values[:, 1 + num :].astype(np.int32)} if self.num_likeliest else {})

    @property
    def type(self) -> ColumnType:
        """The declaration of its column."""
        return ColumnType(name=self.column)


OLD = Forward(column="old")
REFERENCE = Forward(column="reference", weights=Weights.first)
VALUE = Forward(column="value", weights=Weights.critic)


def average(decay: float) -> Forward:
    """Requests logprobs under a running average of the weights, as the column `average`."""
    return Forward(column="average", weights=Weights.average, decay=decay)


@dataclass(kw_only=True, slots=True)
class Question:
    """Sequences for which the trainer computes columns as soon as there is a batch, and the samples of the batch that get them.

    A sequence has the trained tokens of its sample, but what stands before and between them may be other text.
    Example: a sample [P0, A0, A1] with a hint H is `sequences=[Sample(tokens=[H, P0, A0, A1], loss_mask=[1, 1])]`.
    """

    need: Forward
    samples: list[Sample]
    sequences: list[Sample]
    columns: Sequence[ColumnType] = ()
    """Columns of the sequences that the pass reads."""


@dataclass(slots=True)
class Columns:
    """The result of `Algorithm.advantages`: values of columns by name, then by rollout, or by one of its sequences.

    A value is a number for all trained tokens, a list with one entry for each sample of the rollout, or of a sequence a list with
    one for each turn (a run of sampled tokens) or for each trained token. Rollouts without an advantage are not trained.
    Example: `Columns({"advantage": {7: 0.5, 8: [0.1, -0.1], (9, 0): [0.2, 0.2, 0.3]}})`.
    """

    values: Mapping[str, Mapping[Any, Any]]
    metrics: dict[str, float] = field(default_factory=dict)
    shown: Mapping[int, Any] | None = None
    """Advantages by rollout for records and metrics, where they differ from those that are trained on."""
    is_blank: bool = False
    """True for the placeholder before the algorithm has computed anything (`vime.algorithm.batch.unknown`)."""


@dataclass(kw_only=True, slots=True)
class Tokens:
    """The trained tokens of a micro-batch, flat; whole sequences, one after another. Tensors have shape [N] where none is named.

    `tokens["advantage"]` is a column; logprobs, entropy and `top` have gradients. Where top-k or top-p cut the distribution that
    tokens were sampled from, all three are those of the distribution over the tokens that were kept.
    """

    logprobs: "torch.Tensor"
    entropy: "torch.Tensor"
    """Entropy of the distribution that a token was drawn from, in nats."""
    sequences: "torch.Tensor"
    """Number of each token's sequence, from 0 without gaps."""
    staleness: "torch.Tensor"
    """Weight versions between sampling and training."""
    columns: Mapping[str, "torch.Tensor"]
    top: "torch.Tensor | None" = None
    """Logprobs of the tokens in the column `Algorithm.top_column`, the sampler's likeliest or a teacher's, [N, K]; those of ids
    below 0 mean nothing, and must not have a gradient. None unless the algorithm reads them, or tokens were cut."""
    values: "torch.Tensor | None" = None
    """Values of the states in which the tokens were sampled, with gradients, where the model has a value head; beside those of a
    critic with a model of its own, logprobs are the sampler's, and there is no entropy."""

    def __getitem__(self, name: str) -> "torch.Tensor":
        return self.columns[name]

    @property
    def old(self) -> "torch.Tensor":
        """Logprobs at the beginning of the batch, by the need `OLD`: in its first update the present ones, without gradient."""
        return self.columns["old"] if "old" in self.columns else self.logprobs.detach()


@dataclass(kw_only=True, slots=True)
class Loss:
    """Loss of each token, [N], as one or several terms; the trainer sums weight · loss over tokens, terms and micro-batches.

    Example: `Loss(terms={"policy": policy_N, "value": value_N}, weights={"value": tokens["value_weight"]})`.
    """

    terms: Mapping[str, "torch.Tensor"]
    weights: Mapping[str, "torch.Tensor"] = field(default_factory=dict)
    """Weights of each token, by term; other terms use the column `weight`, which `algorithm.aggregation` defines. For an average
    over a part of the sequences see `Algorithm.weights`."""
    metrics: Metrics = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class NoOptions:
    """The options of an algorithm that has none."""


class Algorithm:
    """A training objective; a subclass has an `advantages` and a `loss`."""

    Config: ClassVar[type] = NoOptions
    """A dataclass: the names, types, ranges and defaults of `algorithm.options`."""
    columns: Sequence[ColumnType] = ()
    """Columns that `advantages` adds beside `advantage`; `loss` finds all of them in its tokens."""
    needs: Sequence[Forward] = ()
    """Columns that the trainer computes before the first update of a batch."""
    needs_before: Sequence[Forward] = ()
    """The columns among them that `advantages` reads; the others never leave the trainer."""
    asked: Sequence[Forward] = ()
    """The needs of `questions`, for which the trainer keeps second weights."""
    reads_top: bool = False
    """True if `loss` reads the sampler's likeliest tokens: the columns `top_ids` and `top_logprobs`, and `Tokens.top`."""
    answers_top: bool = False
    """True if the logprobs that a gradient pass returns have those of `Tokens.top` behind, [N, 1 + K]."""
    is_supervised: bool = False
    """True if sequences are demonstrations: no model sampled them, so they have no logprobs to compare with."""

    weights: ClassVar[Mapping[str, Callable[[Sample], bool]]] = {}
    """Further columns of weights by name, each over the sequences of an update for which its function is true, and 0 elsewhere: a
    term of the loss then has an average of its own. They are in `columns` as well."""
    is_paired: bool = False
    """True if the demonstrations are pairs of a chosen and a rejected reply, the rows of `data.train`."""
    compares_groups: bool = True
    """True if a group whose rewards are all equal teaches nothing."""
    is_critic: bool = False
    """True if its weights are the critic's, whose loss reads `tokens.values`."""

    def __init__(self, run: RunConfig) -> None:
        self.run, self.config = run, run.algorithm
        self.options: Any = typed_options(self.Config, run.algorithm.options)

    def state(self) -> dict[str, Any]:
        """Values that `advantages` keeps from one batch to the next, for a checkpoint; by name, of types that JSON has."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Goes on from the `state` of a checkpoint."""

    @property
    def temperature(self) -> float:
        """Temperature of the distribution whose logprobs are trained."""
        return 1.0 if self.is_supervised else self.run.rollout.temperature

    @property
    def is_cut(self) -> bool:
        """True if the trained logprobs are those of a distribution that top-k or top-p has cut."""
        rollout = self.run.rollout
        return not self.is_supervised and (rollout.top_k is not None or rollout.top_p < 1)

    @property
    def top_column(self) -> str:
        """Name of the column of ids whose logprobs `Tokens.top` has; empty if `loss` reads none."""
        return TOP_IDS.name if self.is_cut or self.reads_top else ""

    @property
    def recorded(self) -> Sequence[ColumnType]:
        """The columns with the sampler's likeliest tokens that the trainer needs."""
        kinds = (*((TOP_IDS,) if self.top_column == TOP_IDS.name else ()), *((TOP_LOGPROBS,) if self.reads_top else ()))
        return [replace(kind, shape=(self.run.rollout.num_logprobs,), fill=None) for kind in kinds]

    @property
    def source(self) -> str:
        """The setting that selects this algorithm, for error messages."""
        return f"{OBJECT}={self.config.object}" if self.config.object else f"algorithm={self.config.name.value}"

    @contextmanager
    def named(self) -> Iterator[None]:
        """Turns an error of the user's object within the block into a `HookError` that names it; others stay as they are."""
        with naming(OBJECT, self.config.object) if self.config.object else nullcontext():
            yield

    def questions(self, groups: list[Group]) -> list[Question]:
        """The questions about a batch whose answers become columns of its samples, before anything else is computed for it.

        Their needs are among `asked`. Runs on the driver.
        """
        return []

    def advantages(self, groups: list[Group], known: Sequence[Sample]) -> Columns:
        """Advantages of rollouts, sequences, turns or tokens, and all other columns that `loss` reads.

        `groups` are the whole batch, `known` the sequences of its rollouts that count for training, with the sampler's logprobs
        and the columns of `needs_before`. Runs on the driver.
        """
        raise NotImplementedError

    def loss(self, tokens: Tokens) -> Loss:
        """The loss of a micro-batch. Runs on the trainer, on the last stage of a pipeline."""
        raise NotImplementedError

    def needs_of_loss(self, *, is_present: bool) -> list[Forward]:
        """Columns that only `loss` reads; with `is_present`, without those of the present weights, which have not changed yet."""
        needs = [need for need in self.needs if need not in self.needs_before]
        return [need for need in needs if not (is_present and need.weights is Weights.present)]

    def has_gradient(self, sequence: Sample) -> bool:
        """False for a sequence whose gradient is certainly zero, which is then left out of the update."""
        return True


def typed_options(schema: type, given: Mapping[str, Any]) -> Any:
    """An instance of the dataclass `schema` with these options. Raises `ConfigError` for wrong names, types and ranges."""
    known = [item.name for item in fields(schema)]
    if not known and not given:  # a trainer of a built-in algorithm does without OmegaConf
        return schema()
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    takes = f"takes {', '.join(known)}" if known else "takes no options"
    remedy = f"{schema.__qualname__} {takes}: use one of these, or remove it"
    problems = [
        Problem(key=f"{OPTIONS}.{name}", value=value, remedy=remedy) for name, value in given.items() if name not in known
    ]
    tree: Any = OmegaConf.structured(schema)
    for name in (name for name in given if name in known):
        try:
            OmegaConf.update(tree, name, given[name])
        except (OmegaConfBaseException, ValueError, TypeError) as error:
            text = str(error).splitlines()[0]
            problems.append(Problem(key=f"{OPTIONS}.{name}", value=given[name], remedy=f"{text}: see {schema.__qualname__}"))
    if not problems:
        missing = [name for name in known if OmegaConf.is_missing(tree, name)]
        problems = [Problem(key=f"{OPTIONS}.{name}", value="", remedy="is missing: set it") for name in missing]
    if problems:
        raise ConfigError(problems)
    options = OmegaConf.to_object(tree)
    for name, value, allowed in numbers_of(options):
        if value not in allowed:
            problems.append(Problem(key=f"{OPTIONS}.{name}", value=value, remedy=f"must be {allowed}"))
    if problems:
        raise ConfigError(problems)
    return options
