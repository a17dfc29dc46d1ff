"""Lets Claude Code and Codex each solve a task of QuixBugs in a workspace without a network, and audits the trained tokens.

    make agents && python tools/solve_with_programs.py [--markdown PATH]

Everything is what a run uses (`agentic.coding.generate` and `reward`: workspace, session, gateway, patch, hidden tests in a fresh
workspace) except the model: its replies follow a script. The exit code is 1 if a patch is not worth 1.0, or if a sampled token is
not trained exactly once.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_rows import Result, circumstances
from client_audit import audit
from client_engine import Part, ScriptedModel, call, thought
from fetch_qwen3_tokenizer import fetched

from agentic.coding.generate import generate
from agentic.coding.reward import reward
from vime.agent.harness.versions import BY_NAME
from vime.gateway.session import AgentSession
from vime.gateway.session_manager import Parsers, SessionManager
from vime.model.load_tokenizer import load_tokenizer
from vime.preflight.compose import compose_run
from vime.rollout.context import Context, Sampling
from vime.types import Sample

PROGRAM = "python_programs/gcd.py"
WRONG, RIGHT = "return gcd(a % b, b)", "return gcd(b, a % b)"
ROW = {
    "instance_id": "quixbugs__gcd",
    "problem_statement": f"{PROGRAM} is wrong: one line of it has to be changed. gcd(35, 21) should be 7.",
    "files": {PROGRAM: f"def gcd(a, b):\n    if b == 0:\n        return a\n    else:\n        {WRONG}\n"},
    "tests": {
        "python_testcases/test_gcd.py": "from python_programs.gcd import gcd\n\n\ndef test_gcd():\n    assert gcd(35, 21) == 7\n"
    },
    "fail_to_pass": ["python_testcases/test_gcd.py::test_gcd"],
}
"""The task gcd of QuixBugs, with one of its cases."""
SCRIPTS = {
    "claude_code": (
        thought("Look.", call("Bash", command=f"cat {PROGRAM}"), call("Read", file_path=f"/testbed/{PROGRAM}")),
        thought("Swap.", call("Edit", file_path=f"/testbed/{PROGRAM}", old_string=WRONG, new_string=RIGHT)),
        thought("Try.", call("Bash", command="python3 -c 'from python_programs.gcd import gcd; print(gcd(35, 21))'")),
        "gcd is corrected.",
    ),
    "codex": (
        thought("Look.", call("exec_command", cmd=f"cat {PROGRAM}")),
        thought("Swap.", call("exec_command", cmd=f"sed -i 's/{WRONG}/{RIGHT}/' {PROGRAM}")),
        thought("Try.", call("exec_command", cmd="python3 -c 'from python_programs.gcd import gcd; print(gcd(35, 21))'")),
        "gcd is corrected.",
    ),
}


class KeptSessionManager(SessionManager):
    """Keeps the sessions that it opens, for the audit."""

    def __init__(self) -> None:
        super().__init__({"actor": Parsers(tool_parser="hermes", reasoning_parser="qwen3")})
        self.opened: list[AgentSession] = []

    @asynccontextmanager
    async def open(self, model: Any, **options: Any) -> AsyncIterator[AgentSession]:
        """A session, which is kept."""
        async with super().open(model, **options) as session:
            self.opened.append(session)
            yield session


@dataclass(frozen=True, kw_only=True, slots=True)
class Solved:
    """The result of a program. Example: `Solved(agent="codex", version="0.169.0", score=1.0, turns=4, …)`."""

    agent: str
    version: str
    score: float
    ending: str
    turns: int
    num_tokens: int
    problems: list[str]

    @property
    def is_good(self) -> bool:
        """True if the task is solved and every sampled token is trained once."""
        return self.score == 1.0 and not self.problems


async def solve(agent: str) -> Solved:
    """One rollout with its reward."""
    settings = ["+method=coding", f"method.agent={agent}", "method.prompt_style=full", "method.limits.context_tokens=24576"]
    settings += ["method.limits.seconds=240", "method.limits.turn_tokens=4096", "mode=plan"]
    config = compose_run(settings).config
    tokenizer, sessions = load_tokenizer(fetched()), KeptSessionManager()
    with tempfile.TemporaryDirectory() as folder:
        script = (Part(replies=SCRIPTS[agent]),)
        model = ScriptedModel(tokenizer, script, folder=Path(folder), max_model_len=65_536)
        served = model.served()
        context = Context(
            config=config,
            evaluation=False,
            session_id="solve",
            models={"actor": served},
            sessions=sessions,
            trajectory=served.trajectory,
        )
        sample = Sample(prompt=ROW["problem_statement"], metadata=ROW)
        samples = await generate(context, sample, Sampling(temperature=1.0, top_p=1.0))
        score = (await reward(context, samples)).score
    await sessions.stop()
    (session,) = sessions.opened
    found, metadata = audit(session, samples, model.asked), samples[-1].metadata
    return Solved(
        agent=agent,
        version=BY_NAME[agent].version,
        score=score,
        ending=f"{metadata['ending']} {metadata['outcome']}".strip(),
        turns=len(model.asked),
        num_tokens=found.num_tokens,
        problems=[*found.problems, *(["turns were not delivered"] if found.num_not_delivered else [])],
    )


def table(found: list[Solved]) -> str:
    """Markdown: one line per program."""
    lines = ["| agent | version | score | ended | turns | trained tokens | audit |", "|---|---|--:|---|--:|--:|---|"]
    for one in found:
        cells = [one.agent, one.version, one.score, one.ending, one.turns, one.num_tokens]
        lines.append(f"| {' | '.join(map(str, cells))} | {'; '.join(one.problems) or 'every token once'} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Solves the task with each program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    page = Result(title="Programs of others in a workspace")
    found = [asyncio.run(solve(agent)) for agent in SCRIPTS]
    sys.stdout.write(table(found))
    if options.markdown:
        facts = "\n".join(f"- {fact}" for fact in circumstances(page))
        options.markdown.write_text(f"# {page.title}\n\n{facts}\n\n{table(found)}")
    return 0 if all(one.is_good for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
