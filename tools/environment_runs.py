"""Real runs of the tiny model in one task behind four kinds of environments, all of them killed in the middle.

    python tools/environment_runs.py [--only bridge openenv gymnasium mcp] [--steps 6] [--section results/environments.md]
        [--json PATH] [--python PYTHON] [--mcp "node FOLDER/dist/index.js"]

`--python` is the Python of the bridge, `--mcp` the command of a server whose tool `echo` is offered, for example of
`npm install @modelcontextprotocol/server-everything`; `gymnasium` must be installed where its environment runs. The bridge's
process, the MCP servers and the server of OpenEnv are killed; Gymnasium's environment is in the run, which is killed and resumed.
Ends with 1 if a rollout was lost, or if the reward did not rise.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from bench_rows import ROOT, Result, add_options, finish, save_section

from vime.cluster.ports import free_port

TASK = ROOT / "tools" / "boxed_worlds.py"
NUM_ROLLOUTS = 64
KILLED_AT = 2
"""The step after which the environment is killed."""
AWAY_SECONDS = 5.0
POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kind of environment: the words that choose it, and what is killed."""

    words: list[str]
    victim: str = ""
    """A word of the command of the processes to kill, below the run; "" for the run itself."""


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """The rows of the steps so far."""
    file = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [row for row in rows if "reward/mean" in row]


def killed(run: subprocess.Popen[bytes], victim: str) -> int:
    """Kills the processes below a run whose command has this word; returns their number."""
    found = [each for each in psutil.Process(run.pid).children(recursive=True) if _is(each, victim)]
    for each in found:
        each.kill()
    return len(found)


def _is(process: psutil.Process, word: str) -> bool:
    try:
        return word in " ".join(process.cmdline()) and "vime.processes.launch" not in process.cmdline()
    except psutil.Error:
        return False


def trained(words: list[str], folder: Path, during: Callable[[subprocess.Popen[bytes]], bool]) -> int:
    """Runs a training; `during` is asked again and again until it says that it is done. Returns the exit code."""
    command = [sys.executable, "-m", "vime.run", *words, f"output_dir={folder}"]
    with open(f"{folder}.log", "ab") as log:
        run = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)
        is_done = False
        while run.poll() is None:
            is_done = is_done or during(run)
            time.sleep(POLL_SECONDS)
    return run.returncode


def measured(case: Case, steps: int, folder: Path, server: "Server | None") -> tuple[list[dict[str, Any]], int]:
    """The steps of a run in which the environment was killed, and how many processes were."""
    count = 0

    def kill(run: subprocess.Popen[bytes]) -> bool:
        nonlocal count
        if len(metrics_of(folder)) < KILLED_AT:
            return False
        if server is not None:
            server.restart()
            count = 1
        elif case.victim:
            count = killed(run, case.victim)
        else:
            run.send_signal(signal.SIGKILL)
            count = 1
        return count > 0

    words = ["+method=environment", *case.words, f"trainer.num_steps={steps}", "method.max_turn_tokens=16"]
    words += ["data.evaluation=[]", "evaluation.before=none", f"rollout.num_prompts={NUM_ROLLOUTS // 8}"]
    code = trained(words, folder, kill)
    if not case.victim and server is None:
        code = trained([*words, "resume=true"], folder, lambda _: True)
    if code:
        raise SystemExit(f"{shlex.join(words)} ended with {code}:\n{Path(f'{folder}.log').read_text()[-3000:]}")
    return metrics_of(folder), count


class Server:
    """The server of OpenEnv's messages, which can be killed and comes back."""

    def __init__(self) -> None:
        self.port = free_port("127.0.0.1", 0)
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(TASK), str(self.port)], stderr=subprocess.DEVNULL)

    def restart(self) -> None:
        """Kills it, and starts it again after a pause."""
        self.stop()
        time.sleep(AWAY_SECONDS)
        self._process = self._started()

    def stop(self) -> None:
        """Kills it."""
        self._process.kill()
        self._process.wait()


def cases(options: argparse.Namespace, port: int) -> dict[str, Case]:
    """The kinds of environments."""
    settings = {
        "bridge": {"python": options.python, "adapter": f"{TASK}:Boxes"},
        "openenv": {"url": f"http://127.0.0.1:{port}", "instruction": "Answer."},
        "gymnasium": {"make": f"{TASK}:make"},
        "mcp": {
            **{"command": shlex.split(options.mcp), "rows": f"{TASK}:rows", "score": f"{TASK}:score"},
            **{"only": ["echo"], "num_servers": 4},
        },
    }
    names = {"gymnasium": "gym_like"}
    more = {"mcp": ["model.tool_parser=hermes"]}
    victims = {"bridge": "foreign/side.py", "mcp": shlex.split(options.mcp)[-1]}
    return {
        name: Case(
            words=[f"method.environment={names.get(name, name)}", f"method.settings={_written(own)}", *more.get(name, [])],
            victim=victims.get(name, ""),
        )
        for name, own in settings.items()
    }


def _written(settings: dict[str, Any]) -> str:
    """Settings as Hydra reads them in a word of the command line: keys stand without quotes."""
    return "{" + ", ".join(f"{name}: {json.dumps(value)}" for name, value in settings.items()) + "}"


def main() -> None:
    """Runs the cases, and shows or writes the section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=("bridge", "openenv", "gymnasium", "mcp"))
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--mcp", default="node node_modules/@modelcontextprotocol/server-everything/dist/index.js")
    parser.add_argument("--section", type=Path, help="page whose section on this is written anew")
    add_options(parser)
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    result, problems = Result(title="Real runs", columns=("last step", "first step")), []
    server = Server()
    try:
        for name, case in cases(options, server.port).items():
            if options.only and name not in options.only:
                continue
            with tempfile.TemporaryDirectory() as folder:
                of_case = server if name == "openenv" else None
                steps, count = measured(case, options.steps, Path(folder, "run"), of_case)
            first, last = steps[0]["reward/mean"], steps[-1]["reward/mean"]
            lost = sum(NUM_ROLLOUTS - int(row["train/num_rollouts"]) for row in steps)
            retried = sum(int(row["rollout/num_retries"]) for row in steps)
            seconds = steps[-1]["time"] - steps[0]["time"]
            result.add("environments", f"{name}, mean reward", ours=last, reference=first, unit="reward")
            what = {"openenv": "its server", "gymnasium": "the run"}.get(name, f"{count} process{'es' * (count != 1)}")
            result.notes.append(
                f"{name}: {len(steps)} steps of {NUM_ROLLOUTS} rollouts, {what} killed after step {KILLED_AT}: "
                f"{lost} rollouts lost, {retried} run again, {seconds / max(1, len(steps) - 1):.1f} s a step"
            )
            problems += [f"{name}: {lost} rollouts are lost"] * (lost > 0)
            problems += [f"{name}: {len(steps)} of {options.steps} steps"] * (len(steps) != options.steps)
            problems += [f"{name}: the reward did not rise"] * (last <= first)
            sys.stdout.write(result.notes[-1] + "\n")
            sys.stdout.flush()
    finally:
        server.stop()
    result.notes += problems
    if options.section:
        before = "MemAgent's tiny model, one task: a reply with a box earns 1. Each environment is killed in the middle."
        save_section(options.section, result, before=before)
    finish(result, options)
    if problems:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
