"""A step of a training loop through the tinker SDK and the service's HTTP, beside the same step by the verbs in its process.

    python tools/bench_service.py --client ENVIRONMENT/bin/python [--rounds 8] [--json PATH] [--markdown PATH]

ENVIRONMENT is a virtual environment with tinker. Both sides have the same trainer and server, and take turns: weights go to the
sampler, as many prompts as a step of the arithmetic recipe has are answered, one request each, and the answers are trained on.
The CPU time is that of the process of the service and of the client, without trainer and servers, which do the same for both.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from aiohttp import web
from bench_rows import ROOT, Result, add_options, finish

from vime.service.configuration import compose_service
from vime.service.datum import Datum
from vime.service.journal import Journal
from vime.service.tinker_api import TinkerAPI
from vime.service.training_service import ModelSpec, Service, TrainedModel, open_service
from vime.surroundings import settle
from vime.tasks import together

MODEL = "agentic/memagent/tiny/actor"
NUM_PROMPTS, PROMPT_TOKENS, MAX_TOKENS = 400, 30, 5
"""A step of the recipe: 100 groups of 4, replies of at most 5 tokens."""
PARTS = ("weights to the sampler", "samples", "forward_backward", "optim_step")


def main() -> None:
    """Measures and shows the table."""
    settle()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", type=Path, required=True, help="interpreter of the environment with tinker")
    parser.add_argument("--rounds", type=int, default=8, help="steps of each side after the first (default %(default)s)")
    parser.add_argument("--port", type=int, default=8933, help="port of the service (default %(default)s)")
    add_options(parser)
    options = parser.parse_args()
    result = Result(title="The training service beside its own verbs", columns=("through HTTP", "in the process"))
    with tempfile.TemporaryDirectory(prefix="bench-service-") as folder:
        http, ours = asyncio.run(measure(options, Path(folder)))
    for place, part in enumerate((*PARTS, "whole step")):
        case = f"{NUM_PROMPTS} prompts of {PROMPT_TOKENS} tokens: {part}"
        values = [
            median(sum(each["parts"]) if part not in PARTS else each["parts"][place] for each in side) for side in (http, ours)
        ]
        result.add("service", case, ours=1000 * values[0], reference=1000 * values[1], unit="ms")
    calls = NUM_PROMPTS + 3
    values = [median(each["cpu"] for each in side) for side in (http, ours)]
    case = f"CPU time of a call, {calls} calls a step; service and client"
    result.add("service", case, ours=1000 * values[0] / calls, reference=1000 * values[1] / calls, unit="ms")
    note = "Client, service, trainer and server share the cores of this machine"
    result.notes.append(f"{note}: a step takes longer by the CPU time of the first two.")
    finish(result, options)


async def measure(options: argparse.Namespace, folder: Path) -> tuple[list[dict], list[dict]]:
    """The times of the steps through HTTP and of those in the process."""
    rng = random.Random(0)
    prompts = [[rng.randrange(300) for _ in range(PROMPT_TOKENS)] for _ in range(NUM_PROMPTS)]
    (folder / "prompts.json").write_text(json.dumps(prompts))
    words = ["model=tiny", f"model.checkpoint={ROOT / MODEL}", f"output_dir={folder / 'service'}", f"service.port={options.port}"]
    config = compose_service(words).config
    async with open_service(config, folder, say=lambda line: None) as service:
        journal = Journal(folder)
        runner = web.AppRunner(TinkerAPI(service, folder, journal).app(), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", options.port).start()
        client = await _client(options, folder / "prompts.json")
        model = await service.create_model("bench", ModelSpec(rank=32, seed=0))
        http, ours = [], []
        for turn in range(options.rounds + 1):
            for side in ("http", "ours") if turn % 2 else ("ours", "http"):
                cpu = time.process_time()
                found = await (_asked(client) if side == "http" else step(service, model, prompts, folder / f"bench{turn}"))
                found["cpu"] = found.get("cpu", 0.0) + time.process_time() - cpu
                (http if side == "http" else ours).append(found)
                sys.stderr.write(f"{side}: {found}\n")
        client.terminate()
        await client.wait()
        await runner.cleanup()
    return http[1:], ours[1:]


async def step(service: Service, model: TrainedModel, prompts: list[list[int]], folder: Path) -> dict:
    """One step by the verbs."""
    times = [time.monotonic()]
    await model.save_sampler(folder)
    async with service.sampler(folder.name, folder) as sampler:
        await sampler.sample(prompts[0], {"max_tokens": 1})
        times.append(time.monotonic())
        parameters = {"max_tokens": MAX_TOKENS, "temperature": 1.0}
        turns = await together([sampler.sample(prompt, parameters) for prompt in prompts])
        times.append(time.monotonic())
    data = [Datum.sampled(prompt, turn, 1.0 if turn.output_ids[0] % 2 else -1.0) for prompt, turn in zip(prompts, turns)]
    await model.forward_backward(data, "importance_sampling")
    times.append(time.monotonic())
    await model.step({"lr": 1e-5})
    times.append(time.monotonic())
    return {"parts": [after - before for before, after in itertools.pairwise(times)]}


async def _client(options: argparse.Namespace, prompts: Path) -> asyncio.subprocess.Process:
    variables = os.environ | {
        "TINKER_BASE_URL": f"http://127.0.0.1:{options.port}",
        "TINKER_API_KEY": "tml-bench",
        "HF_HUB_OFFLINE": "1",
    }
    words = [str(options.client), str(ROOT / "tools" / "clients" / "tinker_step.py"), "tiny", str(prompts), str(MAX_TOKENS)]
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, env=os.environ | variables)


async def _asked(client: asyncio.subprocess.Process) -> dict:
    """One step of the client."""
    assert client.stdin is not None and client.stdout is not None
    client.stdin.write(b"\n")
    while not (line := await client.stdout.readline()).startswith(b"{"):
        assert line, "the client has ended"
    return json.loads(line)


if __name__ == "__main__":
    main()
