"""Converts checkpoints both ways, in one process on the CPU.

    python tools/convert_checkpoint.py to-hugging-face outputs/latest/checkpoints/step_000050 models/trained
    python tools/convert_checkpoint.py to-hugging-face outputs/latest models/trained --precision float32
    python tools/convert_checkpoint.py to-peft outputs/latest adapters/trained
    python tools/convert_checkpoint.py from-hugging-face Qwen/Qwen2.5-7B checkpoints/qwen
    python tools/convert_checkpoint.py from-gguf downloads/SmolLM2-135M-Instruct.Q4_1.gguf models/smollm2-135m
    python tools/convert_checkpoint.py text-model Qwen/Qwen3.5-0.8B models/qwen3.5-0.8b

A run's checkpoint, of any layout of ranks, becomes a folder that transformers and vLLM load; a run folder means its newest
checkpoint. Adapters (LoRA) are merged into their base; `to-peft` writes them alone, in PEFT's format. `from-hugging-face` gives a
trainer checkpoint with fresh moments. It has no layout of its own: it loads under any tensor, pipeline, data and expert parallel
size. `from-gguf` gives the folder of a model in llama.cpp's format, `text-model` that of the text model of a checkpoint that also
sees images.
"""

import argparse
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from from_gguf import from_gguf
from rich.console import Console
from rich.progress import Progress
from text_model import write_text_model

from vime.config import CriticPlace, ModelConfig, Precision, RunConfig, TrainerConfig
from vime.errors import CheckpointError, VimeError
from vime.model.adapter_folder import describe
from vime.model.architecture import Architecture, checkpoint_folder, read_architecture
from vime.report.run_directory import CONFIG, RunDirectory, read_config
from vime.surroundings import settle
from vime.trainer import manifest

if TYPE_CHECKING:
    from vime.trainer.model import Chunks


def from_checkpoint(
    checkpoint: Path, target: Path, *, source: str | None, precision: str | None, to_peft: bool, progress: Progress
) -> None:
    """Writes the weights of a trainer checkpoint for transformers, or its adapters for PEFT. Raises `CheckpointError`."""
    folder = find_checkpoint(checkpoint)
    saved = manifest.read(folder)
    base = source or source_of(folder)
    original = checkpoint_folder(base)
    architecture = read_architecture(original, rope_parameters=rope_parameters_of(folder))
    trainer = TrainerConfig(precision=Precision(precision or saved["precision"]), lora=manifest.saved_adapters(saved))
    if to_peft and not trainer.lora.rank:
        raise CheckpointError(f"{folder} holds whole weights and no adapters: use to-hugging-face")
    on_policy = CriticPlace.trunk if manifest.has_value_head(saved) else None  # its values are left out
    run = manifest.describe_run(architecture, trainer, base=original, critic=on_policy) | {"precision": saved["precision"]}
    manifest.check_same_model(folder, saved, run)
    for name, entry in progress.track(saved["files"].items(), description="checking files"):
        if damage := manifest.damage(folder, {name: entry}):
            raise CheckpointError(f"{damage[0]}: {manifest.ADVICE}")

    def write() -> None:
        reading = progress.add_task("reading weights", total=None)
        model = read_model(folder, original, architecture, trainer)
        progress.update(reading, total=1, completed=1)
        if to_peft:
            from vime.trainer import bridge

            bridge.save_adapter(model, architecture, description=describe(trainer.lora, base=base), folder=target)
        else:
            write_hugging_face(model, target, original, architecture, progress)

    with_one_rank(trainer, write)


def read_model(folder: Path, original: Path, architecture: Architecture, trainer: TrainerConfig) -> "Chunks":
    """A model of one rank with the weights of a checkpoint, or with its adapters on the weights of their base."""
    from vime.trainer import bridge, lora
    from vime.trainer.checkpoint import load_weights
    from vime.trainer.model import build_model

    model = build_model(architecture, trainer)
    if trainer.lora.rank:
        bridge.load_hugging_face(model, architecture, original)
        lora.attach(model, architecture, trainer.lora, seed=0)
    load_weights(folder, model)
    return model


def write_hugging_face(model: "Chunks", target: Path, original: Path, architecture: Architecture, progress: Progress) -> None:
    """Writes all weights, merged where there are adapters."""
    from vime.trainer import bridge

    total = len(bridge.HuggingFaceFolder(original))
    tensors = progress.track(bridge.export_hugging_face(model, architecture), total=total, description="writing weights")
    bridge.write_folder(tensors, architecture, source=original, folder=target, dtype=model.config.params_dtype)


def from_hugging_face(source: str, target: Path, *, precision: str, progress: Progress) -> None:
    """Writes a trainer checkpoint of a Hugging Face model, with moments of zero. Raises `CheckpointError`."""
    original = checkpoint_folder(source)
    architecture = read_architecture(original)
    shape = {field.name: getattr(architecture, field.name) for field in fields(ModelConfig) if hasattr(architecture, field.name)}
    model = ModelConfig(checkpoint=str(original), **shape)
    config = RunConfig(model=model, trainer=TrainerConfig(precision=Precision(precision)))

    def convert() -> None:
        from vime.trainer.engine import Engine

        reading = progress.add_task("reading weights", total=None)
        engine = Engine(config)
        progress.update(reading, total=1, completed=1)
        writing = progress.add_task("writing checkpoint", total=None)
        engine.save(target)
        progress.update(writing, total=1, completed=1)

    with_one_rank(config.trainer, convert)


def find_checkpoint(path: Path) -> Path:
    """The trainer's part of a run folder, of a checkpoint in it, or the folder itself. Raises `CheckpointError`."""
    newest = sorted(RunDirectory(path).checkpoints.glob("step_*"), key=lambda step: (len(step.name), step.name))[-1:]
    candidates = [path, path / "trainer", *(step / "trainer" for step in newest)]
    for candidate in candidates:
        if (candidate / manifest.FILE).exists():
            return candidate
    raise CheckpointError(
        f"{path} is neither a checkpoint (none of {', '.join(map(str, candidates))} has {manifest.FILE}) nor a run"
    )


def rope_parameters_of(folder: Path) -> dict[str, Any]:
    """The rotary embeddings that a run has given its model in place of the checkpoint's; empty for the checkpoint's own."""
    run = _run_of(folder)
    return {} if run is None else read_config(run)["model"].get("rope_parameters") or {}


def _run_of(folder: Path) -> Path | None:
    return next((parent for parent in folder.absolute().parents if (parent / CONFIG).exists()), None)


def source_of(folder: Path) -> str:
    """The model that a run began with, which has the configuration and the tokenizer. Raises `CheckpointError`."""
    run = _run_of(folder)
    if run is None:
        raise CheckpointError(f"{folder} is not inside a run folder: give --source, the model with its config and tokenizer")
    return read_config(run)["model"]["checkpoint"]


def with_one_rank(trainer: TrainerConfig, convert: Callable[[], None]) -> None:
    """Runs `convert` in a world of one rank."""
    from vime.trainer import megatron_setup

    megatron_setup.set_up()
    from vime.trainer import parallel

    parallel.initialize(trainer, rank=0, seed=0)
    try:
        convert()
    finally:
        parallel.shutdown()


def main(arguments: list[str] | None = None, console: Console | None = None) -> None:
    """Converts the checkpoint that the command line names."""
    settle()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_subparsers(dest="way", required=True)
    to = ways.add_parser("to-hugging-face", help="a run's checkpoint to a folder for transformers and vLLM")
    to.add_argument("checkpoint", type=Path, help="run folder, checkpoint of a run, or trainer checkpoint")
    to.add_argument("--source", help="model with configuration and tokenizer; the default is the run's model.checkpoint")
    to.add_argument("--precision", choices=[p.value for p in Precision], help="of the weights; the default is the run's")
    back = ways.add_parser("from-hugging-face", help="a Hugging Face folder or id to a trainer checkpoint for any layout")
    back.add_argument("source", help="Hugging Face folder or id")
    back.add_argument("--precision", choices=[p.value for p in Precision], default="bfloat16", help="of the run to come")
    peft = ways.add_parser("to-peft", help="the adapters of a run's checkpoint to a folder for PEFT and vLLM")
    peft.add_argument("checkpoint", type=Path, help="run folder, checkpoint of a run, or trainer checkpoint")
    peft.add_argument("--source", help="the base model; the default is the run's model.checkpoint")
    gguf = ways.add_parser("from-gguf", help="a GGUF file to a folder for transformers and vLLM, in float32")
    gguf.add_argument("file", type=Path, help="the GGUF file")
    text = ways.add_parser("text-model", help="the text model of a checkpoint that also sees images")
    text.add_argument("source", help="Hugging Face folder or id")
    for way in (to, peft, back, gguf, text):
        way.add_argument("target", type=Path, help="folder to be written; must not exist")
    given: Any = parser.parse_args(arguments)
    if given.target.exists():
        parser.error(f"{given.target} exists: give another target, nothing is overwritten")
    console = console or Console(stderr=True)
    try:
        with Progress(console=console) as progress:
            if given.way in ("to-hugging-face", "to-peft"):
                options = {"source": given.source, "precision": getattr(given, "precision", None)}
                to_peft = given.way == "to-peft"
                from_checkpoint(given.checkpoint, given.target, **options, to_peft=to_peft, progress=progress)
            elif given.way == "from-gguf":
                from_gguf(given.file, given.target)
            elif given.way == "text-model":
                write_text_model(checkpoint_folder(given.source), given.target)
            else:
                from_hugging_face(given.source, given.target, precision=given.precision, progress=progress)
    except VimeError as error:
        parser.exit(1, f"{type(error).__name__}: {error}\n")
    console.print(f"written to {given.target}")


if __name__ == "__main__":
    main()
