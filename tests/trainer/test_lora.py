"""Adapters beside PEFT's: the same gradients, the same folders; and what a run with adapters keeps and saves.

Layouts of ranks are compared with one rank in `test_parallel.py`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.conftest import VOCAB, write_adapter
from vime.config import LoraConfig, LoraInit, LoraTarget, RunConfig
from vime.errors import CheckpointError, ConfigError
from vime.types import Sample

Models = Callable[..., Path]
MakeConfig = Callable[..., RunConfig]
LOSS = "def loss(config, logprobs, *_):\n    return -logprobs, {}\n"
ATTENTION = ["q_proj", "v_proj", "down_proj"]


def named(engine: Any) -> dict[str, torch.nn.Parameter]:
    """The adapters' parameters of one rank, under PEFT's names."""
    from vime.trainer import bridge

    return {mapping.names[0]: parameter for mapping, parameter in bridge._mapped(engine.model, expert_rank=0, adapters=True)}


def peft_model(checkpoint: Path, folder: str | Path) -> Any:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    return PeftModel.from_pretrained(base, str(folder), is_trainable=True)


def response_logprobs(model: Any, sample: Sample) -> torch.Tensor:
    tokens = torch.tensor([sample.tokens])
    every = model(input_ids=tokens).logits[0, :-1].log_softmax(-1).gather(1, tokens[0, 1:].unsqueeze(1)).squeeze(1)
    return every[-sample.response_length :]


@pytest.mark.parametrize("targets", [None, ATTENTION], ids=["all", "some"])
@pytest.mark.parametrize("family", ["qwen2", "qwen2 tied", "qwen3", "qwen3 chunked", "gemma3_text"])
def test_gradients_are_those_of_peft(
    engine: Callable[..., Any],
    models: Models,
    make_config: MakeConfig,
    make_samples: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    targets: Any,
) -> None:
    from vime.trainer import logprob
    from vime.trainer.shard import PackedUpdate

    family, _, kind = family.partition(" ")
    if kind == "chunked":
        monkeypatch.setattr(logprob, "LOGITS_IN_CHUNK", 7 * VOCAB)
    model = models(family, tied=kind == "tied")
    options = {"target_modules": targets} if targets else {}
    folder = write_adapter(tmp_path / "adapter", model, **options)
    lora = {"rank": 4, "alpha": 8.0, "start": str(folder), "targets": [LoraTarget(each) for each in targets or LoraTarget]}
    (tmp_path / "nll.py").write_text(LOSS)
    config = make_config(model, lora=lora, max_tokens_per_micro_batch=200)
    config.algorithm.loss = f"{tmp_path / 'nll.py'}:loss"
    samples, trained = make_samples(9), engine(config)
    trained.forward_backward(PackedUpdate(config, samples).shard(0), trained.algorithm)
    reference, loss = peft_model(model, folder), torch.zeros(())
    looked_up = reference.get_input_embeddings()
    for sample in samples:
        mask = torch.tensor(sample.loss_mask, dtype=torch.float32)
        loss = loss - (response_logprobs(reference, sample) * mask).sum() * sample.columns["weight"]
    loss.backward()
    expected = {name.replace(".default", ""): p.grad for name, p in reference.named_parameters() if p.requires_grad}
    found: dict[str, Any] = {name: parameter.main_grad for name, parameter in named(trained).items()}  # type: ignore[attr-defined]
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        if name.endswith("lora_embedding_A") and (padding := looked_up.base_layer.padding_idx) is not None:
            found[name][:, padding] = 0.0  # nothing learns from it in PyTorch
        assert (found[name] - gradient).abs().max() <= 5e-5 * gradient.abs().max(), name


@pytest.mark.parametrize("init", LoraInit)
def test_a_new_adapter_changes_nothing_and_only_it_is_trained(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: Any, init: LoraInit
) -> None:
    samples = make_samples(5)
    asked = ([s.tokens for s in samples], [s.response_length for s in samples], 1.0)
    whole = engine(make_config(models("qwen3")))
    config = make_config(models("qwen3"), lora={"rank": 4, "init": init})
    config.algorithm.kl_coefficient = 0.1
    trained, before = engine(config), whole.logprobs(*asked)
    assert trained.logprobs(*asked) == before
    base = {name: parameter.detach().clone() for name, parameter in trained.model.named_parameters() if ".lora." not in name}
    metrics = trained.train([samples], 0)
    assert metrics["train/kl"] == 0.0 and metrics["train/grad_norm"] > 0.0
    assert trained.logprobs(*asked) != before
    own = dict(trained.model.named_parameters())
    assert all(torch.equal(own[name], tensor) for name, tensor in base.items())
    size = sum(parameter.numel() for parameter in named(trained).values())
    assert size < 0.2 * sum(tensor.numel() for tensor in base.values())
    assert sum(parameter.numel() for group in trained.optimizer.param_groups for parameter in group["params"]) == size
    assert all(sum(kept.numel() for kept in second.kept) == size for second in trained.second.values())
    assert 0 < sum(buffer.numel() for buffer in trained._gradients()) < 1.1 * size + 1024


def test_adapters_that_share_a_model_are_bit_for_bit_those_of_runs_alone(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: Any, tmp_path: Path
) -> None:
    settings: list[dict[str, Any]] = [
        {"lora": {"rank": 4}, "lr": 1e-3},
        {"lora": {"rank": 2, "targets": ATTENTION, "init": LoraInit.gaussian}, "lr": 3e-3},
        {"lora": {"rank": 4, "alpha": 8.0}, "lr": 1e-3, "clip_grad": 0.1},
        {"lora": {"rank": 8, "targets": list(LoraTarget)}, "lr": 2e-3, "weight_decay": 0.1},
    ]
    configs = [make_config(models("qwen3"), **more) for more in settings]
    configs[0].algorithm.kl_coefficient, configs[2].seed = 0.1, 7
    batches = [[make_samples(4, seed=10 * place + step) for step in range(3)] for place in range(len(configs))]
    alone = []
    for config, own in zip(configs, batches):
        single = engine(config)
        metrics = [single.train([samples], step) for step, samples in enumerate(own)]
        alone.append((metrics, {name: parameter.detach().clone() for name, parameter in named(single).items()}))
    first = engine(configs[0])
    together = [first, *(engine(config, beside=first) for config in configs[1:])]
    assert len({id(trained.model) for trained in together}) == 1
    asked = (batches[0][0][0].tokens,), [batches[0][0][0].response_length], 1.0
    for step in range(3):
        for trained, own, (metrics, _) in zip(together, batches, alone):
            trained.activate()
            if step == 2:  # a checkpoint in the middle holds this adapter's state alone
                trained.save(tmp_path / f"{id(trained)}")
                trained.train([own[0]], step)
                trained.load(tmp_path / f"{id(trained)}")
            found = trained.train([own[step]], step)
            assert (found["train/loss"], found["train/grad_norm"]) == (
                metrics[step]["train/loss"],
                metrics[step]["train/grad_norm"],
            )
    answers = []
    for trained, (_, expected) in zip(together, alone):
        trained.activate()
        assert named(trained).keys() == expected.keys()
        assert all(torch.equal(parameter, expected[name]) for name, parameter in named(trained).items())
        answers.append(trained.logprobs(*asked)[0])
    assert len({tuple(answer) for answer in answers}) == len(configs)


@pytest.mark.parametrize(("family", "tied"), [("qwen3", False), ("qwen2", True)])
def test_folders_are_read_by_peft_and_by_transformers(
    engine: Callable[..., Any],
    models: Models,
    make_config: MakeConfig,
    make_samples: Any,
    tmp_path: Path,
    family: str,
    tied: bool,
) -> None:
    from transformers import AutoModelForCausalLM

    samples, model, lora = make_samples(4), models(family, tied=tied), {"rank": 4, "targets": list(LoraTarget)}
    trained = engine(make_config(model, lora=lora))
    trained.train([samples], 0)
    trained.train([samples], 1)
    trained.save_adapter(tmp_path / "adapter")
    trained.save_hugging_face(tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    assert not merged.config.tie_word_embeddings
    names = [name for name, _ in trained.export()]
    assert [(name, tensor.shape) for name, tensor in trained.export()] == [(n, s) for n, _, s in trained.exported_shapes()]
    assert "lm_head.weight" in names and len(names) == len(set(names))
    adapted = peft_model(model, tmp_path / "adapter")
    found = trained.logprobs([s.tokens for s in samples], [s.response_length for s in samples], 1.0)
    with torch.no_grad():
        for index, sample in enumerate(samples):
            for other in (merged, adapted):
                assert found[index] == pytest.approx(response_logprobs(other, sample).tolist(), abs=1e-4)
    again = engine(make_config(model, lora=lora | {"start": str(tmp_path / "adapter")}))
    assert all(torch.equal(tensor, named(again)[name]) for name, tensor in named(trained).items())


def test_a_checkpoint_holds_the_adapters_alone_and_belongs_to_its_base(
    engine: Callable[..., Any], models: Models, make_config: MakeConfig, make_samples: Any, tmp_path: Path
) -> None:
    config = make_config(models("qwen3"), lora={"rank": 2})
    trained = engine(config)
    trained.train([make_samples(4)], 0)
    trained.save(tmp_path / "checkpoint")
    size = sum(path.stat().st_size for path in (tmp_path / "checkpoint").rglob("*.distcp"))
    assert size < sum(parameter.nbytes for parameter in trained.model.parameters()), "the base is in it"
    again = engine(config)
    again.load(tmp_path / "checkpoint")
    metrics = [each.train([make_samples(4)], 1) for each in (trained, again)]
    assert metrics[0]["train/grad_norm"] == metrics[1]["train/grad_norm"]
    assert all(torch.equal(tensor, named(again)[name]) for name, tensor in named(trained).items())
    for other, words in (({"rank": 3}, "lora.rank is 2 there and 3 here"), (None, "lora.rank is 2 there and None here")):
        with pytest.raises(CheckpointError, match=words):
            engine(make_config(models("qwen3"), lora=other)).load(tmp_path / "checkpoint")
    weights = load_file(models("qwen3") / "model.safetensors")
    weights["model.norm.weight"] += 1e-3
    changed = tmp_path / "other"
    changed.mkdir()
    from safetensors.torch import save_file

    save_file(weights, changed / "model.safetensors")
    (changed / "config.json").write_text((models("qwen3") / "config.json").read_text())
    with pytest.raises(CheckpointError, match=r"lora\.base is"):
        engine(make_config(changed, lora={"rank": 2})).load(tmp_path / "checkpoint")


def test_an_engine_refuses_the_adapter_of_another_shape(
    engine: Callable[..., Any], models: Models, adapters: Callable[..., dict[str, Any]], make_config: MakeConfig
) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.lora\.rank"):
        engine(make_config(models("qwen3"), lora=adapters("qwen3") | {"rank": 8}))


def test_defaults_adapt_all_matrices_of_a_layer() -> None:
    assert [target.value for target in LoraTarget][:-2] == [
        target.value for target in LoraConfig().targets
    ] and LoraConfig().rank == 0
