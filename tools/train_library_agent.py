"""Trains an agent of another library for ten steps, unchanged, in an environment of its own, and audits its trained tokens.

    python tools/train_library_agent.py langgraph [--seed N] [--num-steps N] [--num-rollouts N] [--json PATH] [--markdown PATH]
    python tools/train_library_agent.py strands

Each rollout is a program, which finds its model by the variables that OpenAI's SDK reads. LangGraph's
(`clients/langgraph_experts.py`) trains ToolOrchestra's tiny orchestrator with the questions of `graph_task.py`; that of Strands
(`agentic/database/agents/strands_agent.py`) is the experiment `database_tiny_strands`. The exit code is 1 if a token that a
client received is not trained exactly once, or if the mean reward of the last three steps is not above that of the first three.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from bench_rows import ROOT, Result, add_options, circumstances
from client_environments import LANGGRAPH, STRANDS, Environment, installed_version
from driven_run import DrivenRun, num_steps_done

from vime.files.jsonl import read_lines
from vime.files.record import REPLY

SECONDS = 3600.0
NUM_PROMPTS = 6
AT_ENDS = 3
"""Steps at the beginning and at the end whose mean rewards are compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Agent:
    """An agent of another library and the run that trains it; `{python}` in its words is its environment's interpreter.

    Example: `Agent(title="An agent in LangGraph, …", program="tools/clients/…", packages=("langgraph",), words=(…))`.
    """

    title: str
    program: str
    environment: Environment
    packages: tuple[str, ...]
    """Packages whose versions the page names."""
    words: tuple[str, ...]


AGENTS = {
    "langgraph": Agent(
        title="An agent in LangGraph, trained as it is",
        program="tools/clients/langgraph_experts.py",
        environment=LANGGRAPH,
        packages=("langgraph", "langchain-openai"),
        words=(
            "method.generate='run {python} tools/clients/langgraph_experts.py'",
            "method.reward=tools/graph_task.py:reward",
            "data.train.generator=tools/graph_task.py:rows",
            "+data.train.generator_args.split=train",
            "data.train.num_items=4096",
            f"model.checkpoint={ROOT}/agentic/toolorchestra/tiny/orchestrator",
            "model.tool_parser=hermes",
            "algorithm=grpo",
            "trainer.lr=5e-4",
        ),
    ),
    "strands": Agent(
        title="An agent of Strands, trained as it is",
        program="agentic/database/agents/strands_agent.py",
        environment=STRANDS,
        packages=("strands-agents", "openai"),
        words=("+experiment=database_tiny_strands", "method.generate='run {python} agentic/database/agents/strands_agent.py'"),
    ),
}


def settings(agent: Agent, name: str, *, seed: int, num_steps: int, num_rollouts: int) -> list[str]:
    """The words of the run."""
    return [
        *(word.replace("{python}", str(agent.environment.python)) for word in agent.words),
        f"name={name}",
        "evaluation.rows=[]",
        f"seed={seed}",
        f"trainer.num_steps={num_steps}",
        f"rollout.num_prompts={NUM_PROMPTS}",
        f"rollout.num_samples_per_prompt={num_rollouts // NUM_PROMPTS}",
        "rollout.max_concurrent_rollouts=8",
    ]


def summary(step: int, rollouts: list[dict[str, Any]]) -> dict[str, Any]:
    """The rewards of one step's rollouts, and whether each token that a client received is trained once."""
    turns = [turn for rollout in rollouts for sample in rollout["samples"] for turn in sample["turns"]]
    received = [rollout["counts"].get("session_delivered_tokens", 0) for rollout in rollouts]
    trained = [
        sum(turn["num_tokens"] for sample in rollout["samples"] for turn in sample["turns"] if turn["kind"] == REPLY)
        for rollout in rollouts
    ]
    return {
        "step": step,
        "reward": fmean(rollout["reward"] for rollout in rollouts),
        "rollouts": len(rollouts),
        "failed": sum(rollout["status"] == "failed" for rollout in rollouts),
        "calls": sum(rollout["counts"].get("session_calls", 0) for rollout in rollouts),
        "replies": sum(turn["kind"] == REPLY for turn in turns),
        "received_tokens": sum(received),
        "trained_tokens": sum(trained),
        "mistakes": sum(one != other for one, other in zip(received, trained)),
    }


def markdown(page: Result, agent: Agent, steps: list[dict[str, Any]]) -> str:
    """The steps as a page."""
    names = ["step", "mean reward", "rollouts", "failed", "calls of the model", "replies trained", "tokens received"]
    names += ["tokens trained", "rollouts with another number"]
    versions = ", ".join(f"{name} {installed_version(agent.environment.python, name)}" for name in agent.packages)
    lines = [
        f"# {page.title}",
        "",
        *[f"- {fact}" for fact in circumstances(page)],
        f"- agent: `{agent.program}` with {versions}",
        "",
    ]
    lines += [f"| {' | '.join(names)} |", "|" + "--:|" * len(names)]
    for row in steps:
        lines.append(
            "| " + " | ".join(f"{value:.3f}" if name == "reward" else f"{value:,}" for name, value in row.items()) + " |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Builds the environment, runs, audits and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agent", choices=sorted(AGENTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-steps", type=int, default=10)
    parser.add_argument("--num-rollouts", type=int, default=24, help="rollouts of a step, a multiple of 6")
    add_options(parser)
    options = parser.parse_args()
    agent = AGENTS[options.agent]
    agent.environment.build()
    page, run_name = Result(title=agent.title), f"{options.agent}_agent"
    words = settings(agent, run_name, seed=options.seed, num_steps=options.num_steps, num_rollouts=options.num_rollouts)
    with tempfile.TemporaryDirectory(prefix=f"vime-{options.agent}-") as name:
        folder = Path(name, "run")
        run = DrivenRun(folder, words, environment={})
        try:
            code = run.finish(seconds=SECONDS)
        finally:
            run.kill()
        if code:
            raise RuntimeError(f"the run ended with {code} after {num_steps_done(folder)} steps:\n{run.log_tail()}")
        files = [folder / "rollouts" / f"step_{step:06d}.jsonl" for step in range(1, options.num_steps + 1)]
        steps = [summary(step, read_lines(file)) for step, file in enumerate(files, start=1)]
    text = markdown(page, agent, steps)
    sys.stdout.write(text)
    if options.json:
        options.json.write_text(json.dumps(steps, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(text)
    first, last = (fmean(row["reward"] for row in part) for part in (steps[:AT_ENDS], steps[-AT_ENDS:]))
    return 0 if last > first and not any(row["mistakes"] for row in steps) else 1


if __name__ == "__main__":
    sys.exit(main())
