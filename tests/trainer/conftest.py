"""Small random Hugging Face models of each family, configurations for them, and a world of one rank.

It computes in one thread: for matrices this small, a second one spins more than it computes.
"""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vime.config import (
    Family,
    LoraConfig,
    LoraTarget,
    ModelConfig,
    OldLogprobs,
    Precision,
    RoutingReplay,
    RunConfig,
    Surrogate,
    TrainedQuantization,
    TrainerConfig,
)
from vime.model.families import family_of
from vime.types import Sample
from vime.weights.quantize import four_bits, integers, is_quantized, largest, scale_of

VOCAB = 160
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def write_checkpoint(folder: Path, family: str, *, tied: bool = False) -> Path:
    """Writes a random model, with no parameter at a value (0, 1) that would hide a mistake."""
    import transformers

    torch.manual_seed(0)
    own = family_of(family)
    kind, options = getattr(transformers, own.config_class), {**SHAPE, **own.test_shape, "tie_word_embeddings": tied}
    model = transformers.AutoModelForCausalLM.from_config(kind(**options))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return folder


def write_adapter(folder: Path, checkpoint: Path, **options: Any) -> Path:
    """Writes an adapter of all matrices with PEFT, none of whose values is 0."""
    import peft
    import transformers

    torch.manual_seed(1)
    base = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    defaults: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": [target.value for target in LoraTarget]}
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **(defaults | options)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name or "lora_embedding_A" in name:
                parameter.normal_(std=0.05)
    model.save_pretrained(str(folder))
    return folder


def build_config(folder: Path, *, lora: dict[str, Any] | None = None, **trainer: Any) -> RunConfig:
    """A run of the model in `folder`, in float32 unless `trainer` says otherwise."""
    from vime.model.architecture import read_architecture

    architecture = read_architecture(folder)
    names = ["num_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"]
    names += [
        "vocab_size",
        "tie_word_embeddings",
        "num_experts",
        "num_experts_per_token",
        "moe_intermediate_size",
        "linear_attention",
    ]
    shape = {name: getattr(architecture, name) for name in names}
    model = ModelConfig(checkpoint=str(folder), family=Family(architecture.family), **shape)
    defaults: dict[str, Any] = {"precision": "float32", "lr": 1e-3, "num_threads": 1, "clip_grad": 1.0}
    fields: dict[str, Any] = defaults | trainer
    fields["precision"] = Precision(fields["precision"])
    fields["quantization"] = TrainedQuantization(fields.get("quantization", "none"))
    fields["lora"] = LoraConfig(**(lora or {}))
    fields["lora"].targets = [LoraTarget(target) for target in fields["lora"].targets]  # a job in JSON has their names
    return RunConfig(model=model, trainer=TrainerConfig(**fields))


def rounded_to_int8(values: torch.Tensor) -> torch.Tensor:
    """Values that 8-bit integers represent, a scale for each row."""
    scale = scale_of(largest(values))
    return (integers(values, scale) * scale).to(values.dtype)


@torch.no_grad()
def quantize(model: Any, bits: TrainedQuantization) -> Any:
    """Makes the linear layers of a Hugging Face model compute with what integers represent; returns the model."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and is_quantized(f"{name}.weight"):
            weight = module.weight.data
            module.weight.data = rounded_to_int8(weight) if bits is TrainedQuantization.int8 else four_bits(weight)
            if bits is TrainedQuantization.int8:
                module.register_forward_pre_hook(lambda _, inputs: (rounded_to_int8(inputs[0]),))
    for name, parameter in model.named_parameters():
        if ".experts." in name and parameter.dim() == 3:  # all experts in one
            parameter.data = four_bits(parameter.flatten(0, 1)).view_as(parameter)
    return model


def build_samples(count: int, *, seed: int = 0, with_gaps: bool = True) -> list[Sample]:
    """Ragged samples with random tokens, advantages and weights, some response tokens untrained."""
    generator = random.Random(seed)
    samples = []
    for _ in range(count):
        response = generator.randint(2, 30)
        mask = [int(not with_gaps or generator.random() < 0.8) for _ in range(response)]
        mask[-1] = 1
        samples.append(
            Sample(
                tokens=[generator.randrange(VOCAB) for _ in range(response + generator.randint(1, 40))],
                loss_mask=mask,
                columns={
                    "logprob": [-generator.uniform(4.0, 6.0) for _ in range(response)],
                    "advantage": generator.gauss(0, 1),
                    "weight": generator.uniform(0.5, 1.5) / (15 * count),
                },
            )
        )
    return samples


def with_likeliest(config: RunConfig, samples: list[Sample], *, num: int = 6) -> list[Sample]:
    """The samples with likeliest tokens for score centering over kept tokens, which `config` is set to."""
    generator = np.random.default_rng(1)
    config.rollout.top_k, config.rollout.num_logprobs = num, num
    algorithm = config.algorithm
    algorithm.surrogate, algorithm.score_centering, algorithm.clip_low, algorithm.clip_high = Surrogate.cispo, True, 0.5, 0.5
    found = []
    for sample in samples:
        shape = (sample.response_length, num)
        ids = generator.permuted(np.tile(np.arange(VOCAB, dtype=np.int32), (shape[0], 1)), axis=1)[:, :num]
        ids[generator.random(shape[0]) < 0.3, num - 2 :] = -1
        ids[generator.random(shape[0]) < 0.9, 0] = -2
        ids[:, 0] = np.where(ids[:, 0] == -2, sample.tokens[-sample.response_length :], ids[:, 0])
        ids[:, 1:][ids[:, 1:] == ids[:, :1]] = -1
        logprobs = np.log(generator.dirichlet([1.0] * (num + 1), size=shape[0]))[:, :num].astype(np.float32)
        found.append(sample.with_columns(top_ids=ids, top_logprobs=np.where(ids < 0, -np.inf, logprobs)))
    return found


def with_experts(config: RunConfig, samples: list[Sample], *, share: float = 0.9) -> list[Sample]:
    """The samples with random experts of a `share` of their tokens, for a replay that `config` is set to."""
    config.trainer.routing_replay = RoutingReplay.rollout
    model, generator = config.model, np.random.default_rng(2)
    found = []
    for sample in samples:
        shape = (len(sample.tokens), model.num_layers, model.num_experts)
        experts = generator.random(shape).argsort(-1)[..., : model.num_experts_per_token].astype(np.uint8)
        experts[generator.random(len(experts)) >= share] = 255
        found.append(sample.with_columns(routed_experts=experts))
    return found


def replaying(config: RunConfig, samples: list[Sample], replay: str | None) -> list[Sample]:
    """The samples for updates that replay random experts or those of the trainer's own pass, which `config` is set to."""
    if replay == "trainer":
        config.trainer.routing_replay, config.algorithm.old_logprobs = RoutingReplay.trainer, OldLogprobs.trainer
        config.trainer.num_epochs_per_batch = 2
    return with_experts(config, samples) if replay == "rollout" else samples


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Folder of a random model by family, made once."""
    made: dict[tuple[str, bool], Path] = {}

    def get(family: str, *, tied: bool = False) -> Path:
        if (family, tied) not in made:
            made[family, tied] = write_checkpoint(tmp_path_factory.mktemp(f"{family}-{tied}"), family, tied=tied)
        return made[family, tied]

    return get


@pytest.fixture(scope="session")
def adapters(models: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Settings of a run that begins with a random adapter of PEFT's on the random model of a family."""
    made: dict[tuple[str, bool], Path] = {}

    def get(family: str, *, tied: bool = False) -> dict[str, Any]:
        if (family, tied) not in made:
            folder = tmp_path_factory.mktemp(f"adapter-{family}-{tied}")
            made[family, tied] = write_adapter(folder, models(family, tied=tied), target_modules=targets(family))
        chosen = [LoraTarget(name) for name in targets(family)]
        return {"rank": 4, "alpha": 8.0, "targets": chosen, "start": str(made[family, tied])}

    def targets(family: str) -> list[str]:
        return [target.value for target in LoraTarget if "moe" not in family or target.value[0] in "qkvoel"]

    return get


@pytest.fixture(scope="session")
def run_ranks() -> Callable[..., None]:
    """`run_ranks(script, job)`: runs a script of this folder that forks the ranks of a trainer, and waits for all of them."""

    def run(script: str, job: Path) -> None:
        folder = Path(__file__).parent
        command = [sys.executable, "-W", "ignore", str(folder / script), str(job)]
        environment = {**os.environ, "PYTHONPATH": str(folder.parents[1])}
        ranks = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            errors = ranks.communicate(timeout=600)[1]
        finally:
            if ranks.poll() is None:
                os.killpg(ranks.pid, signal.SIGKILL)  # and the ranks that it forked
        assert ranks.returncode == 0, errors[-6000:]

    return run


@pytest.fixture(scope="session")
def world() -> Iterator[None]:
    """A world of one rank in this process."""
    from vime.trainer import megatron_setup

    megatron_setup.set_up()
    from vime.trainer import parallel

    parallel.initialize(TrainerConfig(num_threads=1), rank=0, seed=0)
    yield
    parallel.shutdown()


@pytest.fixture
def engine(world: None) -> Callable[[RunConfig], Any]:
    """Builds the engine of a configuration."""
    from vime.trainer.lockstep import LockstepEngine

    return LockstepEngine


@pytest.fixture(scope="session")
def make_config() -> Callable[..., RunConfig]:
    """`make_config(folder, **trainer)`."""
    return build_config


@pytest.fixture(scope="session")
def quantize_model() -> Callable[..., Any]:
    """`quantize_model(hugging_face_model, bits)`."""
    return quantize


@pytest.fixture(scope="session")
def make_samples() -> Callable[..., list[Sample]]:
    """`make_samples(count, seed=0, with_gaps=True)`."""
    return build_samples


@pytest.fixture(scope="session")
def make_replaying() -> Callable[..., list[Sample]]:
    """`make_replaying(config, samples, replay)`."""
    return replaying


@pytest.fixture(scope="session")
def make_experts() -> Callable[..., list[Sample]]:
    """`make_experts(config, samples, share=0.9)`."""
    return with_experts


@pytest.fixture(scope="session")
def make_likeliest() -> Callable[..., list[Sample]]:
    """`make_likeliest(config, samples, num=6)`."""
    return with_likeliest
