"""The folder of one run: its configuration, code version and machine, and its results.

`outputs/<name>/<time>/`, with `outputs/latest` pointing at the run that was started last. The files are listed in this
folder's README. Secrets are never written.
"""

import fcntl
import json
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml

from vime.algorithm.advantage import Advantages
from vime.config import RolloutDetail, RunConfig
from vime.errors import ConfigError, Problem
from vime.files.jsonl import append_line, read_lines, write_lines, write_text
from vime.files.provenance import code_diff, commit, override_without_secret, plain, versions, without_secrets
from vime.files.record import Recorder
from vime.model.pieces import TokenPieces
from vime.report.machine_description import describe_machine
from vime.report.rotation import keep_newest
from vime.run_checkpoints import CHECKPOINTS
from vime.types import EvalLog, Group, Rollout

logger = logging.getLogger(__name__)

CONFIG, METRICS = "config.yaml", "metrics.jsonl"
STATUS = "service.json"
"""The state of a training service at this moment, in its folder (`vime.service.model_runs`)."""
VOCABULARY = "vocabulary.json"
LOCK = ".lock"
"""The program that writes into the folder holds a lock on this file; the lock ends with the program."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, where it is built in, is six times as fast
PROVENANCE = (CONFIG, "overrides.yaml", "versions.json", "commit.txt", "code.diff", "machine.json")


class RunDirectory:
    """Paths and files of one run; `create` starts it, the constructor opens it."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def logs(self) -> Path:
        """Output of servers, trainer ranks and workers."""
        return self.path / "logs"

    @property
    def rollouts(self) -> Path:
        """One JSONL file per step."""
        return self.path / "rollouts"

    @property
    def checkpoints(self) -> Path:
        """Trainer and driver state to resume from."""
        return self.path / CHECKPOINTS

    @property
    def journal(self) -> Path:
        """Groups that finished since the last checkpoints, with their tokens (`vime.orchestration.journal`)."""
        return self.path / "journal"

    @property
    def evaluation(self) -> Path:
        """Items of evaluations as JSONL, and their `eval_log` as JSON."""
        return self.path / "evaluation"

    @classmethod
    def create(cls, config: RunConfig, overrides: list[str]) -> "RunDirectory":
        """Makes the folder `config.output_dir` and writes down where the run comes from.

        With `config.resume` an existing run goes on; files of its earlier starts move to `earlier/<n>/`. Raises `ConfigError` if
        the folder holds a run and `resume` is off.
        """
        assert config.output_dir is not None, "output_dir is resolved when the configuration is composed"
        directory = cls(Path(config.output_dir).absolute())
        if (directory.path / CONFIG).exists():
            if not config.resume:
                remedy = "the folder already holds a run: choose another name, or add resume=true to continue it"
                raise ConfigError([Problem(key="output_dir", value=config.output_dir, remedy=remedy)])
            directory._set_earlier_start_aside()
        for folder in (directory.logs, directory.rollouts, directory.checkpoints, directory.evaluation):
            folder.mkdir(parents=True, exist_ok=True)
        directory._write_provenance(config, overrides)
        if not (directory.path.parents[1] / CONFIG).exists():  # the folder of one of several adapters is a part of its run's
            directory._point_latest_here()
        return directory

    def withdraw(self) -> None:
        """Removes the configuration, so that the folder is not a run any more and the corrected command may use it again."""
        (self.path / CONFIG).unlink(missing_ok=True)

    def write_rollouts(
        self,
        step: int,
        groups: list[Group],
        *,
        recorder: Recorder | None = None,
        advantages: Mapping[int, Advantages] | None = None,
        logprobs: Mapping[int, np.ndarray] | None = None,
        max_bytes: int | None = None,
    ) -> Path:
        """Writes `rollouts/step_<step>.jsonl`, one line per rollout.

        `recorder` decides how much is kept of its samples, by default texts; `advantages` are by `rollout_id`, `logprobs`
        the trainer's of the trained tokens of a sample by the `id()` of its tokens. When all files of rollouts together take more
        than `max_bytes`, the oldest are removed.
        """
        path = self.rollouts / f"step_{step:06d}.jsonl"
        recorder, known = recorder or Recorder(RolloutDetail.texts), advantages or {}
        of_tokens = logprobs or {}
        rows = (_rollout_row(step, g, r, recorder, known.get(r.rollout_id), of_tokens) for g in groups for r in g.rollouts)
        write_lines(path, rows, compact=True)
        if max_bytes is not None:
            keep_newest(sorted(self.rollouts.glob("step_*.jsonl")), max_bytes=max_bytes)
        return path

    def read_rollouts(self, step: int) -> list[dict[str, Any]]:
        """The lines of one step; an empty list if it was not written, or was removed for later ones."""
        return read_lines(self.rollouts / f"step_{step:06d}.jsonl")

    def write_vocabulary(self, pieces: TokenPieces) -> None:
        """Writes `vocabulary.json`, from which the token ids in rollouts are read without the model's tokenizer."""
        write_text(self.path / VOCABULARY, json.dumps(pieces.to_list()) + "\n")

    def write_eval_log(self, name: str, log: EvalLog) -> Path:
        """Writes `evaluation/<name>.json`: metrics and figures of one evaluation."""
        path = self.evaluation / f"{name}.json"
        write_text(path, json.dumps({"metrics": log.metrics, "figures": log.figures}, indent=1, ensure_ascii=False) + "\n")
        return path

    def write_fault(self, step: int, event: dict[str, Any]) -> None:
        """Appends one fault, with the reaction to it, to `faults.jsonl`."""
        append_line(self.path / "faults.jsonl", {"step": step, **event})

    def _write_provenance(self, config: RunConfig, overrides: list[str]) -> None:
        texts = {
            CONFIG: _config_text(config),
            "overrides.yaml": yaml.safe_dump([override_without_secret(word) for word in overrides], allow_unicode=True),
            "versions.json": json.dumps(versions(), indent=1) + "\n",
            "commit.txt": commit(),
            "code.diff": code_diff(),
            "machine.json": json.dumps(describe_machine(), indent=1) + "\n",
        }
        for name in reversed(PROVENANCE):  # the configuration last: a folder with it is a run
            write_text(self.path / name, texts[name])

    def _set_earlier_start_aside(self) -> None:
        earlier = self.path / "earlier"
        folder = earlier / str(len(list(earlier.glob("*"))) + 1)
        folder.mkdir(parents=True)
        for name in PROVENANCE:
            if (self.path / name).exists():
                os.replace(self.path / name, folder / name)

    def _point_latest_here(self) -> None:
        """Points `latest` in the nearest folder named `outputs` above, else in the parent, at this run; ignores failures."""
        above = next((folder for folder in self.path.parents if folder.name == "outputs"), self.path.parent)
        temporary = above / f".latest.{os.getpid()}"
        try:
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(os.path.relpath(self.path, above), target_is_directory=True)
            os.replace(temporary, above / "latest")
        except OSError as error:  # a file system without links, or a folder of that name
            logger.warning("%s does not point at this run: %s", above / "latest", error)
            temporary.unlink(missing_ok=True)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keeps other runs from writing into a run folder, even from other nodes if the file system supports such locks.

    Raises `ConfigError`, naming the process, if another run holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            remedy = f"{file.read().strip() or 'another run'} is writing there: wait until it has ended, or use another folder"
            raise ConfigError([Problem(key="output_dir", value=folder, remedy=remedy)]) from None
        except OSError as error:
            logger.warning("%s has no locks (%s): nothing keeps a second run from writing there", folder, error)
        file.truncate(0)
        file.write(f"process {os.getpid()} of {socket.gethostname()}\n")
        file.flush()
        yield


def is_written(folder: Path) -> bool | None:
    """Returns True if the process that holds a run folder runs on this machine, and None if it is one of another machine."""
    try:
        words = (folder / LOCK).read_text(encoding="utf-8").split()  # "process 123 of HOST"
    except FileNotFoundError:
        return False
    if len(words) != 4 or not words[1].isdigit() or words[3] != socket.gethostname():
        return None
    return psutil.pid_exists(int(words[1]))


def write_config(path: Path, config: RunConfig) -> None:
    """Makes the folder `path` one of a run, with its resolved configuration and nothing else."""
    path.mkdir(parents=True, exist_ok=True)
    write_text(path / CONFIG, _config_text(config))


def _config_text(config: RunConfig) -> str:
    return yaml.safe_dump(without_secrets(plain(config)), sort_keys=False, allow_unicode=True, width=120)


def read_config(path: Path) -> dict[str, Any]:
    """The resolved configuration of the run in folder `path`, as plain data.

    Raises `FileNotFoundError`, saying so, if the folder holds no run.
    """
    file = path / CONFIG
    if not file.exists():
        raise FileNotFoundError(f"{path} is not a run folder: it has no {CONFIG}")
    return yaml.load(file.read_text(encoding="utf-8"), Loader=_LOADER)


def find_runs(paths: list[Path]) -> list[Path]:
    """Returns the run folders in `paths`; the folder of a sweep is replaced by its runs, in the order of their numbers.

    Raises `FileNotFoundError`, naming the folder, for one that is neither.
    """
    found: list[Path] = []
    for path in paths:
        inside = sorted((file.parent for file in path.glob(f"*/{CONFIG}")), key=lambda run: (len(run.name), run.name))
        if (path / CONFIG).exists():
            found.append(path)
        elif inside:
            found += inside
        else:
            what = "does not exist" if not path.exists() else f"is neither a run (it has no {CONFIG}) nor a folder of runs"
            raise FileNotFoundError(f"{path} {what}")
    return list(dict.fromkeys(path.resolve() for path in found))


def _rollout_row(
    step: int,
    group: Group,
    rollout: Rollout,
    recorder: Recorder,
    advantages: Advantages | None,
    logprobs: Mapping[int, np.ndarray],
) -> dict[str, Any]:
    """The line of one rollout of a group (README.md); `logprobs` are by the `id()` of a sample's tokens."""
    prompt = group.prompt
    of_samples = advantages if isinstance(advantages, list) else [advantages] * len(rollout.samples)
    return {
        "step": step,
        "group_index": rollout.group_index,
        "rollout_id": rollout.rollout_id,
        "dataset": prompt.dataset,
        "row": prompt.row,
        "messages": prompt.messages,
        "ground_truth": prompt.ground_truth,
        "reward": rollout.reward,
        "metrics": rollout.metrics,
        "stop_reason": rollout.stop_reason.value,
        "status": rollout.status.value,
        "error": rollout.error,
        **({"traceback": rollout.traceback} if rollout.traceback else {}),
        "num_retries": rollout.num_retries,
        "generation_seconds": rollout.generation_seconds,
        "seconds": rollout.seconds,
        "counts": rollout.counts,
        "weight_version": group.weight_version,
        "samples": [
            recorder.row(sample, advantage=value, logprobs=logprobs.get(id(sample.tokens)))
            for sample, value in zip(rollout.samples, of_samples, strict=True)
        ],
        **({"unfinished": [recorder.row(sample) for sample in rollout.unfinished]} if rollout.unfinished else {}),
    }
