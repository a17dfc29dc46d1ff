"""Agent Lightning: an algorithm that trains its agents with vime.

    agl.Trainer(algorithm=VIME(["+experiment=mine", "trainer.num_steps=10"], python="PATH/OF/VIME/bin/python"), n_runners=2, …)

It needs `agentlightning` and no other part of vime in its environment; vime runs as a child, in an environment of its own.
"""

import asyncio
import hashlib
import json
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import agentlightning as agl  # pyright: ignore[reportMissingImports]

from agentic.integrations.lightning_bridge import Bridge
from agentic.integrations.lightning_call import BRIDGE_VARIABLE, TASK_FIELD
from agentic.integrations.lightning_store import LightningStore
from vime.surroundings import cache_folder

GENERATE = "agentic.integrations.lightning_rollout.generate"
CHILD = "agentic.integrations.lightning_child"
FOLDER = cache_folder("agent_lightning")
QUESTION_FIELDS = ("question", "prompt", "input", "problem")
END_SECONDS = 60.0


class VIME(agl.Algorithm):
    """Trains the agent of an Agent Lightning trainer; every token that its model calls get is trained as it was sampled."""

    def __init__(self, words: Sequence[str], *, python: str | Path, lost_seconds: float = 45.0, folder: Path = FOLDER) -> None:
        """`words` are those of vime's command line, `python` is the interpreter of vime's environment.

        A runner that gives no sign of life for `lost_seconds` is lost: its heartbeat comes every 10 s unless it was made with
        another `heartbeat_interval`. vime's rows are written into `folder`.
        """
        super().__init__()
        self._words, self._python = list(words), str(python)
        self._lost_seconds, self._folder = lost_seconds, folder

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        """Trains, and evaluates on `val_dataset` as `evaluation.*` says.

        Raises RuntimeError if vime fails, or no runner is left.
        """
        data = {"train": train_dataset, "val": val_dataset}
        words = [*self._words, f"method.generate={GENERATE}", "method.reward=null", *self._data_words(data)]
        bridge = Bridge(LightningStore(self.get_store(), lost_seconds=self._lost_seconds), data)
        await bridge.start()
        environment = {**os.environ, BRIDGE_VARIABLE: bridge.url}
        child = await asyncio.create_subprocess_exec(self._python, "-m", CHILD, *words, env=environment)
        watch, ended = asyncio.create_task(bridge.watch()), asyncio.create_task(child.wait())
        try:
            await asyncio.wait({watch, ended}, return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
            if child.returncode:
                raise RuntimeError(f"vime ended with status {child.returncode}; why is in its output")
        finally:
            await _end(child, ended)
            watch.cancel()
            await asyncio.wait({watch})
            await bridge.stop()

    def _data_words(self, data: dict[str, Any]) -> list[str]:
        """The settings that give vime the rows of the data sets."""
        found: list[str] = []
        if data["train"] is not None:
            path = self._write(data["train"])
            settings = {"path": f"'{path}'", "generator": "null", "generator_args": "{}", "num_items": len(data["train"])}
            found += [f"data.train.{key}={value}" for key, value in settings.items()]
        path = None if data["val"] is None else self._write(data["val"])
        return [*found, f"data.evaluation=[{{name:val,path:'{path}'}}]" if path else "data.evaluation=[]"]

    def _write(self, rows: Any) -> Path:
        """A file with the questions, which vime shows; equal rows have the same file, so that a run can be resumed."""
        lines = [json.dumps({"question": question_of(rows[place]), TASK_FIELD: place}) + "\n" for place in range(len(rows))]
        text = "".join(lines)
        file = self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file


def question_of(row: Any) -> str:
    """The text by which vime names a row; the agent gets the row itself."""
    if isinstance(row, dict):
        for name in QUESTION_FIELDS:
            if isinstance(row.get(name), str) and row[name].strip():
                return row[name]
    return row if isinstance(row, str) else json.dumps(row, default=str)


async def _end(child: asyncio.subprocess.Process, ended: "asyncio.Task[int]") -> None:
    """Ends vime in order, or if that takes too long, without."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if ended.done():
            return
        with suppress(ProcessLookupError):
            child.send_signal(number)
        await asyncio.wait({ended}, timeout=END_SECONDS)
