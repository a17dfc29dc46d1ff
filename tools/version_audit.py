"""Sampled tokens of a run beside the weights of their versions: is each logprob the one that this version of the weights gives?

    python tools/version_audit.py RUN [RUN …] [--sequences 20] [--json PATH] [--markdown PATH]

A run has to keep every token and every version of its weights:

    python -m vime.run … logger.rollouts=tokens trainer.save_every=1 trainer.keep_checkpoints=1000 output_dir=RUN

Each version, with its adapters merged if it has any, is loaded into transformers in float32, and every sequence with tokens of it
goes through that model. A token under a wrong version, or sampled with a part of its prefix computed by an older one, has another
logprob: how far away that would be is the distance of the same tokens under the version before.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from convert_checkpoint import find_checkpoint, read_model, rope_parameters_of, source_of, with_one_rank
from rich.progress import track

from vime.config import Precision, TrainerConfig
from vime.errors import CheckpointError, VimeError
from vime.files.jsonl import write_text
from vime.model.architecture import checkpoint_folder, read_architecture
from vime.report.metrics_file import read_metrics
from vime.report.run_directory import RunDirectory, read_config
from vime.surroundings import settle
from vime.trainer import manifest
from vime.types import Column
from vime.types.sample import COLUMNS

TITLE = """# Sampled tokens beside the weights of their versions

Written by `python tools/version_audit.py`: distances in nats between the logprob of a sampled token and that of its version
of the weights, in transformers and float32. In the last column are the same tokens under the version before.
"""
LIMIT = 5e-3
"""Largest distance in nats between a server and transformers in float32, for tokens of the right version."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequence:
    """A sampled sequence: its tokens, and mask, logprobs and versions of the response."""

    tokens: np.ndarray
    loss_mask: np.ndarray
    rollout_log_probs: np.ndarray
    weight_versions: np.ndarray

    @property
    def sampled(self) -> np.ndarray:
        """True at the tokens of the response that the model sampled."""
        return self.loss_mask > 0

    def replies(self) -> Iterator[np.ndarray]:
        """The versions of each run of sampled tokens."""
        edges = np.flatnonzero(np.diff(np.concatenate([[0], self.sampled.astype(np.int8), [0]])))
        for begin, end in pairwise(edges.tolist()):
            if self.sampled[begin]:
                yield self.weight_versions[begin:end]


@dataclass(frozen=True, kw_only=True, slots=True)
class Audited:
    """The tokens of one version, with distances in nats.

    Example: `Audited(version=3, num_tokens=812, mean=1.1e-06, largest=9.1e-06, before=0.031)`.
    """

    version: int
    num_tokens: int
    mean: float
    largest: float
    before: float | None
    """Mean distance under the version before; None for the first."""


def sequences_of(run: Path) -> list[Sequence]:
    """All sequences that the run has written."""
    directory, found = RunDirectory(run), []
    for path in sorted(directory.rollouts.glob("step_*.jsonl")):
        for row in directory.read_rollouts(int(path.stem.removeprefix("step_"))):
            for sample in row["samples"]:
                if "rollout_log_probs" not in sample:
                    raise CheckpointError(f"{path} has no tokens: run with logger.rollouts=tokens")
                found.append(_read(sample))
    return found


def _read(sample: dict[str, Any]) -> Sequence:
    versions = sample["weight_versions"]
    length = sample["response_length"]
    sample = sample | {"weight_versions": [versions] * length} if isinstance(versions, int) else sample
    return Sequence(**{name: np.asarray(Column.read(sample[name], dtype)) for name, dtype in COLUMNS.items()})


def audit(run: Path, sequences: list[Sequence], *, most: int) -> list[Audited]:
    """The distances of each version that the run has kept, over at most `most` of its sequences."""
    present = sorted({version for each in sequences for version in np.unique(each.weight_versions[each.sampled]).tolist()})
    original = checkpoint_folder(source_of(RunDirectory(run).checkpoints / "step_000001"))
    config, found = read_config(run), list[Audited]()
    temperature = config["rollout"]["temperature"]

    def go_through() -> None:
        for version in track(present, description="versions"):
            model = _model(run, version, original)
            earlier = _model(run, version - 1, original) if version else None
            if model is None:
                continue
            own = [each for each in sequences if (each.weight_versions[each.sampled] == version).any()]
            chosen = own[:: max(1, len(own) // most)][:most]
            distances = np.concatenate([_distances(model, each, version, temperature) for each in chosen])
            before = [_distances(earlier, each, version, temperature) for each in chosen] if earlier is not None else []
            found.append(
                Audited(
                    version=version,
                    num_tokens=distances.size,
                    mean=float(distances.mean()),
                    largest=float(distances.max()),
                    before=float(np.concatenate(before).mean()) if before else None,
                )
            )

    with_one_rank(TrainerConfig(), go_through)
    return found


@lru_cache(maxsize=2)  # each version is the next one's "before"
@torch.no_grad()
def _model(run: Path, version: int, original: Path) -> Any:
    """The weights of a version in transformers, float32; None if the run has not kept them."""
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(original, dtype=torch.float32)
    folder = RunDirectory(run).checkpoints / f"step_{version:06d}"
    if version == 0:
        return model.eval()
    if not folder.exists():
        return None
    from vime.trainer import bridge

    trained = find_checkpoint(folder)
    trainer = TrainerConfig(precision=Precision.float32, lora=manifest.saved_adapters(manifest.read(trained)))
    architecture = read_architecture(original, rope_parameters=rope_parameters_of(trained))
    state = model.state_dict()
    for name, tensor in bridge.export_hugging_face(read_model(trained, original, architecture, trainer), architecture):
        state[name].copy_(tensor)
    return model.eval()


@torch.no_grad()
def _distances(model: Any, sequence: Sequence, version: int, temperature: float) -> np.ndarray:
    """Between the sampler's logprobs and the model's, of the sampled tokens of a version."""
    tokens = torch.from_numpy(sequence.tokens.astype(np.int64)).unsqueeze(0)
    logprobs = (model(tokens).logits[0, :-1].float() / temperature).log_softmax(-1)
    chosen = logprobs.gather(1, tokens[0, 1:].unsqueeze(1)).squeeze(1).numpy()[-len(sequence.loss_mask) :]
    wanted = sequence.sampled & (sequence.weight_versions == version)
    return np.abs(chosen - sequence.rollout_log_probs)[wanted]


def section(run: Path, sequences: list[Sequence], audited: list[Audited]) -> str:
    """A run's command, what happened in it, and its table, as Markdown."""
    replies = [len(np.unique(versions)) for each in sequences for versions in each.replies()]
    metrics, faults = read_metrics(run / "metrics.jsonl"), run / "faults.jsonl"
    words = [word for word in yaml.safe_load((run / "overrides.yaml").read_text()) if not word.startswith("output_dir=")]
    events = [json.loads(line) for line in faults.read_text().splitlines()] if faults.exists() else []
    totals = [sum(row.get(f"rollout/{name}", 0) for row in metrics) for name in ("num_rollouts", "num_failed")]
    happened = ", ".join(f"{event.get('server', '')} {event['event']}" for event in events) or "none"
    lines = [
        f"`python -m vime.run {shlex.join(words)}`",
        "",
        f"{totals[0]:.0f} rollouts, {totals[1]:.0f} failed; faults of servers: {happened}. {len(sequences)} sequences with "
        f"{len(replies)} replies, {sum(count > 1 for count in replies)} of them with tokens of more than one version.",
        "",
        "| version | tokens | mean distance | largest | mean under the version before |",
        "|--:|--:|--:|--:|--:|",
    ]
    for one in audited:
        before = "" if one.before is None else f"{one.before:.2g}"
        lines.append(f"| {one.version} | {one.num_tokens} | {one.mean:.2g} | {one.largest:.2g} | {before} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Prints the table; ends with 1 if a token is not of its version."""
    settle()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="the folder of a run")
    parser.add_argument("--sequences", type=int, default=20, help="the most sequences of each version (20)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    found: dict[str, list[Audited]] = {}
    sections = [TITLE]
    for run in options.runs:
        try:
            sequences = sequences_of(run)
            found[str(run)] = audit(run, sequences, most=options.sequences)
        except VimeError as error:
            parser.exit(1, f"{type(error).__name__}: {error}\n")
        sections.append(section(run, sequences, found[str(run)]))
    text = "\n".join(sections)
    sys.stdout.write(text)
    if options.json:
        write_text(options.json, json.dumps([[asdict(one) for one in audited] for audited in found.values()], indent=1) + "\n")
    if options.markdown:
        write_text(options.markdown, text)
    for run, audited in found.items():
        wrong = [one.version for one in audited if one.largest > LIMIT]
        if wrong or not audited:
            sys.exit(f"{run}: " + (f"tokens farther than {LIMIT} from versions {wrong}" if wrong else "no version was kept"))


if __name__ == "__main__":
    main()
