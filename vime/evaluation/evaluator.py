"""Runs an evaluation, data sets x runs. Items are written as they finish, so an interrupted evaluation can be continued.

All rows (`vime.evaluation.conditions`) are scored alike. A failure stays in the denominator with a score of 0. The settings that
a score depends on are written beside the items (`vime.evaluation.protocol`); `vime.report.items` reads complete evaluations. An
evaluation during training runs beside the generation, on the same servers, which keep their weights until it ends
(`vime.evaluation.pin`).
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from vime.config import RolloutDetail, RunConfig
from vime.errors import WeightSyncError
from vime.evaluation.conditions import Job
from vime.evaluation.protocol import begin, check_same, item_digest, load_prompts, protocol_of
from vime.evaluation.repeatable import check_repeatable
from vime.files.jsonl import cut_torn_line, read_lines, write_lines
from vime.files.record import Recorder
from vime.files.serialization import to_json
from vime.types import Prompt, Rollout

logger = logging.getLogger(__name__)

SHOWN = ("messages", "generation_seconds", "seconds", "counts", "num_retries", "traceback", "unfinished")
"""Fields in an item's file that are only for readers, like the turns and tokens of its samples."""


class ItemRunner(Protocol):
    """Runs one item (`vime.workers.pool.WorkerPool`)."""

    async def run_item(self, *, prompt: Prompt, row: str, temperature: float, version: int, run: int) -> Rollout: ...


class Evaluator:
    """Runs jobs on the served model, into `folder`."""

    def __init__(
        self,
        config: RunConfig,
        *,
        runner: ItemRunner,
        folder: Path,
        prompts: dict[str, list[Prompt]] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """Raises `ConfigError` if the folder holds items that were scored under other settings."""
        self._runner = runner
        self._recorder = recorder or Recorder(RolloutDetail.texts)
        self._folder = folder
        self._deterministic = config.deterministic
        self._slots = asyncio.Semaphore(config.evaluation.max_concurrent_items)
        self._prompts = load_prompts(config) if prompts is None else prompts
        protocol = protocol_of(config, self._prompts)
        check_same(folder, protocol)
        begin(folder, protocol)

    def num_items(self, dataset: str) -> int:
        """Number of items in a data set."""
        return len(self._prompts[dataset])

    async def run(
        self, jobs: list[Job], *, version: int, on_item: Callable[[], None] = lambda: None
    ) -> dict[Job, list[dict[str, Any]]]:
        """Runs all jobs and returns their items in the data set's order; finished items in the folder are not run again.

        `version` is the weight version that every token must come from. Raises WeightSyncError if a run saw several.
        """
        results = await asyncio.gather(*[self._run_job(job, version=version, on_item=on_item) for job in jobs])
        return dict(zip(jobs, results, strict=True))

    async def _run_job(self, job: Job, *, version: int, on_item: Callable[[], None]) -> list[dict[str, Any]]:
        path = self._folder / job.file_name
        finished = {item["index"]: _for_scores(item) for item in _keep(path, lambda item: item["version"] == version)}
        prompts = self._prompts[job.dataset]
        with path.open("ab") as file:

            async def run_one(prompt: Prompt) -> None:
                if prompt.index not in finished:
                    async with self._slots:
                        rollout = await self._runner.run_item(
                            prompt=prompt, row=job.row, temperature=job.temperature, version=version, run=job.run
                        )
                        if self._deterministic:
                            check_repeatable([rollout])
                    item = _item(job, prompt, rollout, version)
                    finished[prompt.index] = item
                    file.write(to_json(item | self._shown(prompt, rollout), compact=True) + b"\n")
                    file.flush()
                on_item()

            await asyncio.gather(*[run_one(prompt) for prompt in prompts])
        versions = {seen for item in finished.values() for seen in item["weight_versions"]}
        if len(versions) > 1:
            raise WeightSyncError(
                f"the weights changed during the evaluation {job.file_name}: it saw versions {sorted(versions)}"
            )
        return [finished[prompt.index] for prompt in prompts]

    def _shown(self, prompt: Prompt, rollout: Rollout) -> dict[str, Any]:
        """Fields written to the file but not kept in memory, which they would fill in a long evaluation."""
        if self._recorder.detail is RolloutDetail.none:
            return {}
        samples, unfinished = ([self._recorder.row(one) for one in found] for found in (rollout.samples, rollout.unfinished))
        return {
            "messages": prompt.messages,
            "generation_seconds": rollout.generation_seconds,
            "seconds": rollout.seconds,
            "counts": rollout.counts,
            "num_retries": rollout.num_retries,
            **({"traceback": rollout.traceback} if rollout.traceback else {}),
            "samples": samples,
            **({"unfinished": unfinished} if unfinished else {}),
        }


def read_items(path: Path) -> list[dict[str, Any]]:
    """Reads the items of a JSONL file; removes a last line that a crash left incomplete."""
    cut_torn_line(path)
    return read_lines(path)


def forget_items_after(folder: Path, version: int) -> None:
    """Removes items of weight versions after `version`, and their `eval_log`; the resumed run scores them again."""
    for path in folder.glob("*.jsonl"):
        if not _keep(path, lambda item: item["version"] <= version):
            path.unlink()
            (folder / f"{path.stem.rpartition('-t')[0]}.json").unlink(missing_ok=True)


def _keep(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """The finished items that are wanted; the others leave the file."""
    items = read_items(path)
    kept = [item for item in items if wanted(item)]
    if len(kept) < len(items):
        write_lines(path, kept)
    return kept


def _for_scores(item: dict[str, Any]) -> dict[str, Any]:
    """A finished item as `Evaluator.run` returns it, without the fields that are only for readers."""
    samples = [{"response": sample["response"], "metadata": sample["metadata"]} for sample in item["samples"]]
    return {name: value for name, value in item.items() if name not in SHOWN} | {"samples": samples}


def _item(job: Job, prompt: Prompt, rollout: Rollout, version: int) -> dict[str, Any]:
    """One finished item; scores are 0 to 1, `strict` is the reward unless the method names it."""
    strict = rollout.metrics.get("strict", rollout.reward)
    versions = {version for sample in rollout.samples for version in sample.versions}
    return {
        "index": prompt.index,
        "item": item_digest(prompt),
        "dataset": job.dataset,
        "row": job.row,
        "run": job.run,
        "evaluation": job.label,
        "temperature": job.temperature,
        "strict": strict,
        "lenient": rollout.metrics.get("lenient", strict),
        "metrics": rollout.metrics,
        "stop_reason": rollout.stop_reason.value,
        "failed": not rollout.counting.in_baseline,
        "error": rollout.error,
        "label": prompt.ground_truth,
        "version": version,
        "weight_versions": sorted(versions),
        "samples": [{"response": s.response, "metadata": s.metadata} for s in rollout.samples],
    }
