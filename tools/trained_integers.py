"""The distance between trainer and server with quantization-aware training, and scores of runs with it.

    python tools/trained_integers.py [--prompts 64] [--runs FOLDER FOLDER] [--section results/precision.md] [--json PATH]

A server of the tiny model gets the trainer's weights by a sync and samples replies, in float32 and in bfloat16: without
quantization, in int8, and with the weights of int4. The trainer reads these replies again: with the same integers, and in
int8 also without them, as an unquantized trainer does. `--runs` are complete runs, each a row of the table of scores.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from bench_generation import task_prompts
from bench_rows import Result, add_options, finish, save_section
from rollout_case import TINY

from vime.config import Precision, Quantization, RunConfig, TrainedQuantization
from vime.evaluation.conditions import TRAINED
from vime.preflight.compose import compose_run
from vime.report.metrics_file import read_metrics
from vime.runtime import Runtime
from vime.trainer.rank import import_megatron
from vime.weights.export import write_payload
from vime.weights.quantize import in_four_bits, quantized

SECTION, MAX_TOKENS = "Quantization-aware training", 64
NONE, INT8, INT4 = TrainedQuantization.none, TrainedQuantization.int8, TrainedQuantization.int4
DIFFERENCE = "train/logprob_difference_mean"
SENT = {NONE: lambda tensors: tensors, INT8: quantized, INT4: in_four_bits}
"""The tensors that a server gets, by the integers with which it computes."""
READERS = {NONE: (NONE,), INT8: (INT8, NONE), INT4: (INT4,)}
"""The trainers that read the replies of a server."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Distance:
    """Differences of the logprobs of one server and one trainer.

    Example: `Distance(precision="float32", served="int8", trained="none", mean=0.008, largest=0.4, num_tokens=4096)`.
    """

    precision: str
    served: str
    trained: str
    mean: float
    largest: float
    num_tokens: int

    def row(self) -> str:
        """A line of the table."""
        cells = (self.precision, self.served, self.trained, f"{self.mean:.2e}", f"{self.largest:.2e}", f"{self.num_tokens:,}")
        return f"| {' | '.join(cells)} |"


class Weights:
    """The trainer's part of a sync: a payload that is there already."""

    def __init__(self) -> None:
        self.payload: Any = None

    async def export_weights(self, version: int, *, is_whole: bool = False) -> Any:
        """The payload."""
        return self.payload


def configuration(precision: Precision, served: Quantization, trained: TrainedQuantization) -> RunConfig:
    """A run of the tiny model."""
    words = ["+method=memagent", f"model.checkpoint={TINY}", f"trainer.precision={precision.value}", "trainer.num_threads=1"]
    words += [f"serving.models.actor.quantization={served.value}", f"trainer.quantization={trained.value}"]
    return compose_run([*words, "serving.models.actor.gpu_memory_utilization=0.02"]).config


async def replies(config: RunConfig, endpoint: Any, prompts: list[list[int]]) -> tuple[list[list[int]], list[list[float]]]:
    """Sequences with sampled replies, and the server's logprobs of these."""
    from vime.serving.client import TokenClient

    client = TokenClient(endpoint, config.serving)
    sampling = {"max_tokens": MAX_TOKENS, "ignore_eos": True, "temperature": 1.0}
    try:
        turns = await asyncio.gather(
            *[
                client.generate(prompt, sampling=sampling, session_id=f"s{number}", request_id=uuid.uuid4().hex)
                for number, prompt in enumerate(prompts)
            ]
        )
    finally:
        await client.close()
    tokens = [[*prompt, *turn.output_ids] for prompt, turn in zip(prompts, turns, strict=True)]
    return tokens, [list(turn.logprobs) for turn in turns]


async def measure(options: argparse.Namespace, folder: Path) -> list[Distance]:
    """The distances of all servers, one after another."""
    found: list[Distance] = []
    for precision in (Precision.float32, Precision.bfloat16):
        for served, ways in ((Quantization.none, (NONE, INT4)), (Quantization.int8, (INT8,))):
            config = configuration(precision, served, ways[0])
            with Runtime(config, say=lambda text: None):
                place = folder / f"{precision.value}-{served.value}"
                found += await of_server(config, ways, prompts=task_prompts(options.prompts), folder=place)
    return found


async def of_server(
    config: RunConfig, ways: tuple[TrainedQuantization, ...], *, prompts: list[list[int]], folder: Path
) -> list[Distance]:
    """The distances of one server, which gets the weights of each way in turn."""
    from vime.serving.topology import Serving
    from vime.sync.file_sync import FileSync
    from vime.trainer.lockstep import LockstepEngine
    from vime.weights.policy import Policy

    policy, weights, precision, found = Policy(), Weights(), config.trainer.precision, []
    serving = Serving(config, folder, uuid.uuid4().hex[:8], policy=policy, awaits_weights=True)
    serving.start()
    try:
        await serving.ready()
        sync = FileSync(serving, weights, config, policy)  # type: ignore[arg-type]
        for version, way in enumerate(ways):
            engines = {bits: LockstepEngine(configuration(precision, Quantization.none, bits)) for bits in READERS[way]}
            tensors: Iterator[Any] = SENT[way](engines[way].export())
            weights.payload = write_payload(tensors, folder=serving.payload_folder, version=version)
            await sync.sync(version)
            tokens, by_server = await replies(config, serving.endpoints()["actor"], prompts)
            for bits, engine in engines.items():
                by_trainer = engine.logprobs(tokens, [MAX_TOKENS] * len(tokens), 1.0)
                pairs = [(by_trainer[number], served) for number, served in enumerate(by_server)]
                away = [abs(one - other) for pair in pairs for one, other in zip(*pair, strict=True)]
                about = {"precision": precision.value, "served": way.value, "trained": bits.value}
                found.append(Distance(**about, mean=sum(away) / len(away), largest=max(away), num_tokens=len(away)))
    finally:
        await serving.stop()
    return found


def scores(folders: list[Path]) -> list[str]:
    """A table of complete runs: scores in percent, and the median over the steps of the mean distance while training."""
    if not folders:
        return []
    runs = [json.loads((folder / "summary.json").read_text()) for folder in folders]
    columns = list(dict.fromkeys(name for run in runs for name in run["datasets"]))
    lines = [
        f"| trained in | seed | {' | '.join(columns)} | difference of logprobs: median and largest mean of a step |",
        f"|---|--:|{'--:|' * len(columns)}--:|",
    ]
    for folder, run in zip(folders, runs, strict=True):
        words = yaml.safe_load((folder / "overrides.yaml").read_text())
        chosen = next((word.split("=")[1] for word in words if word.startswith("trainer.quantization=")), "none")
        away = [row[DIFFERENCE] for row in read_metrics(folder / "metrics.jsonl") if DIFFERENCE in row]
        rows = {name: of_set[TRAINED] for name, of_set in run["datasets"].items()}
        marks = [f"{rows[name]['mean']:.1f} ± {rows[name]['sd']:.1f}" for name in columns]
        lines.append(f"| {chosen} | {run['seed']} | {' | '.join(marks)} | {median(away):.1e}, {max(away):.1e} |")
    task = "MemAgent's tiny task (`+experiment=memagent_paper_tiny`)"
    return ["", f"{task}, strict scores after training in percent, mean ± deviation of 3 runs:", "", *lines]


def main() -> None:
    """Measures, and shows or writes the section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=64, help="replies of 64 tokens from each server")
    parser.add_argument("--runs", type=Path, nargs="*", default=[], help="folders of complete runs")
    parser.add_argument("--section", type=Path, help="page whose section on this is written anew")
    add_options(parser)
    options = parser.parse_args()
    import_megatron()
    from vime.trainer import parallel

    parallel.initialize(configuration(Precision.float32, Quantization.none, NONE).trainer, rank=0, seed=0)
    with tempfile.TemporaryDirectory(prefix="vime-integers-") as folder:
        found = asyncio.run(measure(options, Path(folder)))
    result = Result(title=SECTION, columns=("mean difference", "bfloat16 without integers"))
    bfloat16 = next(each.mean for each in found if (each.precision, each.served) == ("bfloat16", "none"))
    for each in found:
        case = f"{each.precision}, served {each.served}, trained {each.trained}"
        result.add("integers", case, ours=each.mean, reference=bfloat16, unit="nats")
    head = ["| precision | servers | trainer | mean difference | largest | tokens |", "|---|---|---|--:|--:|--:|"]
    lines = [*head, *(each.row() for each in found), *scores(options.runs)]
    finish(result, options)
    sys.stdout.write("\n".join(lines) + "\n")
    if options.section:
        save_section(options.section, result, before="\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
