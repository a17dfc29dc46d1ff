"""Stand-in for vime as the child of Agent Lightning's algorithm: real sessions, retries and `generate`, but a scripted model.

    python scripted_vime.py OUT … data.train.path=ROWS …

It runs every row twice, under two versions of the weights, and writes what became of the rollouts. The model asks the
database once, and gives the right answer to rows with even numbers.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from agentic.database.task import generate_rows
from agentic.integrations.lightning_call import TASK_FIELD
from agentic.integrations.lightning_rollout import generate
from tests.completing import served_by
from tests.gateway.scripted import Scripted, user
from tests.qwen3_tokenizer import qwen3_tokenizer
from vime.gateway.session_manager import Parsers, SessionManager
from vime.preflight.compose import compose_run
from vime.rollout.context import Context, Sampling
from vime.types import Rollout, Sample
from vime.workers.isolation import Hooks, run_rollout

NUM_ROWS = 6
CALL = '<tool_call>\n{"name": "query", "arguments": {"sql": "SELECT 1"}}\n</tool_call><|im_end|>'
SAMPLING = Sampling(temperature=1.0, top_p=1.0)


class Model(Scripted):
    max_model_len = 16_000


async def rollout(
    row: dict[str, Any], answer: str, *, version: int, number: int, sessions: SessionManager, config: Any
) -> Rollout:
    """One rollout with its retries."""
    model = Model(qwen3_tokenizer(), [CALL, f"{answer}<|im_end|>"] * (config.rollout.max_retries + 1))
    served = served_by(model, minimum_version=version)
    session = f"train-{number}"

    def make_context(attempt: int) -> Context:
        served.attempt = served.trajectory.attempt
        return Context(
            config=config,
            evaluation=False,
            session_id=f"{session}-{attempt}",
            models={"actor": served},
            sessions=sessions,
            trajectory=served.trajectory,
        )

    template = Sample(prompt=[user(row["question"])], metadata=row, rollout_id=number, session_id=session)
    hooks = Hooks(generate=generate, reward=None)
    return await run_rollout(hooks=hooks, config=config.rollout, make_context=make_context, template=template, sampling=SAMPLING)


async def play(file: Path) -> list[dict[str, Any]]:
    """All rollouts, under one version after the other."""
    rows = [json.loads(line) for line in file.read_text().splitlines()[:NUM_ROWS]]
    answers = [row["answer"] for row in generate_rows(split="train", num_items=NUM_ROWS, seed=0)]
    config = compose_run(["+experiment=database_tiny", "mode=plan"]).config
    sessions, found = SessionManager({"actor": Parsers(tool_parser="hermes")}), []
    for version in range(2):
        calls = [
            rollout(
                row,
                "?" if row[TASK_FIELD] % 2 else answers[row[TASK_FIELD]],
                version=version,
                number=NUM_ROWS * version + row[TASK_FIELD],
                sessions=sessions,
                config=config,
            )
            for row in rows
        ]
        for ended in await asyncio.gather(*calls):
            known = ended.samples[-1].metadata["agent_lightning"] if ended.samples else {}
            found.append(
                {
                    "vime_rollout": ended.rollout_id,
                    "stop_reason": ended.stop_reason.value,
                    "num_retries": ended.num_retries,
                    "reward": ended.reward,
                    "rollout_id": known.get("rollout_id"),
                    "runner": known.get("runner"),
                }
            )
    await sessions.stop()
    return found


if __name__ == "__main__":
    out, words = Path(sys.argv[1]), sys.argv[2:]
    [path] = [word.partition("=")[2].strip("'") for word in words if word.startswith("data.train.path=")]
    out.write_text(json.dumps(asyncio.run(play(Path(path)))))
