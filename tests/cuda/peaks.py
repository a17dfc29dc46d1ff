"""Peak memory of training steps at true size on the device that is not there, beside what `mode=plan` promises.

    python -m tests.cuda.peaks [MODEL/CLUSTER …] [EXPERIMENT/CLUSTER …] [--set KEY=VALUE …] [--write FOLDER]

Rows are all models of `conf/model` on each cluster on which they are offered, and recipes with adapters; `--write` makes
`gpu_memory.md` and `gpu_memory.json` of them. Nothing here was measured on a GPU.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GIB = 2**30
CLUSTERS = ("one_gpu", "one_node", "two_nodes")
RECIPES = ("qwen2.5_7b", "qwen3_8b", "qwen3_4b_24gb", "qwen3_30b_a3b")
"""Recipes with adapters, `memagent_lora_…` of `conf/experiment`."""
SMALLEST = "tiny"
"""A model for cores, whose rows are too short for a plan's few bytes to count."""
SHARES = [0.625, 0.375]
"""Lengths of the sequences of a row, as shares of it: attention takes several calls a row, as almost always."""
NAMES = {"num_layers": "num_hidden_layers", "num_experts_per_token": "num_experts_per_tok"}
"""Fields of a model that Hugging Face calls otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """A rank's memory in one recipe, in bytes.

    Example: `Peak(model="qwen2.5-7b", cluster="one_node", layout="TP 2, DP 4", planned=…, reserve=…, gradient=…, step=…, …)`.
    """

    model: str
    cluster: str
    layout: str
    card: float
    planned: float
    """The plan's sum for a trainer rank."""
    reserve: float
    """Memory that the plan keeps for contexts, NCCL and sleeping servers."""
    gradient: int
    """The most during a forward and backward pass, of the second update."""
    step: int
    """The most during an optimizer step."""
    export: int
    """Memory that an export takes on top."""
    pinned: int
    """Page-locked host memory of a rank that has left its GPU, with its reference model."""
    planned_pinned: float
    problems: dict[str, int]

    @property
    def peak(self) -> int:
        """The most of all moments."""
        return max(self.gradient, self.step)

    @property
    def free(self) -> float:
        """The rest of the card."""
        return self.card - self.planned - self.reserve


def offered() -> list[tuple[str, str]]:
    """All models, each with the clusters that have one GPU per rank of the model and, by the plan, enough memory; recipes.

    Models with linear attention or sinks are left out: they have not been driven at true size.
    """
    from vime.cluster.layout import world_size
    from vime.model.families import family_of
    from vime.preflight.compose import CONF
    from vime.preflight.rules.gpu_memory import trainer_fits

    found = []
    for name in sorted(path.stem for path in (CONF / "model").glob("*.yaml") if path.stem != SMALLEST):
        for cluster in CLUSTERS:
            config = _config(name, cluster, [])
            is_whole = world_size(config.trainer) == config.cluster.num_trainer_gpus
            is_driven = not config.model.linear_attention.full_every and not family_of(config.model.family).has_sinks
            if is_whole and is_driven and not trainer_fits(config):
                found.append((name, cluster))
    recipes = [f"memagent_lora_{model}" for model in RECIPES]
    return found + [(recipe, _config(recipe, "", []).cluster.name) for recipe in recipes]


def _config(model: str, cluster: str, words: list[str]) -> Any:
    """The configuration of a model on a cluster, or of an experiment, which has both."""
    from vime.preflight.compose import CONF, compose_run

    if (CONF / "experiment" / f"{model}.yaml").exists():
        return compose_run([f"+experiment={model}", "mode=plan", *words]).config
    return compose_run(["+method=memagent", "mode=plan", f"model={model}", f"cluster={cluster}", *words]).config


def measure(model: str, cluster: str, *words: str) -> Peak:
    """The peak of a recipe, from a process of its own."""
    command = [sys.executable, "-m", "tests.cuda.peaks", "--row", f"{model}/{cluster}"]
    command += ["--set", *words] if words else []
    done = subprocess.run(command, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return Peak(**json.loads(done.stdout.splitlines()[-1]))


def measure_all(rows: list[tuple[str, str]], *words: str) -> list[Peak]:
    """The peaks of all rows; clusters on which a model has the same layout share a measurement."""
    seen: dict[str, Peak] = {}
    peaks = []
    for model, cluster in rows:
        config = _config(model, cluster, list(words))
        key = repr((config.model, config.trainer))
        found = seen.get(key) or measure(model, cluster, *words)
        seen[key] = found
        peaks.append(dataclasses.replace(found, cluster=cluster, reserve=_reserve(config)))
    return peaks


def _reserve(config: Any) -> float:
    from vime.memory.processes import reserved_bytes

    return reserved_bytes(config)


def _measure_here(model: str, cluster: str, words: list[str]) -> Peak:
    from tests.cuda import room

    config = _config(model, cluster, words)
    import vime.trainer.bridge as bridge
    import vime.trainer.engine as engine_module
    from vime.memory.processes import host_memory, trainer_memory

    with tempfile.TemporaryDirectory() as folder:
        write_shape(Path(folder), config.model)
        config.model.checkpoint = folder
        bridge.load_hugging_face = lambda *_, **__: None
        engine_module.tokenizer_problems = lambda *_, **__: []
        room.enter(config)
        engine = engine_module.Engine(config)
    memory, found = room.COUNTS.memory, {}
    with room.MODE:
        for step in range(2):
            memory.restart()
            shard = engine_module.PackedUpdate.of(config, engine.algorithm, _samples(config), version=step).shard(0)
            if engine.critic is not None:
                engine.critic.forward_backward(shard, engine.critic.algorithm)
                engine.critic.step(optimizer={"lr": config.algorithm.critic.lr})
            shard = shard.with_known(engine.forward(shard, engine.algorithm.needs_of_loss(is_present=True)))
            engine.forward_backward(shard, engine.algorithm)
            found["gradient"] = memory.peak
            memory.restart()
            engine.step(optimizer={"lr": config.trainer.lr})
            found["step"] = memory.peak
        engine.offload(weights=False)
        memory.restart()
        before = memory.live
        for _ in engine.export():
            pass
        found["export"] = memory.peak - before
        engine.offload(weights=True)
        found["pinned"] = sum(room.COUNTS.pinned)
    return Peak(
        model=model,
        cluster=cluster,
        layout=_layout(config.trainer),
        card=config.cluster.gpu_memory_gib * GIB,
        planned=sum(trainer_memory(config).values()),
        planned_pinned=sum(host_memory(config).values()),
        reserve=_reserve(config),
        problems=dict(room.COUNTS.problems),
        **found,
    )


def write_shape(folder: Path, model: Any) -> None:
    """A checkpoint's `config.json`, from which the trainer reads the architecture; there are no weights."""
    import transformers

    from vime.model.families import family_of

    fields = ["num_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"]
    fields += ["vocab_size", "tie_word_embeddings", "max_position_embeddings"]
    fields += ["num_experts", "num_experts_per_token", "moe_intermediate_size"] if model.num_experts else []
    options = {NAMES.get(name, name): getattr(model, name) for name in fields}
    kind = getattr(transformers, family_of(model.family).config_class)
    kind(**options, architectures=["random"]).save_pretrained(folder)


def _samples(config: Any) -> list[Any]:
    """Two full rows for each data-parallel rank, of sequences of two lengths, a quarter of whose tokens are trained."""
    from vime.types import Sample

    samples = []
    for share in SHARES * 2 * config.trainer.data_parallel_size:
        tokens = int(config.trainer.max_tokens_per_micro_batch * share)
        response = tokens // 4
        mask, logprobs = [1] * response, [-5.0] * response
        samples.append(
            Sample(
                tokens=[1] * tokens,
                loss_mask=mask,
                columns={"logprob": logprobs, "advantage": 1.0, "weight": 0.01, "returns": 1.0, "value": 0.0},
            )
        )
    return samples


def _layout(trainer: Any) -> str:
    sizes = {"TP": "tensor", "PP": "pipeline", "CP": "context", "DP": "data", "EP": "expert"}
    words = [f"{short} {size}" for short, name in sizes.items() if (size := getattr(trainer, f"{name}_parallel_size")) > 1] or [
        "one rank"
    ]
    words += ["recomputed"] if trainer.recompute else []
    return ", ".join([*words, *([f"LoRA {trainer.lora.rank}"] if trainer.lora.rank else [])])


def table(peaks: list[Peak]) -> str:
    """A page of the rows."""
    lines = [
        "# Memory of a trainer rank, computed",
        "",
        "Written by `python -m tests.cuda.peaks --write results`. **No GPU was used**: the trainer ran two updates of full rows",
        "at true size on a CUDA device that is not there (`tests/cuda`), which adds up the storages of its tensors. What an",
        "allocator wastes between them, a CUDA context and NCCL's buffers are not in it; the plan keeps a reserve for these,",
        "measured of a trainer rank of its own (`gpu_check_h200.md`), not of a server. Sizes in GiB per rank; rows hold",
        "`trainer.max_tokens_per_micro_batch` tokens, and each cluster is as its file in `conf/` composes it.",
        "",
        "| model or recipe | cluster | layout | plan | gradient | step | plan / peak | reserve | free | export | host memory |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in peaks:
        sizes = [row.planned, row.gradient, row.step]
        cells = [row.model, row.cluster, row.layout, *(f"{size / GIB:.1f}" for size in sizes), f"{row.planned / row.peak:.3f}"]
        cells += [f"{size / GIB:.1f}" for size in (row.reserve, row.free, row.export, row.pinned)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--set", nargs="*", default=[], dest="words")
    parser.add_argument("--row", help="measure in this process and write JSON")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    if options.row:
        model, _, cluster = options.row.partition("/")
        found = _measure_here(model, cluster, options.words)
        sys.stdout.write(json.dumps(dataclasses.asdict(found)) + "\n")
        return
    rows = [(model, cluster) for model, _, cluster in (row.partition("/") for row in options.rows)] or offered()
    peaks = measure_all(rows, *options.words)
    page = table(peaks)
    if options.write is None:
        sys.stdout.write(page)
        return
    (options.write / "gpu_memory.md").write_text(page)
    (options.write / "gpu_memory.json").write_text(json.dumps([dataclasses.asdict(peak) for peak in peaks], indent=1) + "\n")


if __name__ == "__main__":
    main()
