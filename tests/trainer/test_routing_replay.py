"""Replayed experts give the logprobs of Hugging Face's model with these experts; the routers' own ones change no bit."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vime.algorithm.algorithm import OLD, REFERENCE, Forward
from vime.config import OldLogprobs, RoutingReplay, RunConfig
from vime.errors import SampleError
from vime.types import Sample

Models = Callable[..., Path]


@pytest.fixture
def config(models: Models, make_config: Callable[..., RunConfig]) -> RunConfig:
    return make_config(models("qwen3_moe"), max_tokens_per_micro_batch=100)


def forward(engine: Any, config: RunConfig, samples: list[Sample], need: Forward) -> list[np.ndarray]:
    """A column of the trained tokens, by sequence."""
    from vime.trainer.shard import PackedUpdate

    packed = PackedUpdate.of(config, engine.algorithm, samples, version=0, has_advantages=False)
    return [found[need.column] for found in packed.by_sample([engine.forward(packed.shard(0), [need])])]


def own_experts(engine: Any, config: RunConfig, samples: list[Sample]) -> list[Sample]:
    """The samples with the experts that the routers choose, in another order."""
    from vime.trainer import passes
    from vime.trainer.routing_replay import Replay, Routing
    from vime.trainer.shard import PackedUpdate

    Replay(RoutingReplay.rollout, engine.model.parts)
    found = []
    for sample in samples:
        shard = PackedUpdate(config, [sample]).shard(0)
        routing = Routing(records=True)
        passes.forward(engine.wrapped, engine._micro_batches(shard, only_trained=True).routed([routing]), temperature=1.0)
        layers = [routing.chosen[layer].flip(1).numpy() for layer in range(config.model.num_layers)]
        found.append(sample.with_columns(routed_experts=np.stack(layers, 1)))
    return found


@contextmanager
def forced(model: Any, experts_TLK: np.ndarray) -> Iterator[None]:
    """Hugging Face's routers choose these experts, with the softmax over their scores."""
    hooks = []
    for layer, block in enumerate(model.model.layers):
        ids_TK = torch.from_numpy(experts_TLK[:, layer].astype(np.int64))

        def choose(module: Any, inputs: Any, output: Any, ids_TK: torch.Tensor = ids_TK) -> Any:
            logits, _, _ = output
            return logits, logits.gather(1, ids_TK).softmax(-1), ids_TK

        hooks.append(block.mlp.gate.register_forward_hook(choose))
    yield
    for hook in hooks:
        hook.remove()


def test_replayed_logprobs_are_those_of_hugging_faces_model_with_these_experts(
    config: RunConfig, models: Models, engine: Any, make_samples: Any, make_experts: Any
) -> None:
    from transformers import AutoModelForCausalLM

    samples = make_experts(config, make_samples(5, with_gaps=False), share=1.0)
    model: Any = AutoModelForCausalLM.from_pretrained(models("qwen3_moe"), dtype=torch.float32)
    trained = engine(config)
    for sample, found in zip(samples, forward(trained, config, samples, OLD)):
        tokens = torch.tensor([sample.tokens])
        with forced(model, sample.columns["routed_experts"]), torch.no_grad():
            logprobs = model(tokens).logits[0, :-1].log_softmax(-1).gather(1, tokens[0, 1:].unsqueeze(1))[:, 0]
        np.testing.assert_allclose(found, logprobs[-sample.response_length :].numpy(), atol=1e-4)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_replay_of_the_routers_own_choice_changes_no_bit(
    models: Models, make_config: Any, engine: Any, make_samples: Any, recompute: bool
) -> None:
    results = []
    for kind in (RoutingReplay.none, RoutingReplay.rollout):
        config = make_config(models("qwen3_moe"), max_tokens_per_micro_batch=100, recompute=recompute)
        trained, samples = engine(config), make_samples(9)
        if kind is RoutingReplay.rollout:
            samples = own_experts(trained, config, samples)
            config.trainer.routing_replay = kind
            trained = engine(config)
        found = trained.train([samples], 0)
        results.append((found, {name: tensor.clone() for name, tensor in trained.export()}))
    (own, expected), (replayed, weights) = results
    assert replayed["train/routing_difference"] == 0
    assert replayed["train/num_replayed_tokens"] == sum(len(sample.tokens) for sample in make_samples(9))
    for key in ("train/loss", "train/grad_norm", "train/entropy", "train/logprob_difference_mean"):
        assert replayed[key] == own[key], key
    for name, tensor in expected.items():
        assert torch.equal(weights[name], tensor), name


def test_experts_that_are_not_known_are_the_routers_own(
    models: Models, make_config: Any, engine: Any, make_samples: Any, make_experts: Any
) -> None:
    losses = []
    for share in (None, 0.0, 1.0):
        config = make_config(models("qwen3_moe"))
        samples = make_samples(9) if share is None else make_experts(config, make_samples(9), share=share)
        losses.append(engine(config).train([samples], 0)["train/loss"])
    assert losses[0] == losses[1] != losses[2]


def test_the_reference_chooses_its_own_experts(
    config: RunConfig, models: Models, make_config: Any, engine: Any, make_samples: Any, make_experts: Any
) -> None:
    plain = make_config(models("qwen3_moe"))
    for each in (plain, config):
        each.algorithm.kl_coefficient = 0.1
    samples = make_experts(config, make_samples(5))
    ours, theirs = engine(config), engine(plain)
    for found, expected in zip(forward(ours, config, samples, REFERENCE), forward(theirs, plain, samples, REFERENCE)):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    found, expected = (forward(each, own, samples, OLD) for each, own in ((ours, config), (theirs, plain)))
    assert max(abs(a - b).max() for a, b in zip(found, expected)) > 0.01


def test_the_experts_of_the_old_logprobs_are_used_by_all_updates_of_the_batch(
    models: Models, make_config: Any, engine: Any, make_samples: Any
) -> None:
    found = {}
    for kind in (RoutingReplay.none, RoutingReplay.trainer):
        config = make_config(models("qwen3_moe"), routing_replay=kind, num_epochs_per_batch=2, lr=1e-2)
        config.algorithm.old_logprobs = OldLogprobs.trainer
        found[kind] = engine(config).train([make_samples(9)], 0)
    assert found[RoutingReplay.trainer]["train/routing_difference"] > 0.01
    assert found[RoutingReplay.trainer]["train/loss"] != found[RoutingReplay.none]["train/loss"]


def test_a_sequence_without_experts_is_refused_by_name(config: RunConfig, engine: Any, make_samples: Any) -> None:
    config.trainer.routing_replay = RoutingReplay.rollout
    with pytest.raises(SampleError, match="no column 'routed_experts'"):
        engine(config).train([make_samples(3)], 0)
