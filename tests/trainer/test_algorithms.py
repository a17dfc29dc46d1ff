"""Algorithms in the trainer: no packing changes them, they equal what their pure functions say, and failures are counted."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vime.config import (
    AlgorithmConfig,
    AlgorithmName,
    BadUpdate,
    Baseline,
    CorrectionConfig,
    CorrectionLevel,
    CorrectionMode,
    KLEstimator,
    KLPlace,
    Normalization,
    OldLogprobs,
    RatioLevel,
    RunConfig,
    Surrogate,
)
from vime.errors import SampleError, TrainingError
from vime.hooks import load_hook
from vime.trainer.shard import PackedUpdate
from vime.types import Sample

Models = Callable[..., Path]
MakeConfig = Callable[..., RunConfig]
MakeSamples = Callable[..., list[Sample]]

GEOMETRIC = CorrectionConfig(mode=CorrectionMode.mask, level=CorrectionLevel.geometric, low=0.5, high=2.0, veto=0.3)
KINDS: dict[str, dict[str, Any]] = {
    "sequence_ratio": {"ratio": RatioLevel.sequence, "old_logprobs": OldLogprobs.trainer},
    "cispo": {"surrogate": Surrogate.cispo, "clip_high": 4.0},
    "gmpo": {"surrogate": Surrogate.gmpo, "clip_high": 0.5},
    "sapo": {"surrogate": Surrogate.sapo},
    "dppo_kl": {"surrogate": Surrogate.dppo_kl, "max_divergence": 0.05},
    "whitened_with_kl_in_reward": {
        "baseline": Baseline.none,
        "normalization": Normalization.none,
        "whitening": True,
        "kl_place": KLPlace.reward,
        "kl_estimator": KLEstimator.k1,
        "kl_coefficient": 0.1,
    },
    "unbiased_kl": {"kl_unbiased": True, "kl_coefficient": 0.1, "dual_clip": 1.5},
    "corrected": {"correction": GEOMETRIC, "old_logprobs": OldLogprobs.trainer},
}


def drifted(config: RunConfig, engine: Any, samples: list[Sample]) -> Any:
    """An engine two updates away from its reference, so that ratios and KL are not trivial."""
    trained = engine(config)
    kept, config.algorithm = config.algorithm, AlgorithmConfig()
    trained.train([samples[:4], samples[4:8]], 0)
    trained.config.algorithm = kept
    return trained


def close_to_the_policy(trained: Any, samples: list[Sample]) -> list[Sample]:
    """The samples with logprobs near the model's own, as an engine would have recorded them."""
    found = trained.logprobs([s.tokens for s in samples], [s.response_length for s in samples], 1.0)
    noise = torch.Generator().manual_seed(0)
    return [
        sample.with_columns(logprob=[x + 0.4 * float(torch.randn((), generator=noise)) for x in found[index]])
        for index, sample in enumerate(samples)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_packing_and_order_change_no_algorithm(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples, kind: str
) -> None:
    results = []
    for max_tokens, order in ((10_000, 1), (90, -1)):
        config = make_config(models("qwen2"), max_tokens_per_micro_batch=max_tokens)
        config.algorithm = AlgorithmConfig(**KINDS[kind])
        samples = make_samples(16)
        trained = drifted(config, engine, samples)
        recorded = close_to_the_policy(trained, samples)
        results.append(trained.train([recorded[:8][::order], recorded[8:][::order]], 1))
    first, second = results
    assert first.keys() == second.keys()
    for name in first.keys() - {"train/seconds", "train/tokens_per_second", "train/useful_token_share"}:
        assert second[name] == pytest.approx(first[name], rel=2e-3, abs=2e-5), name
    wanted = {"corrected": "train/correction_veto_share", "whitened_with_kl_in_reward": "train/advantage_deviation"}
    assert first[wanted.get(kind, "train/ratio_max")] > 0


def test_advantages_are_penalized_and_whitened_over_all_updates(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples, tmp_path: Path
) -> None:
    config = make_config(models("qwen3"), max_tokens_per_micro_batch=60)
    config.algorithm = AlgorithmConfig(**KINDS["whitened_with_kl_in_reward"])
    samples = make_samples(12)
    trained = engine(config)
    reference = trained.logprobs([s.tokens for s in samples], [s.response_length for s in samples], 1.0)
    values = []
    for index, sample in enumerate(samples):
        kept = [t for t, keep in enumerate(sample.loss_mask) if keep]
        kl = [sample.columns["logprob"][t] - reference[index][t] for t in kept]
        values += [sample.columns["advantage"] - 0.1 * sum(kl[start:]) for start in range(len(kl))]
    every = torch.tensor(values, dtype=torch.float64)
    (tmp_path / "seen.py").write_text(
        "seen = []\n"
        "def loss(config, logprobs, old_logprobs, advantages, mask, sequences):\n"
        "    seen.append(advantages.clone())\n"
        "    return -logprobs * advantages, {}\n"
    )
    seen: Any = load_hook(f"{tmp_path}/seen.py:seen")
    config.algorithm.loss = f"{tmp_path}/seen.py:loss"
    metrics = trained.train([samples[:6], samples[6:]], 0)
    found = torch.cat(seen).double().sort().values
    expected = ((every - every.mean()) / every.std(correction=0)).sort().values
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert metrics["train/advantage_deviation"] == pytest.approx(float(every.std(correction=0)), rel=1e-5)
    assert metrics["train/advantage_mean"] == pytest.approx(float(every.mean()), abs=1e-5)


def test_corrected_samples_that_the_trainer_finds_impossible_have_no_gradient(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples
) -> None:
    config = make_config(models("qwen2"))
    config.algorithm = AlgorithmConfig(correction=CorrectionConfig(veto=1e-4), old_logprobs=OldLogprobs.trainer)
    trained, samples = engine(config), make_samples(3)
    impossible = [s.with_columns(logprob=20.0) for s in samples]
    metrics = trained.train([impossible], 0)
    assert metrics["train/correction_veto_share"] == 1.0 and metrics["train/grad_norm"] == 0.0
    assert metrics["train/correction_weight_mean"] == 0.0


def test_epochs_go_through_a_batch_again_with_the_old_logprobs_of_its_beginning(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples
) -> None:
    once = make_config(models("qwen2"), lr=1e-2)
    twice = make_config(models("qwen2"), lr=1e-2, num_epochs_per_batch=2)
    once.algorithm.old_logprobs = twice.algorithm.old_logprobs = OldLogprobs.trainer
    samples = make_samples(6)
    one, two = engine(once), engine(twice)
    updates = [samples[:3], samples[3:]]
    start, first = two.train(updates, 0), one.train(updates, 0)
    assert start["train/ratio_max"] > first["train/ratio_max"] >= 1.0
    assert start["train/num_tokens"] == 2 * first["train/num_tokens"]
    assert start["train/num_samples"] == 2 * first["train/num_samples"]


@pytest.mark.parametrize("kind", ["whitened_with_kl_in_reward", "corrected"])
def test_between_the_first_gradient_and_the_optimizer_step_the_weights_can_be_used(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples, kind: str
) -> None:
    results = []
    for in_parts in (False, True):
        config = make_config(models("qwen2"), max_tokens_per_micro_batch=90)
        config.algorithm = AlgorithmConfig(**KINDS[kind])
        samples = make_samples(12)
        trained = drifted(config, engine, samples)
        updates = [samples[:6], samples[6:]]
        before = {name: tensor.clone() for name, tensor in trained.export()}
        if in_parts:
            asked = ([s.tokens for s in samples], [s.response_length for s in samples], 1.0)
            expected = trained.logprobs(*asked)

            def use(trained: Any = trained, before: Any = before, asked: Any = asked, expected: Any = expected) -> None:
                trained.before_step = lambda: None
                assert trained.logprobs(*asked) == expected
                assert all(torch.equal(tensor, before[name]) for name, tensor in trained.export())

            trained.before_step = use
        metrics = trained.train(updates, 1)
        after = dict(trained.export())
        assert any(not torch.equal(tensor, before[name]) for name, tensor in after.items())
        del metrics["train/seconds"], metrics["train/tokens_per_second"]
        results.append((metrics, {name: tensor.clone() for name, tensor in after.items()}))
    (metrics, whole), (other_metrics, parts) = results
    assert metrics == other_metrics
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.items())


def test_an_empty_batch_changes_nothing(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples
) -> None:
    trained = engine(make_config(models("qwen2")))
    before = {name: tensor.clone() for name, tensor in trained.export()}
    metrics = [trained.train(updates, 3) for updates in ([], [[]])]
    assert metrics == [{"train/num_samples": 0.0, "train/num_tokens": 0.0, "train/num_skipped_updates": 0.0}] * 2
    masked = [dataclasses.replace(s, loss_mask=[0] * s.response_length) for s in make_samples(2)]
    assert trained.train([masked], 4)["train/grad_norm"] == 0.0
    assert all(torch.equal(tensor, before[name]) for name, tensor in trained.export())


def test_a_bad_update_is_skipped_and_counted_if_so_configured_but_not_for_ever(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples
) -> None:
    trained, samples = engine(make_config(models("qwen2"), on_bad_update=BadUpdate.skip)), make_samples(8)
    plain = engine(make_config(models("qwen2")))
    bad = [samples[0].with_columns(advantage=float("nan")), *samples[1:4]]
    metrics = trained.train([bad, samples[4:]], 0)
    expected = plain.train([samples[4:]], 0)
    assert metrics["train/num_skipped_updates"] == 1.0
    for name in ("train/loss", "train/grad_norm", "train/num_tokens"):
        assert metrics[name] == pytest.approx(expected[name], rel=1e-5), name
    for (name, mine), (_, other) in zip(trained.export(), plain.export()):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-7, msg=name)
    only_bad = trained.train([bad] * 9, 1)
    assert only_bad["train/num_skipped_updates"] == 9.0 and "train/loss" not in only_bad
    assert "train/loss" in trained.train([samples], 2)
    with pytest.raises(TrainingError, match="not changed"):
        trained.train([bad] * 10, 3)


def test_a_missing_logprob_is_an_error_unless_supervised(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples
) -> None:
    config = make_config(models("qwen2"))
    samples = make_samples(3)
    for logprobs in ([], samples[1].columns["logprob"][:-1], None):
        with pytest.raises(SampleError, match="sample 1"):
            engine(config).train([[samples[0], samples[1].with_columns(logprob=logprobs)]], 0)
    config.algorithm.name = AlgorithmName.sft
    assert engine(config).train([[dataclasses.replace(samples[1], columns={"weight": 0.1})]], 0)["train/num_samples"] == 1


def test_gradients_of_several_passes_add_up_as_those_of_one(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples
) -> None:
    config, samples = make_config(models("qwen3"), max_tokens_per_micro_batch=1), make_samples(9)
    found = []
    for parts in ([samples], [samples[:2], samples[2:6], samples[6:]]):
        trained = engine(config)
        sums = []
        for part in parts:
            shard = PackedUpdate.of(config, trained.algorithm, part, version=0).shard(0)
            sums.append(trained.forward_backward(shard, trained.algorithm).sums["train/loss"])
        gradients = torch.cat([buffer.clone() for buffer in trained._gradients()])
        stepped = trained.step(optimizer={"lr": 1e-3})
        found.append((sum(sums), gradients, stepped["train/grad_norm"]))
        with pytest.raises(AssertionError, match="forward_backward comes before step"):
            trained.step(optimizer={"lr": 1e-3})
    (loss, gradients, norm), (other_loss, others, other_norm) = found
    assert other_loss == pytest.approx(loss, rel=1e-6) and other_norm == pytest.approx(norm, rel=1e-6)
    assert float((gradients - others).abs().max() / gradients.abs().max()) < 1e-6


def test_an_optimizer_step_takes_its_parameters_from_the_call(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples
) -> None:
    options = {"beta1": 0.5, "beta2": 0.9, "eps": 1e-4, "weight_decay": 0.3, "clip_grad": 0.1}
    names = {"beta1": "adam_beta1", "beta2": "adam_beta2", "weight_decay": "weight_decay", "clip_grad": "clip_grad"}
    weights = []
    for in_call in (True, False):
        own = {} if in_call else {name: options[short] for short, name in names.items()}
        config = make_config(models("qwen2"), **own)
        trained = engine(config)
        for step in range(2):
            shard = PackedUpdate.of(config, trained.algorithm, make_samples(4, seed=step), version=step).shard(0)
            trained.forward_backward(shard, trained.algorithm)
            trained.step(optimizer={"lr": 1e-3, **(options if in_call else {"eps": options["eps"]})})
        weights.append({name: tensor.clone() for name, tensor in trained.export()})
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
