"""`PolicyGradient`: baseline × normalization × ratio × surrogate × aggregation × KL × correction, by the options of `algorithm`.

Every named algorithm but sft is a file of such options (`conf/algorithm`). The pure functions that it is composed of are in
`advantage.py`, `loss.py`, `kl.py` and `correction.py`. Torch is imported only in functions that the trainer calls, because the
driver, which needs only advantages, does not have it.

Shape suffix: N trained tokens, of a micro-batch or of one sequence.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from vime.algorithm.advantage import Advantages, group_advantages
from vime.algorithm.algorithm import OLD, REFERENCE, Algorithm, Columns, Forward, Loss, Tokens
from vime.algorithm.turns import turn_advantages
from vime.config import Baseline, CorrectionMode, Credit, KLPlace, OldLogprobs, RunConfig, TurnCredit
from vime.errors import HookError
from vime.hooks import load_named
from vime.types import Group, Sample
from vime.types.column import LOGPROB

EPSILON = 1e-8
ADVANTAGE = "algorithm.advantage"


class PolicyGradient(Algorithm):
    """The policy gradient objective that `algorithm.…` describes; see `vime.algorithm.description`."""

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        self._running: dict[str, float] = {}

    def state(self) -> dict[str, Any]:
        """The running baselines."""
        return {"running": dict(self._running)} if self._running else {}

    def load(self, state: dict[str, Any]) -> None:
        """Goes on with the running baselines of a checkpoint."""
        self._running = dict(state.get("running", {}))

    @property
    def compares_groups(self) -> bool:  # type: ignore[override]
        """False with a running baseline."""
        return self.config.baseline is not Baseline.running

    @property
    def source(self) -> str:
        """The setting that gives the advantages, for messages."""
        return f"{ADVANTAGE}={self.config.advantage}" if self.config.advantage else super().source

    @property
    def needs(self) -> Sequence[Forward]:  # type: ignore[override]
        """The reference where there is a KL term, the old logprobs where they are the trainer's."""
        old = (OLD,) if self.config.old_logprobs is OldLogprobs.trainer else ()
        return (*((REFERENCE,) if self.config.kl_coefficient else ()), *old)

    @property
    def needs_before(self) -> Sequence[Forward]:  # type: ignore[override]
        """Both where the KL is a penalty on the reward."""
        return self.needs if self._penalizes else ()

    @property
    def reads_top(self) -> bool:  # type: ignore[override]
        """True with score centering."""
        return self.config.score_centering

    @property
    def _penalizes(self) -> bool:
        return self.config.kl_place is KLPlace.reward and self.config.kl_coefficient > 0

    def advantages(self, groups: list[Group], known: Sequence[Sample]) -> Columns:
        """Rewards compared within their group, or the user's (`algorithm.advantage`), with credit, KL penalty and whitening."""
        path = self.config.advantage
        if path:
            found = own_advantages(path, self.config, groups)
        else:
            found = group_advantages(self.config, groups, self._running)
        is_split = self.run.method.credit is Credit.split
        by_turn = {} if self.config.turn_credit is TurnCredit.none else turn_advantages(self.config, groups, found)
        if not (is_split or self._penalizes or self.config.whitening):
            return Columns({"advantage": by_turn}, shown=found) if by_turn else Columns({"advantage": found})
        sequences = [sequence for sequence in known if sequence.rollout_id in found]
        counts: dict[int, int] = {}
        for sequence in sequences:
            counts[sequence.rollout_id] = counts.get(sequence.rollout_id, 0) + 1
        shares = {rollout_id: 1.0 / count if is_split else 1.0 for rollout_id, count in counts.items()}
        whole = [by_turn[s.rollout_id, s.order] if by_turn else _of_sequence(found, s) for s in sequences]
        given = [value * shares[sequence.rollout_id] for value, sequence in zip(whole, sequences)]
        values, metrics = self.finished([s.with_columns(advantage=value) for s, value in zip(sequences, given)])
        by_sequence = {(sequence.rollout_id, sequence.order): value for sequence, value in zip(sequences, values)}
        return Columns({"advantage": by_sequence}, metrics=metrics, shown=found)

    def finished(self, sequences: Sequence[Sample]) -> tuple[list[Any], dict[str, float]]:
        """The advantages of sequences after the KL penalty and the whitening over all their trained tokens; metrics.

        A_t - coefficient · sum of KL_i over i ≥ t in the same sequence, and then (A - mean) / deviation (REINFORCE++, arXiv
        2501.03262). Without a penalty the advantage of a sequence stays one number.
        """
        values: list[Any] = [sequence.columns["advantage"] for sequence in sequences]
        if self._penalizes:
            values = [self._penalized(*pair) for pair in zip(sequences, values)]
        if not self.config.whitening:
            return values, {}
        values = [np.asarray(value, np.float32) for value in values]
        mean, deviation = mean_and_deviation(values, [sequence.num_trained_tokens for sequence in sequences])
        found = [whitened(value, mean=mean, deviation=deviation) for value in values]
        metrics = {"train/advantage_mean": mean, "train/advantage_deviation": deviation}
        return [value if value.ndim else float(value) for value in found], metrics

    def _penalized(self, sequence: Sample, advantage: float) -> np.ndarray:
        import torch

        from vime.algorithm.kl import kl_estimate

        columns, trained = sequence.columns, sequence.trained
        is_own = self.config.old_logprobs is OldLogprobs.trainer
        old = columns["old"] if is_own else sequence.values(LOGPROB)[trained]
        old_N, reference_N = (torch.tensor(np.asarray(each, np.float32)) for each in (old, columns["reference"]))
        kl_N = kl_estimate(self.config.kl_estimator, old_N, reference_N)
        return (float(np.float32(advantage)) - self.config.kl_coefficient * kl_N.flip(0).cumsum(0).flip(0)).numpy()

    @cached_property
    def _policy_loss(self) -> Any:
        from vime.algorithm.loss import policy_loss

        return load_named("algorithm.loss", self.config.loss) if self.config.loss else policy_loss

    def loss(self, tokens: Tokens) -> Loss:
        """Policy loss times correction, KL to the reference, and entropy, as one term."""
        from vime.algorithm.kl import kl_estimate, unbiased
        from vime.algorithm.loss import score_centering

        config, logprobs_N, old_N = self.config, tokens.logprobs, self.old_logprobs(tokens)
        loss_N, metrics = self.surrogate(tokens, tokens["advantage"])
        if config.score_centering:
            assert tokens.top is not None, "the trainer gives the logprobs of the likeliest tokens"
            known = tokens["top_logprobs"], tokens["top_ids"] >= 0
            centering_N, more = score_centering(config, tokens.top, *known, tokens["advantage"], has_rest=not self.is_cut)
            loss_N, metrics = loss_N + centering_N, metrics | more
        metrics = {**metrics, "train/policy_loss": (tokens["weight"] * loss_N.detach()).sum()}
        if "reference" in tokens.columns:
            kl_N = kl_estimate(config.kl_estimator, logprobs_N, tokens["reference"])
            metrics["train/kl"] = kl_N.detach().sum()
            if config.kl_place is KLPlace.loss:
                if config.kl_unbiased:
                    kl_N = unbiased(config.kl_estimator, logprobs_N, tokens["reference"], old_N)
                loss_N = loss_N + config.kl_coefficient * kl_N
        if config.entropy_coefficient:
            loss_N = loss_N - config.entropy_coefficient * tokens.entropy
        return Loss(terms={"policy": loss_N}, metrics=metrics)

    def old_logprobs(self, tokens: Tokens) -> Any:
        """The logprobs in the denominator of the importance ratio, [N]: the sampler's, or the trainer's before the batch."""
        return tokens["logprob"] if self.config.old_logprobs is OldLogprobs.engine else tokens.old

    def surrogate(self, tokens: Tokens, advantages_N: Any) -> tuple[Any, Any]:
        """The policy loss of each token at these advantages times the correction between trainer and sampler, [N]; metrics."""
        import torch

        from vime.algorithm.correction import correction_weights

        config, engine_N, old_N = self.config, tokens["logprob"], self.old_logprobs(tokens)
        mask_N = torch.ones_like(tokens.logprobs)
        loss_N, metrics = self._policy_loss(config, tokens.logprobs, old_N, advantages_N, mask_N, tokens.sequences)
        if config.correction.mode is not CorrectionMode.none or config.correction.veto:
            factor_N, more = correction_weights(config.correction, old_N, engine_N, mask_N, tokens.sequences)
            loss_N, metrics = loss_N * factor_N, metrics | more
        return loss_N, metrics

    def has_gradient(self, sequence: Sample) -> bool:
        """False if the advantage is zero and the loss has no other term."""
        config = self.config
        if config.kl_coefficient or config.entropy_coefficient or config.whitening or config.loss is not None:
            return True
        return bool(np.any(np.asarray(sequence.columns["advantage"]) != 0.0))


def _of_sequence(advantages: Mapping[int, Any], sequence: Sample) -> Any:
    given = advantages[sequence.rollout_id]
    value = given[sequence.order] if isinstance(given, list) else given
    return np.asarray(value, np.float64) if isinstance(value, list) else value


def mean_and_deviation(values: Sequence[np.ndarray], counts: Sequence[int]) -> tuple[float, float]:
    """Mean and population standard deviation over all tokens, or zeros if there are none.

    A value is an array over a sequence's tokens, or a zero-dimensional array for all of them; `counts` are the numbers of tokens.
    """
    number = sum(counts)
    if not number:
        return 0.0, 0.0
    arrays = [value.astype(np.float64) for value in values]
    times = [count if array.ndim == 0 else 1 for array, count in zip(arrays, counts)]
    total = math.fsum(float(array.sum()) * n for array, n in zip(arrays, times))
    squares = math.fsum(float((array * array).sum()) * n for array, n in zip(arrays, times))
    mean = total / number
    return mean, max(squares / number - mean * mean, 0.0) ** 0.5


def whitened(values: np.ndarray, *, mean: float, deviation: float) -> np.ndarray:
    """(A - mean) / deviation in float32, or zeros if all advantages are equal."""
    if deviation <= EPSILON:
        return np.zeros_like(values)
    return np.asarray((values - np.float32(mean)) / np.float32(deviation + EPSILON))


def own_advantages(path: str, config: Any, groups: list[Group]) -> Mapping[int, Advantages]:
    """The advantages of the user's function at `path` (`module.function` or `file.py:function`).

    Raises HookError if it raises or returns no dictionary; `build_updates` checks its content.
    """
    found = load_named(ADVANTAGE, path)(config, groups)
    if not isinstance(found, Mapping):
        wanted = "it must return a dictionary of advantages by rollout_id"
        raise HookError(f"{ADVANTAGE}={path} returned {type(found).__name__}: {wanted}")
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        value, num_samples = found.get(rollout.rollout_id), len(rollout.samples)
        if isinstance(value, list) and len(value) != num_samples:
            wanted = f"{len(value)} advantages for the {num_samples} samples of rollout {rollout.rollout_id}"
            raise HookError(f"{ADVANTAGE}={path} returned {wanted}")
    return found
