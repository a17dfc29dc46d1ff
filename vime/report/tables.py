"""The two blocks of text around a run: the header that says what starts, and the table of scores."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from vime.algorithm.choice import is_paired
from vime.algorithm.description import describe
from vime.cluster.placement import server_groups
from vime.config import AlgorithmName, Before, Mode, RunConfig
from vime.evaluation.conditions import SCAFFOLD, num_item_runs, shown_rows, table_rows
from vime.report.ending import RunEnding


def header_lines(config: RunConfig, path: Path) -> list[str]:
    """Name, folder, model, and which processes start."""
    supervised = config.mode is Mode.train and config.algorithm.name is AlgorithmName.sft
    model, cluster, evaluation = config.model, config.cluster, config.evaluation
    if config.adapters:
        about = f"{config.name}: {config.mode.name} {len(config.adapters)} adapters, {', '.join(config.adapters)}"
        return [about, f"  folder      {path}", f"  starts      {_starts(config, supervised)} on {cluster.name}"]
    shape = f"{model.family.name}, {model.num_layers} layers x {model.hidden_size}, {config.trainer.precision.value}"
    lines = [
        f"{config.name}: {config.mode.name} {config.method.name or config.algorithm.name.name}, seed {config.seed}",
        f"  folder      {path}",
        f"  model       {model.name} ({shape}), {model.checkpoint or 'no checkpoint'}",
        f"  starts      {_starts(config, supervised)} on {cluster.name}",
    ]
    if config.mode is Mode.train:
        lines.append(f"  training    {_training(config, supervised)}")
        lines.append(f"  objective   {config.algorithm.name.value}: {describe(config.algorithm)}")
    datasets = ", ".join(dataset.name for dataset in config.data.evaluation)
    if datasets and not supervised:
        measured = table_rows(config)
        rows = ", ".join(label for row, label in shown_rows(config.mode.name, measured).items() if row in measured)
        what = f"{datasets} x {evaluation.num_runs} runs at temperature {evaluation.temperature:g}: {rows}"
        lines.append(f"  evaluation  {what if measured else 'none before or after training'}")
        also = ", ".join(f"{temperature:g}" for temperature in evaluation.extra_temperatures if SCAFFOLD in table_rows(config))
        total = num_item_runs(config, table_rows(config))
        is_once = config.mode is Mode.train and evaluation.before is Before.one_run
        more = [f"the scaffold also once at temperature {also}"] if also else []
        more += [f"{total:,} rollouts"] if total else []
        more += ["the untrained scaffold once, during the first batch"] if is_once else []
        lines += [f"              {'; '.join(more)}"] if more else []
    return lines


def final_table(summary: Mapping[str, Any]) -> Table:
    """Rows x data sets: mean ± standard deviation over runs of the strict score, with the lenient mean in brackets."""
    datasets: Mapping[str, Mapping[str, Any]] = summary["datasets"]
    name = f"{summary['name']}: strict (lenient) score, mean ± SD over runs"
    title = Text(name, style="table.title", no_wrap=True, overflow="ignore")  # it may be wider than a table of one data set
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("")
    for name, rows in datasets.items():
        first = next(iter(rows.values()), {"num_runs": 0, "num_items": 0})
        table.add_column(f"{name}\n{first['num_items']} items x {first['num_runs']}", justify="right")
    for row, label in shown_rows(summary["mode"], measured_rows(datasets.values())).items():
        table.add_row(label, *[score_text(rows.get(row)) for rows in datasets.values()])
    return table


def adapter_table(endings: Mapping[str, RunEnding | None]) -> Table:
    """Several adapters of a run, and the step and cause at which some stopped before their last."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("adapter")
    table.add_column("end", overflow="fold")
    for name, ending in endings.items():
        table.add_row(name, Text("finished" if ending is None else f"stopped {ending.reached}: {ending.cause}"))
    return table


def measured_rows(datasets: Iterable[Mapping[str, Any]]) -> list[str]:
    """The rows that any data set has, as `summary.json` holds them."""
    return list(dict.fromkeys(row for rows in datasets for row in rows))


def score_text(score: Mapping[str, Any] | None) -> str:
    """`41.7 ± 2.1 (45.8)`, or `not run`."""
    if score is None:
        return "not run"
    return f"{spread_text(score, num_runs=score['num_runs'])} ({score['lenient']['mean']:.1f})"


def spread_text(score: Mapping[str, Any], *, num_runs: int) -> str:
    """`41.7 ± 2.1`; one run has no deviation: `41.7`."""
    return f"{score['mean']:.1f} ± {score['sd']:.1f}" if num_runs > 1 else f"{score['mean']:.1f}"


def _starts(config: RunConfig, supervised: bool) -> str:
    parts = ["Ray"]
    if not supervised:
        for name, model in config.serving.models.items():
            num_servers = sum(group.settings.num_replicas for group in server_groups(name, model))
            what = f"{len(model.urls)} external" if model.urls else f"{num_servers} vLLM"
            if model.trained and config.mode is Mode.train and config.serving.elastic.num_at_start is not None:
                what = f"{config.serving.elastic.num_at_start} of {num_servers} vLLM"
            parts.append(f"{what} x {name}")
        parts.append(f"{config.rollout.num_workers} rollout worker{'s' * (config.rollout.num_workers != 1)}")
    if config.mode is Mode.train:
        sizes = config.trainer
        tensor, pipeline, data = sizes.tensor_parallel_size, sizes.pipeline_parallel_size, sizes.data_parallel_size
        others = {"CP": sizes.context_parallel_size, "EP": sizes.expert_parallel_size}
        more = "".join(f" {name}{size}" for name, size in others.items() if size > 1)
        parts.append(f"Megatron trainer TP{tensor} PP{pipeline} DP{data}{more}")
    return ", ".join(parts)


def _training(config: RunConfig, supervised: bool) -> str:
    trainer, rollout = config.trainer, config.rollout
    if is_paired(config):
        return f"{trainer.num_steps} steps x {rollout.num_prompts} pairs of replies, lr {trainer.lr:g}"
    if supervised:
        return f"{trainer.num_steps} steps x {trainer.sft_tokens_per_step} tokens of demonstrations, lr {trainer.lr:g}"
    batch = f"{rollout.num_prompts} prompts x {rollout.num_samples_per_prompt} rollouts"
    return (
        f"{trainer.num_steps} steps x {batch}, {config.algorithm.name.name}, lr {trainer.lr:g}, staleness {rollout.max_staleness}"
    )
