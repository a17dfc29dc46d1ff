"""Training on one rank: equal to a plain PyTorch step, invariant to packing, with KL, entropy, hooks and honest failures."""

import copy
import dataclasses
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vime.config import AlgorithmName, KLEstimator, OldLogprobs, Precision, RolloutDetail, RunConfig, Schedule, TrainerConfig
from vime.errors import ConfigError, TrainingError
from vime.trainer.schedule import learning_rate
from vime.types import Sample

Models = Callable[..., Path]
MakeConfig = Callable[..., RunConfig]
MakeSamples = Callable[..., list[Sample]]


def weights(engine: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in engine.export()}


def reference_step(config: RunConfig, samples: list[Sample]) -> tuple[float, float, dict[str, torch.Tensor]]:
    """The same update in plain PyTorch on the Hugging Face model, one sequence at a time: loss, gradient norm, weights."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(config.model.checkpoint, dtype=torch.float32)
    reference = copy.deepcopy(model)
    algorithm, trainer = config.algorithm, config.trainer
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": trainer.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=trainer.lr, betas=(trainer.adam_beta1, trainer.adam_beta2), eps=1e-8)

    def logprobs(network: Any, sample: Sample) -> tuple[torch.Tensor, torch.Tensor]:
        logits = network(torch.tensor([sample.tokens])).logits[0] / config.rollout.temperature
        every = logits.log_softmax(-1)[:-1][-sample.response_length :]
        targets = torch.tensor(sample.tokens[-sample.response_length :]).unsqueeze(1)
        return every.gather(1, targets).squeeze(1), -(every.exp() * every).sum(-1)

    total = torch.zeros(())
    for sample in samples:
        current, entropy = logprobs(model, sample)
        advantage = sample.columns["advantage"]
        ratio = torch.exp(current - torch.tensor(sample.columns["logprob"]))
        clipped = ratio.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high)
        loss = -torch.minimum(ratio * advantage, clipped * advantage)
        with torch.no_grad():
            base = logprobs(reference, sample)[0]
        difference = base - current
        loss = loss + algorithm.kl_coefficient * (difference.exp() - 1 - difference)
        loss = loss - algorithm.entropy_coefficient * entropy
        total = total + sample.columns["weight"] * (loss * torch.tensor(sample.loss_mask)).sum()
    total.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), trainer.clip_grad)
    optimizer.step()
    return float(total), float(norm), {name: p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_an_update_equals_a_plain_pytorch_one(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples, family: str
) -> None:
    config = make_config(models(family, tied=family == "qwen2"), weight_decay=0.1, clip_grad=0.5)
    config.algorithm.kl_coefficient, config.algorithm.kl_estimator = 0.05, KLEstimator.k3
    config.algorithm.entropy_coefficient = 0.01
    config.rollout.temperature = 0.9
    samples = make_samples(12)
    trained = engine(config)
    metrics = trained.train([samples], 0)
    loss, norm, expected = reference_step(config, samples)
    assert metrics["train/loss"] == pytest.approx(loss, abs=1e-5)
    assert metrics["train/grad_norm"] == pytest.approx(norm, rel=1e-4)
    for name, tensor in weights(trained).items():
        # Adam's first step is close to the sign of the gradient, so a gradient near zero may differ; hardly any may.
        differing = (tensor - expected[name]).abs() > 2e-5
        assert differing.float().mean() < 2e-3, f"{name}: {int(differing.sum())} of {tensor.numel()} weights differ"


def test_loss_and_gradient_do_not_depend_on_micro_batches_or_order(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples
) -> None:
    samples = make_samples(30)
    results = []
    for max_tokens, order in ((10_000, 1), (150, 1), (70, -1), (1, 1)):
        config = make_config(models("qwen3"), max_tokens_per_micro_batch=max_tokens)
        results.append(engine(config).train([samples[::order]], 0))
    for result in results[1:]:
        for name in ("train/loss", "train/grad_norm", "train/entropy", "train/clip_fraction", "train/ratio_max"):
            assert result[name] == pytest.approx(results[0][name], rel=1e-4, abs=1e-6), name
        assert result["train/num_tokens"] == results[0]["train/num_tokens"]


def test_kl_to_the_reference_is_zero_at_first_and_grows(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples
) -> None:
    config = make_config(models("qwen2"))
    config.algorithm.kl_coefficient = 0.1
    trained, samples = engine(config), make_samples(10)
    before = weights(trained)
    assert trained.train([samples], 0)["train/kl"] == pytest.approx(0.0, abs=1e-6)
    changed = weights(trained)
    assert not all(torch.equal(before[name], changed[name]) for name in before)
    assert trained.train([samples], 1)["train/kl"] > 1e-6


def test_without_a_coefficient_there_is_no_reference(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples
) -> None:
    assert "train/kl" not in engine(make_config(models("qwen2"))).train([make_samples(4)], 0)


def test_old_logprobs_of_the_trainer_start_at_a_ratio_of_one(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples
) -> None:
    config = make_config(models("qwen2"), lr=1e-2)
    config.algorithm.old_logprobs = OldLogprobs.trainer
    samples = make_samples(16)
    first = engine(config).train([samples], 0)
    assert first["train/ratio_max"] == 1.0 and first["train/clip_fraction"] == 0.0
    assert first["train/logprob_difference_mean"] > 0
    second = engine(config).train([samples[:8], samples[:8]], 0)
    assert second["train/ratio_max"] > 1.001


def test_logprob_difference_is_the_distance_to_the_engines(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples
) -> None:
    trained, samples = engine(make_config(models("qwen3"))), make_samples(6)
    found = trained.logprobs([s.tokens for s in samples], [s.response_length for s in samples], 1.0)
    exact = [s.with_columns(logprob=found[i]) for i, s in enumerate(samples)]
    shifted = [s.with_columns(logprob=[x + 0.25 for x in found[i]]) for i, s in enumerate(samples)]
    assert trained.train([exact], 0)["train/logprob_difference_max"] < 1e-5
    fresh = engine(make_config(models("qwen3"))).train([shifted], 0)
    assert fresh["train/logprob_difference_mean"] == pytest.approx(0.25, abs=1e-5)
    assert fresh["train/ratio_max"] == pytest.approx(math.exp(-0.25), abs=1e-5)


def test_tokens_of_older_weights_do_not_count_as_a_difference_of_the_engine(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples
) -> None:
    trained, samples = engine(make_config(models("qwen3"))), make_samples(4)
    found = trained.logprobs([s.tokens for s in samples], [s.response_length for s in samples], 1.0)
    moved = []
    for number, sample in enumerate(samples):
        logprobs = [found[number][0] + 0.25, *(x + 3.0 for x in found[number][1:])]
        versions = [4] + [2] * (sample.response_length - 1)
        moved.append(sample.with_columns(logprob=logprobs, version=versions))
    metrics = trained.train([moved], 4)
    assert metrics["train/logprob_difference_max"] == pytest.approx(0.25, abs=1e-5)
    assert metrics["train/logprob_difference_mean"] == pytest.approx(0.25, abs=1e-5)
    assert metrics["train/num_current_tokens"] == sum(s.loss_mask[0] for s in samples)
    stale = [s.with_columns(version=3) for s in samples]
    assert "train/logprob_difference_max" not in trained.train([stale], 4)


def test_supervised_training_lowers_the_loss(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples
) -> None:
    config = make_config(models("qwen2"), lr=3e-3)
    config.algorithm.name = AlgorithmName.sft
    samples = [dataclasses.replace(s, columns={"weight": s.columns["weight"]}) for s in make_samples(8)]
    trained = engine(config)
    losses = [trained.train([samples], step)["train/loss"] for step in range(12)]
    assert losses[-1] < 0.7 * losses[0]


def test_a_users_loss_replaces_the_built_in_one(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "def loss(config, logprobs, old_logprobs, advantages, mask, sequences):\n"
        "    return -logprobs * advantages * mask, {\n"
        "        'train/mine': (advantages * mask).sum(), 'train/mine_max': advantages.max()}\n"
    )
    config = make_config(models("qwen2"))
    config.algorithm.loss = f"{tmp_path}/mine.py:loss"
    samples = make_samples(5)
    metrics = engine(config).train([samples], 0)
    tokens = [sum(s.loss_mask) for s in samples]
    expected = sum(s.columns["advantage"] * n for s, n in zip(samples, tokens)) / sum(tokens)
    assert metrics["train/mine"] == pytest.approx(expected, abs=1e-5)
    assert metrics["train/mine_max"] == pytest.approx(max(s.columns["advantage"] for s in samples), abs=1e-5)
    assert "train/clip_fraction" not in metrics


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_stops_before_the_weights_change(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples, bad: float
) -> None:
    trained, samples = engine(make_config(models("qwen2"))), make_samples(4)
    before = weights(trained)
    with pytest.raises(TrainingError, match=r"step 7.*not changed"):
        trained.train([[samples[0].with_columns(advantage=bad), *samples[1:]]], 7)
    after = weights(trained)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert math.isfinite(trained.train([samples], 8)["train/loss"])


def test_bfloat16_keeps_float32_masters_and_follows_float32(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples
) -> None:
    samples = make_samples(10)
    exact = engine(make_config(models("qwen3"))).train([samples], 0)
    trained = engine(make_config(models("qwen3"), precision=Precision.bfloat16, lr=1e-6))
    rough = trained.train([samples], 0)
    assert rough["train/grad_norm"] == pytest.approx(exact["train/grad_norm"], rel=0.1)
    masters = [p for group in trained.optimizer.param_groups for p in group["params"]]
    assert all(p.dtype is torch.float32 for p in masters)
    assert all(tensor.dtype is torch.bfloat16 for _, tensor in trained.export())


def test_chunked_logprobs_equal_whole_ones_with_their_gradients(
    engine: Callable[..., Any],
    models: Models,
    make_config: MakeConfig,
    make_samples: MakeSamples,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vime.trainer import logprob

    config, samples = make_config(models("qwen2", tied=True)), make_samples(10)
    config.algorithm.entropy_coefficient = 0.1
    whole = engine(config).train([samples], 0)
    monkeypatch.setattr(logprob, "LOGITS_IN_CHUNK", 160 * 7)
    chunked = engine(config).train([samples], 0)
    for name in ("train/loss", "train/grad_norm", "train/entropy"):
        assert chunked[name] == pytest.approx(whole[name], rel=1e-5), name


@pytest.mark.parametrize("how", [{"recompute": True}, {"megatron_args": {"recompute_granularity": "selective"}}])
def test_recomputing_activations_changes_nothing(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples, how: dict[str, Any]
) -> None:
    samples = make_samples(10)
    plain = engine(make_config(models("qwen3"))).train([samples], 0)
    recomputed = engine(make_config(models("qwen3"), **how)).train([samples], 0)
    assert recomputed["train/loss"] == plain["train/loss"]
    assert recomputed["train/grad_norm"] == pytest.approx(plain["train/grad_norm"], rel=1e-5)


def test_arguments_that_would_train_something_else_are_refused(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig
) -> None:
    arguments = {"sequence_parallel": True, "params_dtype": "float16", "moe_aux_loss_coeff": 0.01}
    with pytest.raises(ConfigError) as caught:
        engine(make_config(models("qwen2"), megatron_args=arguments))
    keys = {problem.key for problem in caught.value.problems}
    assert keys == {f"trainer.megatron_args.{name}" for name in arguments}


def test_a_mixture_of_experts_trains(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples
) -> None:
    trained, samples = engine(make_config(models("qwen3_moe"))), make_samples(10)
    before = weights(trained)
    assert math.isfinite(trained.train([samples], 0)["train/grad_norm"])
    after = weights(trained)
    assert all(not torch.equal(before[name], after[name]) for name in before if "experts" in name or "mlp.gate" in name)


def test_learning_rate_follows_warm_up_and_schedule() -> None:
    shape: dict[str, Any] = {"lr": 1.0, "min_lr": 0.1, "warmup_steps": 2, "num_steps": 10}
    constant, linear, cosine = (TrainerConfig(lr_schedule=schedule, **shape) for schedule in Schedule)
    assert [learning_rate(linear, step) for step in (0, 1, 2, 6, 10, 99)] == pytest.approx([0.5, 1.0, 1.0, 0.55, 0.1, 0.1])
    assert [learning_rate(cosine, step) for step in (2, 6, 10)] == pytest.approx([1.0, 0.55, 0.1])
    assert learning_rate(constant, 9) == 1.0


def test_the_learning_rate_of_the_step_is_used(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples
) -> None:
    trained = engine(make_config(models("qwen2"), lr=1e-3, warmup_steps=4))
    assert trained.train([make_samples(3)], 1)["train/lr"] == pytest.approx(5e-4)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_trainer_that_left_the_device_and_came_back_goes_on_bitwise(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples, precision: str
) -> None:
    results = []
    for leaves in (False, True):
        trained = engine(make_config(models("qwen3"), precision=precision))
        trained.train([make_samples(5)], 0)
        if leaves:
            trained.offload(weights=False)
            found = trained.logprobs([[1, 2, 3, 4]], [2], 1.0)  # the weights are still there
            trained.offload(weights=True)
            assert all(parameter.untyped_storage().size() == 0 for parameter in trained.model.parameters())
            trained.onload()
            assert trained.logprobs([[1, 2, 3, 4]], [2], 1.0) == found
        metrics = trained.train([make_samples(5, seed=1)], 1)
        results.append((metrics["train/loss"], metrics["train/grad_norm"], [p.clone() for p in trained.model.parameters()]))
    (loss, norm, weights), (other_loss, other_norm, other_weights) = results
    assert loss == other_loss and norm == other_norm
    assert all(torch.equal(one, other) for one, other in zip(weights, other_weights))


def test_no_more_micro_batches_are_on_the_device_than_are_worked_on(
    engine: Callable[..., Any],
    models: Models,
    make_config: MakeConfig,
    make_samples: MakeSamples,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vime.trainer import micro_batch

    built: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []
    build = micro_batch._build

    def watched(*arguments: Any, **options: Any) -> Any:
        batch = build(*arguments, **options)
        built.append(weakref.ref(batch.tokens_T))
        alive.append(sum(tokens() is not None for tokens in built))
        return batch

    monkeypatch.setattr(micro_batch, "_build", watched)
    config = make_config(models("qwen2"), max_tokens_per_micro_batch=70)
    config.algorithm.kl_coefficient = 0.1
    engine(config).train([make_samples(12), make_samples(12, seed=1)], 0)
    assert len(alive) > 12 and max(alive) <= 2


@pytest.mark.parametrize("max_tokens", [64, 4096])
def test_the_logprobs_of_the_training_pass_are_those_before_the_update(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples, max_tokens: int
) -> None:
    config = make_config(models("qwen3"), max_tokens_per_micro_batch=max_tokens)
    config.trainer.num_epochs_per_batch = 2
    samples, trained = make_samples(12), engine(config)
    lengths = [sample.response_length for sample in samples]
    before = trained.logprobs([sample.tokens for sample in samples], lengths, config.rollout.temperature)
    trained.train([samples[:7], [], samples[7:]], 0)
    after = trained.logprobs([sample.tokens for sample in samples], lengths, config.rollout.temperature)
    found = trained.trained_logprobs()
    assert set(found) == {(0, place) for place in range(7)} | {(1, place) for place in range(5)}
    for place, sample in enumerate(samples[:7]):
        kept = [value for value, mask in zip(before[place], sample.loss_mask) if mask]
        assert found[0, place].tolist() == pytest.approx(kept, abs=1e-5)
    assert max(abs(a - b) for place in range(7) for a, b in zip(before[place], after[place])) > 1e-4
    trained.train([samples[:2]], 1)
    assert set(trained.trained_logprobs()) == {(0, 0), (0, 1)}


def test_no_logprobs_are_kept_where_tokens_are_not_recorded(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: MakeSamples
) -> None:
    config = make_config(models("qwen3"))
    config.logger.rollouts = RolloutDetail.turns
    trained = engine(config)
    trained.train([make_samples(4)], 0)
    assert trained.trained_logprobs() == {}
