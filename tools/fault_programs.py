"""Agents that are programs and misbehave in their workspaces, for `tools/faults.py`; the run's files show what each cost.

One training rollout in `ONE_IN` has such a program in place of the method's own agent. Each asks its session once and then
misbehaves; `EXPECTED` has the ways, each with the result that it must have.
"""

import json
import os
import sys
import time
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
from driven_run import DrivenRun
from fault_hooks import ONE_IN, strikes

from agentic.coding import generate as coding
from agentic.coding.config import CodingConfig
from agentic.coding.programs import Program
from vime.agent.command import Command, CommandEnd
from vime.agent.harness.outcome import Outcome, silent_end
from vime.rollout.context import Context, Sampling
from vime.types import Sample

MARK = "86399.25"
"""Mark in the command line of every program that is left running on purpose."""
NUM_LOST, PAUSE_SECONDS = 8, 0.7
SECONDS, GONE_SECONDS = 10.0, 30.0
ASK = """
import json, os, subprocess, sys, time, urllib.request
def ask(url, secret):
    body = json.dumps({"model": "policy", "max_tokens": 8, "messages": [{"role": "user", "content": "repository"}]}).encode()
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    return urllib.request.urlopen(urllib.request.Request(f"{url}/chat/completions", body, headers)).read()
ask(sys.argv[1], sys.argv[2])
"""
DAEMON = f"subprocess.Popen(['setsid', 'setsid', 'sh', '-c', 'trap \"\" TERM INT HUP; exec sleep {MARK}'])\n"
DEEDS = {
    "killed": "os.kill(os.getpid(), 9)\n",
    "hung": f"{DAEMON}time.sleep({MARK})\n",
    "prints a gigabyte": "[os.write(1, bytes(2**20)) for _ in range(2**10)]\n",
    "forks daemons": f"for _ in range(5): {DAEMON}",
    "takes all memory": "x = [bytearray(2**26) for _ in range(2**10)]\n",
}
EXPECTED = {
    "killed": ("program_failed", "killed"),
    "hung": ("time_used_up", "time_limit"),
    "prints a gigabyte": ("program_failed", "output_limit"),
    "forks daemons": ("no_call", "finished"),
    "takes all memory": ("program_failed", "memory_limit"),
}
"""The ending in the rollout's metadata, and how its program ended."""
OWN_AGENT = "the end of the method's own agent"
_deed: ContextVar[str] = ContextVar("deed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Unruly:
    """A program that misbehaves. Example: `Unruly(deed="hung")`."""

    deed: str

    def command(self, prompt: str, *, openai_url: str, anthropic_url: str, secret: str, folder: Path) -> Command:
        """The program; `prompt` is not used."""
        script = str(folder / "unruly.py")
        return Command(words=["python3", script, openai_url, secret], folder=folder, files={script: ASK + DEEDS[self.deed]})

    def outcome(self, end: CommandEnd) -> Outcome:
        """The outcome is good if the program ends by itself."""
        return Outcome(ended_well=True, answer="done") if end.exit_code == 0 else silent_end(end)


def program(method: CodingConfig) -> Program:
    """The program of this rollout, for `method.agent`."""
    return Program(harness=Unruly(deed=_deed.get()))


async def generate(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
    """The coding agent, in one rollout of several as a program that misbehaves."""
    if strikes("program", context, sample):
        deed = list(DEEDS)[(sample.group_index + sample.group_index // ONE_IN) % len(DEEDS)]
        with (_folder() / "deeds.jsonl").open("a") as file:
            file.write(json.dumps({"rollout_id": sample.rollout_id, "deed": deed}) + "\n")
        _deed.set(deed)
        method = CodingConfig.of(context.config)
        method = replace(method, agent=f"{__file__}:program", limits=replace(method.limits, seconds=SECONDS))
        context = replace(context, config=replace(context.config, method=method))
    return await coding.generate(context, sample, sampling)


def damage(folder: Path) -> int:
    """Number of rollouts that did not end as they should, of deeds that no program did, and of programs that are left."""
    deeds = [json.loads(line) for line in (folder.parent / "deeds.jsonl").read_text().splitlines()]
    ends = {rollout["rollout_id"]: rollout["samples"][-1]["metadata"] for rollout in _rollouts(folder)}
    wrong = [f"no program: {deed}" for deed in set(DEEDS) - {one["deed"] for one in deeds}]
    expected = {one["rollout_id"]: EXPECTED[one["deed"]] for one in deeds}
    for rollout_id, metadata in ends.items():
        found, wanted = (metadata["ending"], metadata.get("program_end")), expected.get(rollout_id)
        if found != wanted if wanted else found[1] is not None:
            wrong.append(f"rollout {rollout_id}: {found} instead of {wanted or OWN_AGENT}")
    give_up = time.monotonic() + GONE_SECONDS
    while (left := _left()) and time.monotonic() < give_up:
        time.sleep(0.1)
    sys.stderr.writelines(f"{line}\n" for line in [*wrong, *left])
    return len(wrong) + len(left)


def end_a_workspace(run: DrivenRun) -> None:
    """Kills the first processes of workspaces now and then; in some an agent works, and in others hidden tests run."""
    for _ in range(NUM_LOST):
        run.wait_for(lambda: _kills_one(run), seconds=GONE_SECONDS)
        time.sleep(PAUSE_SECONDS)


def _kills_one(run: DrivenRun) -> bool:
    try:
        run.find(r"--hostname workspace").children()[0].kill()
    except (LookupError, psutil.NoSuchProcess):  # there is none just now
        return False
    return True


def _rollouts(folder: Path) -> list[dict[str, Any]]:
    files = sorted((folder / "rollouts").glob("step_*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def _left() -> list[str]:
    lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if MARK in line]


def _folder() -> Path:
    return Path(os.environ["VIME_FAULT_FOLDER"])
