"""Every layout of ranks gives what one rank and Hugging Face give, on gloo; the ranks of all are forked from one process."""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests import chosen
from vime.config import RunConfig, TrainedQuantization
from vime.types import Sample
from vime.weights.export import write_payload

Models = Callable[..., Path]
TENSOR, PIPELINE = {"tensor_parallel_size": 2, "sequence_parallel": False}, {"pipeline_parallel_size": 2}
DATA = {"data_parallel_size": 2}
CONTEXT, EXPERT, SEQUENCE = {"context_parallel_size": 2}, {"expert_parallel_size": 2}, {"sequence_parallel": True}
INTERLEAVED = PIPELINE | {"virtual_pipeline_parallel_size": 2, "max_tokens_per_micro_batch": 60}
RECOMPUTE, OVERLAP = {"recompute": True}, {"overlap_gradient_reduction": True}
MOE = "qwen3_moe"
OF_EXPERTS = (MOE, "gpt_oss")
BASIC = {"tensor": TENSOR, "pipeline": PIPELINE, "tensor_pipeline": TENSOR | PIPELINE, "context": CONTEXT}
OF_FAMILY = {
    "qwen2_tied": ("tensor", "pipeline", "tensor_pipeline"),
    "qwen3": ("tensor", "pipeline", "tensor_pipeline", "context"),
    "llama_tied": ("tensor_pipeline", "context"),
    "gemma3_text_tied": ("tensor", "tensor_pipeline", "context"),
    "qwen3_5_text": ("tensor", "pipeline", "tensor_pipeline"),
}
DENSE = {f"{family} {name}": BASIC[name] for family, names in OF_FAMILY.items() for name in names}
EXPERTS = {
    f"{MOE} tensor": TENSOR | SEQUENCE,
    f"{MOE} tensor_pipeline": TENSOR | PIPELINE | SEQUENCE,
    f"{MOE} context": CONTEXT,
    "gpt_oss tensor_pipeline": TENSOR | PIPELINE | SEQUENCE,
}
PRODUCTS: dict[str, dict[str, Any]] = {
    "qwen3 data": DATA,
    "qwen3 sequence recompute": TENSOR | SEQUENCE | RECOMPUTE,
    "llama_tied tensor_context": TENSOR | CONTEXT,
    "qwen3 sequence_context": TENSOR | SEQUENCE | CONTEXT,
    "gemma3_text_tied sequence recompute": TENSOR | SEQUENCE | RECOMPUTE,
    "qwen3_5_text_tied sequence recompute": TENSOR | SEQUENCE | RECOMPUTE,
    "qwen3_5_text sequence_data": TENSOR | SEQUENCE | DATA,
    "qwen3_5_text interleaved": INTERLEAVED,
    "qwen2_tied sequence_data": TENSOR | SEQUENCE | DATA,
    "qwen2_tied pipeline_context": PIPELINE | CONTEXT,
    "qwen3 context_data": CONTEXT | DATA,
    "qwen3 context4": {"context_parallel_size": 4},
    "qwen3 context one_row": CONTEXT | {"max_tokens_per_micro_batch": 10_000},
    "qwen3 context many_rows": CONTEXT | {"max_tokens_per_micro_batch": 20},
    "qwen3 context recompute": CONTEXT | RECOMPUTE,
    "qwen3 data4": {"data_parallel_size": 4},
    "qwen2_tied overlap": {"data_parallel_size": 4} | OVERLAP,
    "llama_tied overlap_pipeline": DATA | PIPELINE | OVERLAP,
    "qwen3 overlap_interleaved recompute": DATA | INTERLEAVED | OVERLAP | RECOMPUTE,
    "qwen3 overlap_context": DATA | CONTEXT | OVERLAP,
    "llama_tied data_pipeline": DATA | PIPELINE,
    f"{MOE} overlap_expert": DATA | TENSOR | SEQUENCE | EXPERT | OVERLAP,
    "qwen3 pipeline uneven": {"pipeline_parallel_size": 3, "megatron_args": {"num_layers_in_first_pipeline_stage": 2}},
    "qwen3 interleaved": INTERLEAVED,
    "qwen2_tied interleaved one_row": INTERLEAVED | {"max_tokens_per_micro_batch": 10_000},
    "llama_tied interleaved_sequence recompute": INTERLEAVED | TENSOR | SEQUENCE | RECOMPUTE,
    "qwen3 interleaved_context": INTERLEAVED | CONTEXT,
    f"{MOE} expert": DATA | EXPERT,
    f"{MOE} sequence_expert": TENSOR | SEQUENCE | EXPERT,
    "gpt_oss sequence_expert": TENSOR | SEQUENCE | EXPERT,
    "gpt_oss context_expert recompute": CONTEXT | EXPERT | RECOMPUTE,
    f"{MOE} context_expert recompute": CONTEXT | EXPERT | RECOMPUTE,
    f"{MOE} expert_copies": EXPERT | {"data_parallel_size": 4},
    f"{MOE} expert4": TENSOR | SEQUENCE | DATA | {"expert_parallel_size": 4},
    f"{MOE} pipeline_expert": PIPELINE | DATA | EXPERT,
    f"{MOE} interleaved_expert": INTERLEAVED | DATA | EXPERT,
}
ADAPTED: dict[str, dict[str, Any]] = {
    "qwen3_lora tensor": TENSOR,
    "qwen2_tied_lora tensor_pipeline": TENSOR | PIPELINE,
    "qwen3_lora sequence recompute": TENSOR | SEQUENCE | RECOMPUTE,
    "gemma3_text_tied_lora sequence": TENSOR | SEQUENCE,
    "qwen2_tied_lora data": DATA,
    "qwen3_lora overlap": DATA | OVERLAP,
    "qwen3_lora sequence_data": TENSOR | SEQUENCE | DATA,
    "qwen3_lora context": CONTEXT,
    f"{MOE}_lora sequence_expert": TENSOR | SEQUENCE | EXPERT,
    "qwen3_lora interleaved recompute": INTERLEAVED | RECOMPUTE,
}
INT8, INT4 = {"quantization": "int8"}, {"quantization": "int4"}
QUANTIZED: dict[str, dict[str, Any]] = {
    "qwen3_int8 tensor_pipeline": TENSOR | PIPELINE | INT8,
    "qwen2_tied_int8 sequence recompute": TENSOR | SEQUENCE | RECOMPUTE | INT8,
    "qwen3_int8 context_data": CONTEXT | DATA | INT8,
    f"{MOE}_int4 sequence_expert": TENSOR | SEQUENCE | EXPERT | INT4,
}
BFLOAT16 = {f"qwen3 {name}bfloat16": DATA | {"precision": "bfloat16"} | more for name, more in (("", {}), ("overlap ", OVERLAP))}
LAYOUTS = DENSE | EXPERTS | PRODUCTS | ADAPTED | QUANTIZED
WITH_WHOLE_ROWS = [
    name for name, sizes in LAYOUTS.items() if not {"pipeline_parallel_size", "context_parallel_size", "recompute"} & set(sizes)
]
RESUMED = [
    "qwen3 tensor",
    "qwen3_lora tensor",
    "qwen2_tied_lora data",
    "qwen2_tied_lora tensor_pipeline",
    "qwen2_tied tensor",
    "qwen3 pipeline",
    "qwen2_tied pipeline",
    "qwen3_5_text tensor_pipeline",
    "qwen3 data",
    *BFLOAT16,
]
WHOLE = {"qwen3 context whole": CONTEXT | {"max_tokens_per_micro_batch": 10_000}}
CUT = {"qwen3 sequence cut": TENSOR | SEQUENCE, "qwen3 context cut": CONTEXT, "qwen2_tied pipeline cut": PIPELINE}
"""Layouts whose sampler has kept a part of the tokens, and recorded them."""
LAYOUTS_OF_EXPERTS = {
    "tensor": TENSOR | SEQUENCE,
    "pipeline recompute": PIPELINE | RECOMPUTE,
    "context_expert": CONTEXT | EXPERT,
    "expert4": TENSOR | SEQUENCE | DATA | {"expert_parallel_size": 4},
    "interleaved_expert recompute": INTERLEAVED | DATA | EXPERT | RECOMPUTE,
    "tensor_pipeline recompute": TENSOR | PIPELINE | SEQUENCE | RECOMPUTE,
}
REPLAYED = {f"{MOE} {name} rollout": sizes for name, sizes in LAYOUTS_OF_EXPERTS.items()}
REPLAYED |= {f"{MOE} {name} trainer": sizes for name, sizes in LAYOUTS_OF_EXPERTS.items()}
"""Layouts that replay experts: random ones, or in the second of two epochs those of the pass for the old logprobs."""
CONTAINED = {
    *("llama_tied tensor_pipeline", "gemma3_text_tied tensor", "qwen3_5_text tensor", "qwen3_5_text pipeline"),
    *("qwen3 data4", "qwen3 context one_row", "qwen3 context_data", "llama_tied tensor_context"),
    *("qwen2_tied overlap", "llama_tied data_pipeline", "qwen2_tied interleaved one_row", "qwen3_5_text interleaved"),
    *(f"{MOE} {name}" for name in ("tensor", "expert", "expert4", "interleaved_expert")),
    *("qwen3_lora sequence recompute", "qwen2_tied_lora data", "gemma3_text_tied_lora sequence", "qwen3_int8 context_data"),
    *(f"{MOE} {name} rollout" for name in ("tensor", "pipeline recompute", "tensor_pipeline recompute")),
    *(f"{MOE} {name} trainer" for name in ("context_expert", "expert4", "interleaved_expert recompute")),
}
"""Layouts whose parts stand in others as well, of which only the long tests run each."""
WHOLE_LOSS = "def loss(config, logprobs, *_):\n    return -logprobs * logprobs.mean().exp(), {}\n"
"""A loss of all tokens of a row at once, as losses over sequences are: its gradient in one token depends on the others."""


def model_of(name: str) -> tuple[str, bool]:
    """Family, and whether its embeddings are tied."""
    family = re.sub("_(lora|int[48])$", "", name.split()[0])
    return family.removesuffix("_tied"), family.endswith("_tied")


def is_adapted(name: str) -> bool:
    """True for a layout that trains adapters."""
    return name.split()[0].endswith("_lora")


def bits_of(name: str) -> TrainedQuantization:
    """The integers in which a layout multiplies."""
    return TrainedQuantization(QUANTIZED.get(name, {}).get("quantization", "none"))


def replay_of(name: str) -> str | None:
    """The experts that a layout replays."""
    return name.split()[-1] if name in REPLAYED else None


@pytest.fixture(scope="module")
def whole_loss(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of the loss function."""
    path = tmp_path_factory.mktemp("loss") / "whole.py"
    path.write_text(WHOLE_LOSS)
    return f"{path}:loss"


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest,
    models: Models,
    adapters: Callable[..., dict[str, Any]],
    run_ranks: Callable[..., None],
    tmp_path_factory: pytest.TempPathFactory,
    world: None,
    whole_loss: str,
) -> tuple[Path, dict[str, list[dict[str, Any]]]]:
    """The folder of the chosen layouts, and by layout the reports of its ranks."""
    folder = tmp_path_factory.mktemp("parallel")
    layouts, every = [], LAYOUTS | BFLOAT16 | WHOLE | CUT | REPLAYED
    for name, trainer in [(name, every[name]) for name in chosen.values(request.session, request.module, "name")]:
        family, tied = model_of(name)
        layout = {"name": name, "trainer": trainer, "model": str(models(family, tied=tied)), "resume": name in RESUMED}
        lora = adapters(family, tied=tied) if is_adapted(name) else None
        own = {
            "loss": whole_loss if name in WHOLE else None,
            "is_cut": name in CUT,
            "replay": replay_of(name),
            "lora": lora and {**lora, "targets": [t.value for t in lora["targets"]]},
        }
        layouts.append(layout | own)
    job = folder / "job.json"
    job.write_text(json.dumps({"folder": str(folder), "layouts": layouts}))
    run_ranks("ranks.py", job)
    reports = {name: sorted((folder / name).glob("rank*.json")) for name in (layout["name"] for layout in layouts)}
    return folder, {name: [json.loads(path.read_text()) for path in paths] for name, paths in reports.items()}


def seen(results: Any, name: str) -> list[dict[str, Any]]:
    """Reports of all ranks of a layout."""
    return results[1][name]


@pytest.fixture(scope="module")
def references(
    models: Models,
    adapters: Callable[..., dict[str, Any]],
    make_config: Callable[..., RunConfig],
    make_samples: Any,
    make_likeliest: Any,
    make_replaying: Any,
    world: None,
) -> Callable[..., Any]:
    """Logprobs, metrics of two updates and weights of one rank, by model; made once."""
    from vime.trainer import bridge
    from vime.trainer.lockstep import LockstepEngine

    @cache
    def get(
        family: str,
        tied: bool,
        loss: str | None = None,
        *,
        adapted: bool = False,
        is_cut: bool = False,
        replay: str | None = None,
        bits: TrainedQuantization = TrainedQuantization.none,
    ) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
        lora = adapters(family, tied=tied) if adapted else None
        size = {"max_tokens_per_micro_batch": 10_000} if loss else {}
        config = make_config(models(family, tied=tied), lora=lora, quantization=bits, **size)
        config.algorithm.kl_coefficient, config.algorithm.entropy_coefficient = 0.05, 0.01
        config.algorithm.loss = loss
        samples = make_likeliest(config, make_samples(13)) if is_cut else make_samples(13)
        samples = make_replaying(config, samples, replay)
        engine = LockstepEngine(config)
        metrics = [engine.train([samples], 0), engine.train([samples[:1]], 1)]
        tensors = [*engine.export(), *bridge.export_hugging_face(engine.model, engine.architecture, adapters=True)]
        return metrics, {key: tensor.detach().clone() for key, tensor in tensors}

    return get


@pytest.fixture(scope="module")
def expected_logprobs(
    models: Models,
    adapters: Callable[..., dict[str, Any]],
    make_samples: Callable[..., list[Sample]],
    quantize_model: Callable[..., Any],
) -> Callable[..., Any]:
    """Hugging Face's logprobs of all response tokens, by sample; with PEFT's adapter or of integers if there are some."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    @cache
    def get(family: str, tied: bool, *, adapted: bool, bits: TrainedQuantization) -> list[list[float]]:
        model: Any = AutoModelForCausalLM.from_pretrained(models(family, tied=tied), dtype=torch.float32)
        if adapted:
            model = PeftModel.from_pretrained(model, adapters(family, tied=tied)["start"])
        if bits is not TrainedQuantization.none:
            quantize_model(model, bits)
        found = []
        with torch.no_grad():
            for sample in make_samples(13):
                tokens = torch.tensor([sample.tokens])
                every = model(tokens).logits[0, :-1].log_softmax(-1).gather(1, tokens[0, 1:].unsqueeze(1)).squeeze(1)
                found.append(every[-sample.response_length :].tolist())
        return found

    return get


@pytest.mark.parametrize("name", chosen.parameters(LAYOUTS, CONTAINED))
def test_logprobs_are_hugging_faces(results: Any, expected_logprobs: Callable[..., Any], name: str) -> None:
    bits = bits_of(name)
    expected = expected_logprobs(*model_of(name), adapted=is_adapted(name), bits=bits)
    reports = [report["logprobs"] for report in seen(results, name)]
    assert {int(index) for report in reports for index in report} == set(range(len(expected)))
    if bits is TrainedQuantization.int8:  # whose inputs may round to the next integer: they differ by a share of what all change
        plain = expected_logprobs(*model_of(name), adapted=False, bits=TrainedQuantization.none)
        change = np.mean([abs(a - b) for pair in zip(plain, expected) for a, b in zip(*pair)])
        away = [abs(a - b) for report in reports for index in report for a, b in zip(report[index], expected[int(index)])]
        assert np.mean(away) < 0.2 * change
        return
    for report in reports:
        for index, values in report.items():
            assert values == pytest.approx(expected[int(index)], abs=1e-4)


@pytest.mark.parametrize("name", chosen.parameters([*LAYOUTS, *WHOLE, *CUT, *REPLAYED], CONTAINED))
def test_updates_are_those_of_one_rank(results: Any, references: Callable[..., Any], whole_loss: str, name: str) -> None:
    loss, adapted = whole_loss if name in WHOLE else None, is_adapted(name)
    options = {"adapted": adapted, "is_cut": name in CUT, "replay": replay_of(name), "bits": bits_of(name)}
    metrics, weights = references(*model_of(name), loss, **options)
    rounds = bits_of(name) is TrainedQuantization.int8
    for report in seen(results, name):
        for found, expected, tolerance in zip(report["metrics"], metrics, (1e-3, 0.02) if rounds else (1e-4, 2e-4)):
            keys = ["train/loss", "train/kl", "train/entropy", "train/num_tokens"]
            is_first = found is report["metrics"][0]
            if not rounds or is_first:  # later one input that rounds otherwise may put a token beyond a clip
                keys.append("train/grad_norm")
            wider = ({"train/grad_norm": 0.02} if is_first else {"train/kl": 0.1}) if rounds else {}  # what such inputs move most
            if replay_of(name):
                assert found["train/num_replayed_tokens"] == expected["train/num_replayed_tokens"] > 0
                # once the weights have moved, each with its rounding, a router may be of two minds
                close = 0.01 if replay_of(name) == "trainer" else 0.0
                assert found["train/routing_difference"] == pytest.approx(expected["train/routing_difference"], abs=close)
            for key in keys:
                assert found[key] == pytest.approx(expected[key], rel=wider.get(key, tolerance), abs=1e-6), key
    saved = load_file(results[0] / name / "model" / "model.safetensors")
    if adapted:
        saved |= load_file(results[0] / name / "adapter" / "adapter_model.safetensors")
    assert saved.keys() == weights.keys()
    for key, tensor in weights.items():
        # Adam's first step is close to the sign of the gradient, so a gradient near zero may differ; hardly any may.
        differing = (saved[key] - tensor).abs() > 1e-4
        if adapted:
            assert (saved[key] - tensor).norm() < 5e-5 * tensor.norm(), key
        if rounds:
            assert (saved[key] - tensor).norm() < 5e-3 * tensor.norm(), key
        else:
            assert differing.float().mean() < 0.01, f"{key}: {int(differing.sum())} of {tensor.numel()} weights differ"


@pytest.mark.parametrize("name", chosen.parameters(WITH_WHOLE_ROWS, CONTAINED))
def test_the_plan_counts_what_a_rank_keeps(results: Any, name: str) -> None:
    reports = [report["kept"] for report in seen(results, name)]
    has_experts = name.startswith(OF_EXPERTS)
    for found, planned in [[sum(values) for values in zip(*reports)]] if has_experts else reports:  # uneven over experts
        assert planned == pytest.approx(found, rel=0.15 if has_experts else 0.06)


@pytest.mark.parametrize("name", chosen.parameters(RESUMED, CONTAINED))
def test_ranks_resume_bitwise(results: Any, name: str) -> None:
    for report in seen(results, name):
        _, uninterrupted, resumed = report["metrics"]
        for key in ("train/loss", "train/grad_norm", "train/entropy"):
            assert resumed[key] == uninterrupted[key]


@pytest.mark.parametrize("name", ["qwen3_lora tensor"])
def test_adapters_of_two_ranks_go_on_in_one(
    name: str,
    results: Any,
    models: Models,
    adapters: Callable[..., dict[str, Any]],
    make_config: Callable[..., RunConfig],
    make_samples: Any,
) -> None:
    from vime.trainer.lockstep import LockstepEngine

    config = make_config(models("qwen3"), lora=adapters("qwen3"))
    config.algorithm.kl_coefficient, config.algorithm.entropy_coefficient = 0.05, 0.01
    engine = LockstepEngine(config)
    engine.load(results[0] / name / "checkpoint")
    found, expected = engine.train([make_samples(13)[:1]], 1), seen(results, name)[0]["metrics"][1]
    assert found["train/grad_norm"] == pytest.approx(expected["train/grad_norm"], rel=5e-5)


@pytest.mark.parametrize("name", chosen.parameters([*LAYOUTS, *BFLOAT16], CONTAINED))
def test_the_exported_payload_holds_the_saved_weights_in_bounded_files(results: Any, name: str) -> None:
    from vime.weights.payload import WeightDigest

    folder, report = results[0] / name, seen(results, name)[0]
    digest = WeightDigest()
    for key, tensor in load_file(folder / "model" / "model.safetensors").items():
        digest.update(key, tensor)
    assert report["digest"] == digest.hexdigest()
    files = sorted((folder / "weights").iterdir())
    assert len(files) == report["num_files"] > 2
    names = [key for path in files for key in load_file(path)]
    assert len(names) == len(set(names)) == digest.num_tensors


@pytest.mark.parametrize(
    "name", chosen.parameters([name for name in LAYOUTS if "interleaved" in name and "one_row" not in name], CONTAINED)
)
def test_rows_of_an_interleaved_pipeline_have_different_lengths(results: Any, name: str) -> None:
    """Different lengths allow mixed-up messages of two directions; without them, other tests of these layouts prove nothing."""
    for report in seen(results, name):
        assert len(set(report["row_lengths"])) > 2
        assert len(report["row_lengths"]) % 2 == 0


def test_only_the_last_two_versions_of_a_payload_stay(
    engine: Callable[..., Any], models: Models, make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    trained = engine(make_config(models("qwen2")))
    payloads = [write_payload(trained.export(), folder=tmp_path, version=version) for version in range(4)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["actor-v2-0.safetensors", "actor-v3-0.safetensors"]
    assert len({payload.digest for payload in payloads}) == 1
    assert payloads[3].num_tensors == len(load_file(payloads[3].files[0]))
    assert torch.equal(load_file(payloads[3].files[0])["model.norm.weight"], dict(trained.export())["model.norm.weight"])
