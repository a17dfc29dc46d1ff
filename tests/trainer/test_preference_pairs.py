"""Pairs of replies beside TRL's `DPOTrainer`: one step has its loss and its gradients (arXiv 2305.18290, equation 7)."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.conftest import VOCAB
from vime.algorithm.algorithm import OLD, REFERENCE
from vime.algorithm.preference import CHOSEN, REJECTED
from vime.config import AlgorithmName, RunConfig
from vime.types import Sample

BETA, NUM_PAIRS = 0.7, 6


def drawn_pairs(generator: random.Random) -> list[dict[str, list[int]]]:
    """Token ids of prompts with two replies each, of all lengths; 0 is TRL's padding."""

    def text(longest: int) -> list[int]:
        return [generator.randrange(1, VOCAB) for _ in range(generator.randint(1, longest))]

    return [{"prompt_ids": text(20), "chosen_ids": text(12), "rejected_ids": text(12)} for _ in range(NUM_PAIRS)]


def trl_step(policy: Path, reference: Path, pairs: list[dict[str, list[int]]], folder: Path) -> tuple[float, dict[str, Any]]:
    """TRL's loss of the pairs, and its gradients by the names of Hugging Face."""
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
    from trl import DPOConfig, DPOTrainer  # type: ignore[attr-defined]  # a lazy module

    words = Tokenizer(WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<pad>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    model, kept = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (policy, reference))
    plain: dict[str, Any] = {"bf16": False, "gradient_checkpointing": False, "use_cpu": True, "report_to": []}
    trainer: Any = DPOTrainer(
        model=model,
        ref_model=kept,
        args=DPOConfig(output_dir=str(folder), beta=BETA, per_device_train_batch_size=NUM_PAIRS, **plain),
        train_dataset=Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}]),
        processing_class=tokenizer,
    )
    loss = trainer.compute_loss(model, trainer.data_collator(pairs))
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in model.named_parameters()}


def sequences(pairs: list[dict[str, list[int]]]) -> list[Sample]:
    """The pairs as the trainer gets them, not in their order."""
    found = []
    for number, pair in enumerate(pairs):
        for order, seat in enumerate((CHOSEN, REJECTED)):
            reply = pair[f"{seat}_ids"]
            columns = {"advantage": 0.0, "weight": 1 / NUM_PAIRS}
            about: dict[str, Any] = {"pair": number, "rollout_id": number, "order": order, "seat": seat, "columns": columns}
            found.append(Sample(tokens=[*pair["prompt_ids"], *reply], loss_mask=[1] * len(reply), **about))
    return found[::2] + found[1::2][::-1]


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_loss_and_gradients_are_those_of_trl(
    engine: Callable[..., Any], models: Callable[..., Path], make_config: Callable[..., RunConfig], tmp_path: Path, family: str
) -> None:
    from vime.trainer import bridge, names
    from vime.trainer.shard import PackedUpdate

    config = make_config(models(family), max_tokens_per_micro_batch=60)
    config.algorithm.name, config.algorithm.object = AlgorithmName.sft, "vime.algorithm.preference.Preference"
    config.algorithm.options = {"beta": BETA}
    trained, pairs = engine(config), drawn_pairs(random.Random(3))
    with torch.no_grad():  # a policy that is no longer its reference
        for _, parameter in bridge._mapped(trained.model, expert_rank=0, adapters=False):
            parameter += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
    trained.optimizer.reload_model_params()
    trained.save_hugging_face(tmp_path / "policy")
    loss, expected = trl_step(tmp_path / "policy", models(family), pairs, tmp_path / "trl")

    samples = sequences(pairs)
    packed = PackedUpdate.of(config, trained.algorithm, samples, version=0, has_advantages=False)
    known = trained._by_sample(packed, trained.forward(packed.shard(0), [OLD, REFERENCE]))
    samples = [sample.with_columns(**found) for sample, found in zip(samples, known)]
    lesson = trained.algorithm.advantages([], samples)
    assert lesson.metrics["train/preference_loss"] == pytest.approx(loss, rel=1e-5)
    weights = lesson.values["advantage"]
    samples = [sample.with_columns(advantage=weights[sample.rollout_id, sample.order]) for sample in samples]
    trained.forward_backward(PackedUpdate.of(config, trained.algorithm, samples, version=0).shard(0), trained.algorithm)
    for mapping, parameter in bridge._mapped(trained.model, expert_rank=0, adapters=False):
        wanted = names.fuse(mapping.layout, [expected[name] for name in mapping.names], trained.architecture)
        found: torch.Tensor = parameter.main_grad  # type: ignore[attr-defined]
        assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max(), mapping.names
