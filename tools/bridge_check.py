"""Hands of Kuhn poker on fixed replies, scored by verifiers' own evaluator and through a bridge, also one that is killed.

    envs/vf/bin/pip install verifiers==0.4.0 FOLDER/environments/kuhn_poker         # the folder is verifiers' repository
    python tools/bridge_check.py --python envs/vf/bin/python [--hands 32] [--section results/environments.md] [--json PATH]

Both sides get the same reply to the same message. The rewards of each seat must be equal, every token that was sampled must be
trained once in a sequence of its seat, and nothing may be left running. Ends with 1 if anything of this does not hold.
"""

import argparse
import asyncio
import hashlib
import json
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from aiohttp import web
from bench_rows import Result, add_options, finish, save_section
from client_engine import END, ScriptedModel
from fetch_qwen3_tokenizer import fetched

from vime.config import RolloutConfig, RunConfig
from vime.environments.bridge import FOREIGN, Bridge
from vime.environments.environment import load_environment
from vime.environments.harness import run_harness
from vime.environments.play import reward
from vime.model.load_tokenizer import load_tokenizer
from vime.rollout.context import Context, Sampling
from vime.trajectory.trajectory import Trajectory
from vime.types import Rollout, Sample
from vime.workers.isolation import Hooks, run_rollout

TASKSET = "kuhn_poker"
MAX_TOKENS = 32
AT_ONCE = 8
KILLED_AFTER = 0.3
"""Share of the hands after which the process is killed, in the run in which it is."""
Payoffs = dict[int, dict[str, float]]
"""The rewards of each seat, by the number of the hand."""


def fixed_reply(message: str) -> str:
    """The reply to a message: one of the actions in its square brackets, or now and then none of them."""
    actions = re.findall(r"\[\w+\]", message.rpartition("legal")[2])
    place = hashlib.sha256(message.encode()).digest()[0]
    return "I do not know." if place < 32 or not actions else f"I say {actions[place % len(actions)]}."


class Fixed(ScriptedModel):
    """A model that gives the fixed reply to the last message of its prompt."""

    async def generate(self, token_ids: Any, *, sampling: dict[str, Any], listener: Any, **options: Any) -> Any:
        """The reply; see `TokenClient.generate`."""
        prompt = list(token_ids)
        said = self.tokenizer.decode(prompt).rpartition("<|im_start|>user\n")[2].partition(END)[0]
        turn = await self._say(prompt, fixed_reply(said), sampling=sampling, listener=listener, **options)
        self.asked.append((prompt, turn))
        return turn


async def own_scores(python: str, hands: int, seats: tuple[str, ...]) -> Payoffs:
    """The rewards that verifiers' evaluator gives."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", _chat)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    with tempfile.TemporaryDirectory() as folder:
        words = [str(Path(python).absolute().with_name("vf-eval")), TASKSET, "-m", "policy", "-n", str(hands), "-o", folder]
        words += ["--no-push", "--client.type", "eval", "--client.base-url", url, "--client.api-key-var", "NONE"]
        words += ["--sampling.max-tokens", str(MAX_TOKENS)]
        for seat in seats:
            words += [f"--env.{seat}.harness.id", "verifiers_tasks", f"--env.{seat}.runtime.type", "subprocess"]
        environment = {**os.environ, "PYTHONPATH": str(FOREIGN)}
        done = await asyncio.create_subprocess_exec(
            *words, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await done.communicate()
        files = list(Path(folder).rglob("traces.jsonl"))
        if done.returncode or not files:
            raise SystemExit(f"vf-eval ended with {done.returncode}:\n{output.decode()[-3000:]}")
        found: Payoffs = {}
        for line in files[0].read_text().splitlines():
            _book(found, json.loads(line))
    await runner.cleanup()
    return found


def _book(found: Payoffs, record: dict[str, Any]) -> None:
    """Adds a line of the evaluator: an episode, or a trace of one."""
    for trace in record.get("traces") or [record]:
        rewards = [each for each in trace["rewards"].values() if each is not None]
        value = sum(each["score"] * each["weight"] for each in rewards)
        found.setdefault(trace["info"]["kuhn"]["seed"], {})[trace["agent"]["name"]] = float(value)


async def _chat(request: web.Request) -> web.Response:
    body = await request.json()
    content = body["messages"][-1]["content"]
    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
    message = {"role": "assistant", "content": fixed_reply(text)}
    choices = [{"index": 0, "finish_reason": "stop", "message": message}]
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    answer = {"id": "fixed", "object": "chat.completion", "created": 0, "model": "policy", "choices": choices, "usage": usage}
    return web.json_response(answer)


async def our_scores(bridge: Bridge, hands: int, tokenizer: Any, *, kills: bool) -> tuple[Payoffs, list[str], float]:
    """The rewards through the bridge, what was wrong, and the seconds that it took."""
    rows = list(bridge.rows(split="train", num_items=hands, seed=0))
    found: Payoffs = {}
    problems: list[str] = []
    places, began = asyncio.Semaphore(AT_ONCE), time.monotonic()

    async def hand(row: dict[str, Any]) -> None:
        async with places:
            model = Fixed(tokenizer, (), folder=Path(), max_model_len=8192)
            rollout = await _rollout(bridge, row, model)
            seed = row["task"]["info"]["seed"]
            if rollout.error:
                problems.append(f"hand {seed}: {rollout.stop_reason.value}: {rollout.error}")
            else:
                found[seed] = {each.seat: float(each.reward or 0.0) for each in rollout.samples}
                problems.extend(f"hand {seed}: {each}" for each in _audited(rollout, model))
            if kills and len(found) >= KILLED_AFTER * hands and not killed:
                killed.extend(_processes(bridge))
                killed[-1].kill()

    killed: list[psutil.Process] = []
    await asyncio.gather(*(hand(row) for row in rows))
    return found, problems, time.monotonic() - began


async def _rollout(bridge: Bridge, row: dict[str, Any], model: Fixed) -> Rollout:
    """One hand, as a worker runs it."""
    config = RunConfig(rollout=RolloutConfig(max_retries=2))
    trajectory = Trajectory()

    def make_context(attempt: int) -> Context:
        served = model.served()
        served.trajectory = trajectory
        return Context(
            config=config, evaluation=False, session_id="hand", row=row, models={"actor": served}, trajectory=trajectory
        )

    async def generate(context: Context, sample: Sample, _: Sampling) -> list[Sample]:
        return await run_harness(context, sample, bridge, max_turn_tokens=MAX_TOKENS)

    return await run_rollout(
        hooks=Hooks(generate=generate, reward=reward),
        config=config.rollout,
        make_context=make_context,
        template=Sample(prompt=[], group_index=0, rollout_id=0, session_id="hand"),
        sampling=Sampling(temperature=1.0, top_p=1.0),
    )


def _audited(rollout: Rollout, model: Fixed) -> list[str]:
    """Faults in the tokens of a hand: each sampled one is trained once; a hand that is run again keeps its replies."""
    sampled = sorted(token for _, turn in model.asked for token in turn.output_ids)
    trained = sorted(
        int(token)
        for sample in rollout.samples
        for token, mask in zip(sample.tokens[-sample.response_length :], sample.loss_mask)
        if mask
    )
    return [] if sampled == trained else [f"{len(sampled)} tokens were sampled, {len(trained)} are trained"]


def _processes(bridge: Bridge) -> list[psutil.Process]:
    """The processes of a bridge, the environment's own last."""
    started = [each._process for each in bridge._processes if each._process is not None]
    return [each for process in started for each in [psutil.Process(process.pid), *psutil.Process(process.pid).children(True)]]


def main() -> None:
    """Measures, and shows or writes the section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="the Python in which verifiers and the taskset are installed")
    parser.add_argument("--hands", type=int, default=32)
    parser.add_argument("--section", type=Path, help="page whose section on this is written anew")
    add_options(parser)
    options = parser.parse_args()
    result = Result(title="Verifiers through the bridge", columns=("through the bridge", "verifiers' evaluator"))
    bridge = load_environment(f"verifiers.{TASKSET}", {"python": options.python, "splits": False})
    tokenizer = load_tokenizer(fetched())
    own = asyncio.run(own_scores(options.python, options.hands, bridge.seats))
    problems: list[str] = []
    for name, kills in (("undisturbed", False), ("its process killed", True)):
        ours, wrong, seconds = asyncio.run(our_scores(bridge, options.hands, tokenizer, kills=kills))
        problems += [f"{name}: {each}" for each in wrong]
        problems += [
            f"{name}: the rewards of hand {seed} do not add up to 0" for seed, each in ours.items() if sum(each.values())
        ]
        equal = sum(ours.get(seed) == payoffs for seed, payoffs in own.items())
        problems += [f"{name}: {equal} of {options.hands} hands have equal rewards"] * (equal < options.hands)
        result.add("bridge", f"hands with the same rewards, {name}", ours=equal, reference=len(own), unit="hands")
        result.notes.append(f"{name}: {seconds / options.hands:.2f} s a hand, {AT_ONCE} at a time")
    running = _processes(bridge)
    bridge.close()
    _, alive = psutil.wait_procs(running, timeout=30)
    problems += [f"{len(alive)} processes are left"] * bool(alive)
    version = subprocess.run(
        [options.python, "-c", "import importlib.metadata as m; print(m.version('verifiers'))"], capture_output=True, text=True
    ).stdout.strip()
    result.notes.append(f"verifiers {version}, Kuhn poker, both seats trained, fixed replies")
    result.notes += problems or ["every sampled token is trained once, rewards add up to 0, and no process is left"]
    if options.section:
        save_section(options.section, result, before="Each hand has the same replies on both sides.")
    finish(result, options)
    if problems:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
