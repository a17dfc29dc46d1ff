"""Trains the database agent of Agent Lightning with vime, and writes the content of Agent Lightning's store afterwards.

    PYTHON tools/agent_lightning_side.py --python .venv/bin/python --json PATH +experiment=database_tiny…

With `--service URL` the training service trains it (`lightning_service.py`), else a vime that is started with the words. It
runs in Agent Lightning's environment; `tools/bench_agent_lightning.py` starts it. With `--faults` one runner is killed in the
middle of a rollout, and one attempt raises an error.
"""

import argparse
import json
import logging
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import agentlightning as agl  # pyright: ignore[reportMissingImports]
from agentlightning.runner import LitAgentRunner  # pyright: ignore[reportMissingImports]

sys.path.append(str(Path(__file__).resolve().parent.parent))

from agentic.database.agents.lightning_agent import answer, lightning_agent
from agentic.database.task import generate_rows
from agentic.integrations.agent_lightning import VIME
from agentic.integrations.lightning_service import ServiceLoop, VIMEService

HEARTBEAT_SECONDS = 2.0
POLL_SECONDS = 0.1
NUM_ROWS, NUM_VALIDATION_ROWS = 4096, 100


class Recorded(agl.Algorithm):
    """Writes the store's content when the training has ended."""

    file: Path

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        """Trains and writes."""
        await super().run(train_dataset, val_dataset)
        store, adapter = self.get_store(), self.get_adapter()
        resources = await store.query_resources()
        places = {
            one.resources_id: place for place, one in enumerate(sorted(resources, key=lambda one: one.create_time), start=1)
        }
        found: dict[str, Any] = {"resources": places, "rollouts": [], "validation": getattr(self, "validation", [])}
        for rollout in await store.query_rollouts():
            attempts = await store.query_attempts(rollout.rollout_id)
            spans = list(await store.query_spans(rollout.rollout_id))
            calls = [span for span in spans if span.name == "raw_gen_ai_request"]
            found["rollouts"].append(
                {
                    **rollout.metadata,
                    "rollout_id": rollout.rollout_id,
                    "mode": rollout.mode,
                    "status": rollout.status,
                    "resources_id": rollout.resources_id,
                    "attempts": [[attempt.attempt_id, attempt.status, attempt.worker_id] for attempt in attempts],
                    "reward": agl.find_final_reward(spans),
                    "calls": len(calls),
                    "call_numbers": [span.sequence_id for span in calls],
                    "weight_versions": sorted({version for span in calls for version in versions_of(span)}),
                    "triplets": len(adapter.adapt(spans)),
                }
            )
        self.file.write_text(json.dumps(found))


class RecordedVIME(Recorded, VIME):
    """The loop is vime's."""


class RecordedService(Recorded, VIMEService):
    """The loop is in Agent Lightning's trainer."""


def versions_of(span: Any) -> list[int]:
    """The versions of the weights that sampled the tokens of a call."""
    return [version for choice in json.loads(span.attributes["vime.weight_versions"]) for version in choice]


def faulty_agent(folder: Path) -> Any:
    """The same agent, but the first attempt at one rollout kills its runner, and the first attempt at another raises an error."""

    @agl.rollout
    def agent(task: dict[str, Any], llm: agl.LLM, rollout: agl.Rollout) -> float:
        said = answer(task, llm)
        if rollout.mode == "train" and rollout.metadata and rollout.metadata["weight_version"] == 1:
            if is_first(folder / "killed"):
                os.kill(os.getpid(), signal.SIGKILL)
            if is_first(folder / "raised"):
                raise RuntimeError("an agent that fails at its first attempt")
        return float(said.strip() == task["answer"])

    return agent


def is_first(file: Path) -> bool:
    """True if this file does not exist yet; creates it."""
    try:
        file.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def main() -> None:
    """Trains."""
    logging.basicConfig(level=logging.INFO)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="the interpreter of vime's environment")
    parser.add_argument("--service", help="address of a training service, which is used in place of a vime of its own")
    parser.add_argument("--steps", type=int, default=10, help="steps on the service (default %(default)s)")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--runners", type=int, default=2)
    parser.add_argument("--lost-seconds", type=float, default=45.0, help="without a sign of life a runner is lost")
    parser.add_argument("--faults", action="store_true")
    options, words = parser.parse_known_args()
    tracer = agl.OtelTracer()
    if options.service:
        loop = ServiceLoop(url=options.service, model="tiny", num_steps=options.steps, num_rows=6, num_rollouts=8)
        algorithm = RecordedService(loop, lost_seconds=options.lost_seconds)
    else:
        algorithm = RecordedVIME(words, python=options.python, lost_seconds=options.lost_seconds)
    algorithm.file = options.json
    trainer = agl.Trainer(
        algorithm=algorithm,
        n_runners=options.runners,
        strategy=agl.ClientServerExecutionStrategy(
            n_runners=options.runners, server_port=free_port(), allowed_exit_codes=(0, -9, -15)
        ),
        tracer=tracer,
        adapter=agl.LlmProxyTraceToTriplet(),
        runner=lambda: LitAgentRunner(tracer=tracer, poll_interval=POLL_SECONDS, heartbeat_interval=HEARTBEAT_SECONDS),
    )
    rows = generate_rows(split="train", num_items=NUM_ROWS, seed=0)
    held_out = generate_rows(split="eval", num_items=NUM_VALIDATION_ROWS, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        agent = faulty_agent(Path(folder)) if options.faults else lightning_agent
        trainer.fit(agent, train_dataset=rows, val_dataset=held_out)


def free_port() -> int:
    """A free port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


if __name__ == "__main__":
    main()
