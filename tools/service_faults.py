"""Breaks a training service while a client trains on it, and compares every answer and the weights at the end.

    python tools/service_faults.py [--client PYTHON] [--rounds 8] [--only orders kills] [--free] [--markdown PATH]

A recipe is recorded with a service that nothing disturbs: rounds of samples, training calls and a step. With `--client`, the
interpreter of an environment with tinker-cookbook, it is that library's `math_rl`, whose requests the SDK makes. `orders` makes
the recorded requests again, each twice, in several orders of arrival; `kills` makes them again while service, trainer and server
are ended by SIGKILL at ten points, with the service started again by the same command as often as it is gone. The service is
deterministic (`service.deterministic=true`), and the exit code is 1 if one bit of an answer or of the weights differs. With
`--free` it is not: then weights may differ by 1e-5, and answers by what rounding does to samples.
"""

import argparse
import asyncio
import itertools
import random
import socket
import sys
import tempfile
import threading
import time
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from bench_rows import ROOT, Result, circumstances
from client_environments import installed_version
from driven_run import DrivenRun
from service_client import Recorded, Request, ServiceClient, record, repeat, repeat_in_order
from service_recorder import Recorder
from tinker_recipes import NAME, TAUGHT_MODEL, variables, write_model

from tools import tinker_arithmetic
from vime.service.tinker_calls import KEPT_UNNAMED
from vime.surroundings import settle

KEY = "tml-faults"
MODEL = "agentic/memagent/tiny/actor"
START_SECONDS, WATCH_SECONDS = 400.0, 0.5
NUM_SAMPLES = 3
WORDS = ["model=tiny", f"model.checkpoint={MODEL}", "trainer.lora.rank=16", "service.deterministic=true"]
WORDS += ["service.session_timeout_seconds=600"]
MATH_RL = "env=arithmetic loss_fn=importance_sampling group_size=4 groups_per_batch=4 lora_rank=16 learning_rate=5e-4"
MATH_RL += " eval_every=0 save_every=0"
FREE, TOLERANCE = "service.deterministic=false", 1e-5
"""The last word of a service that is not deterministic, and the largest difference of its weights."""
SERVICE, TRAINER, SERVER = "service", "ray::TrainerRank", "vime.inside_vllm.vllm_server"
POINTS: list[tuple[str, str]] = [
    (SERVICE, "asample"),
    (SERVER, "asample"),
    (TRAINER, "forward_backward"),
    (SERVICE, "optim_step"),
    (SERVER, "save_weights_for_sampler"),
    (SERVICE, "forward_backward"),
    (TRAINER, "optim_step"),
    (SERVER, "asample"),
    (TRAINER, "save_weights_for_sampler"),
    (SERVICE, "save_weights"),
]
"""Parts that are ended, and the call that is under way, each in the next round."""
ORDERS: dict[str, Callable[[list[Any]], Any]] = {
    "backwards": list.reverse,
    "at random, seed 1": random.Random(1).shuffle,
    "at random, seed 2": random.Random(2).shuffle,
}


@dataclass(kw_only=True, slots=True)
class Outcome:
    """One repetition of the recipe.

    Example: `Outcome(case="each request twice, backwards", num_differing=0, distance=0.0, seconds=12.1)`.
    """

    case: str
    num_differing: int
    distance: float
    """The largest difference of the weights at the end."""
    seconds: float
    strikes: list[str] = field(default_factory=list)


class WatchedService:
    """A service that is started again by the same command whenever it is gone, as by the supervisor of a machine."""

    def __init__(self, folder: Path, words: list[str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder, self.num_starts = folder, 0
        self._words = [*words, f"service.port={self.port}"]
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._start()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def strike(self, what: str) -> str:
        """Ends a part by SIGKILL, and returns its process. Raises LookupError if there is none now."""
        with self._lock:
            process = self._run.driver if what == SERVICE else self._run.find(what)
            process.kill()
            return f"{what} (pid {process.pid})"

    def close(self) -> list[str]:
        """Ends it; returns what it leaves behind."""
        self._ended.set()
        self._watcher.join()
        with self._lock:
            self._run.driver.terminate()
            self._run.finish(seconds=120)
            return self._run.leftovers()

    def _start(self) -> None:
        self._run = DrivenRun(self.folder, self._words, environment={}, module="vime.service")
        self.num_starts += 1

    def _watch(self) -> None:
        while not self._ended.wait(WATCH_SECONDS):
            with self._lock:
                self._run._look()
                if self._run._process.poll() is not None:
                    self._start()


@contextmanager
def watched(folder: Path, words: list[str]) -> Any:
    """A service within the block; the text of its log is written where the block fails."""
    service = WatchedService(folder, words)
    try:
        yield service
    except BaseException:
        sys.stderr.write(service._run.log_tail())
        raise
    finally:
        left = service.close()
        if left:
            sys.stderr.write(f"left behind: {left}\n")


async def main() -> int:
    """Runs the parts; returns the exit code."""
    settle()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--rounds", type=int, default=KEPT_UNNAMED, help="rounds of the recipe, a sampler each (default %(default)s)"
    )
    parser.add_argument(
        "--client", type=Path, help="interpreter of an environment with tinker-cookbook, whose math_rl is recorded"
    )
    parser.add_argument("--only", nargs="+", choices=["orders", "kills"], default=["orders", "kills"])
    parser.add_argument("--free", action="store_true", help="a service that is not deterministic, within 1e-5")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    options = parser.parse_args()
    words = [*WORDS, FREE] if options.free else WORDS
    if options.client:
        write_model()
        words = [*words, f"model.checkpoint={TAUGHT_MODEL.resolve()}", f"service.model_names=[{NAME}]"]
    title = "The training service under faults" + (", not deterministic" if options.free else "")
    page, outcomes = Result(title=title), list[Outcome]()
    with tempfile.TemporaryDirectory(prefix="vime-service-") as folder, watched(Path(folder) / "service", words) as service:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
            started = time.monotonic()
            if options.client:
                undisturbed = await record_math_rl(options.client, service, http, Path(folder), num_rounds=options.rounds)
            else:
                client = ServiceClient(service.url, http, key=KEY)
                await client.open()
                undisturbed = await record(client, service.folder, num_rounds=options.rounds, num_samples=NUM_SAMPLES)
            outcomes.append(compared("undisturbed", undisturbed, undisturbed, started))
            if "orders" in options.only:
                for name, order in ORDERS.items():
                    started = time.monotonic()
                    found = await repeat_in_order(await opened(service, http), undisturbed, service.folder, order)
                    outcomes.append(compared(f"each request twice, {name}", undisturbed, found, started))
            if "kills" in options.only:
                started, strikes = time.monotonic(), Strikes(service, undisturbed.requests)
                found = await repeat(await opened(service, http), undisturbed, service.folder, posted=strikes.strike)
                outcomes.append(compared(f"{len(strikes.done)} kills", undisturbed, found, started))
                outcomes[-1].strikes = strikes.done
        num_starts = service.num_starts
    recipe = "a small one of `tools/service_client.py`"
    if options.client:
        packages = ("tinker-cookbook", "tinker")
        recipe = "math_rl, " + ", ".join(f"{package} {installed_version(options.client, package)}" for package in packages)
    lines = [*circumstances(page), f"recipe: {recipe}", f"starts of the service: {num_starts}"]
    text = markdown(page.title, lines, outcomes, len(undisturbed.requests))
    sys.stdout.write(text)
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")
    if options.free:
        return 0 if all(each.distance <= TOLERANCE for each in outcomes) else 1
    return 0 if not any(each.num_differing or each.distance for each in outcomes) else 1


async def opened(service: WatchedService, http: aiohttp.ClientSession) -> ServiceClient:
    """A client with a new session, whose model the recorded requests create."""
    client = ServiceClient(service.url, http, key=KEY)
    await client.open()
    return client


async def record_math_rl(
    client: Path, service: WatchedService, http: aiohttp.ClientSession, folder: Path, *, num_rounds: int
) -> Recorded:
    """Runs the recipe in its own process and environment; it opens a sampler before each step and behind the last one.

    Raises RuntimeError with its last lines if it fails.
    """
    recorder = Recorder(service.url, http)
    tinker_arithmetic.build_tokenizer().save_pretrained(folder / "recipes" / "tokenizer")
    start = [str(client), str(ROOT / "tools" / "clients" / "cookbook.py"), NAME, str(folder / "recipes")]
    words = (
        f"tinker_cookbook.recipes.math_rl.train model_name={NAME} {MATH_RL} max_steps={num_rounds - 1} log_path={folder / 'log'}"
    )
    async with recorder.serving() as url:
        own = variables(url) | {"TINKER_API_KEY": KEY}
        process = await asyncio.create_subprocess_exec(*start, *words.split(), env=own, stdout=PIPE, stderr=STDOUT)
        output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"math_rl failed with {process.returncode}: {output.decode(errors='replace')[-4000:]}")
    return recorder.recorded(service.folder)


class Strikes:
    """The strikes of `POINTS`, each in the next round, a moment after the request is made."""

    def __init__(self, service: WatchedService, requests: list[Request]) -> None:
        self._service, self._random = service, random.Random(0)
        self.done: list[str] = []
        self._places: dict[int, tuple[str, str]] = {}
        last = max(index for index, each in enumerate(requests) if each.sampler)
        rounds = [index for index, each in enumerate(requests[:last]) if each.route == "save_weights_for_sampler"]
        for (what, route), begin in zip(POINTS, itertools.cycle(rounds), strict=False):
            later = (index for index in range(begin, len(requests)) if requests[index].route == route)
            self._places[next(index for index in later if index not in self._places)] = what, route

    def strike(self, index: int) -> None:
        """Ends what is to be ended behind this request."""
        if index not in self._places:
            return
        what, route = self._places[index]
        delay = self._random.uniform(0.0, 0.2)
        time.sleep(delay)
        struck = self._service.strike(what)
        self.done.append(f"request {index} ({route}), {1000 * delay:.0f} ms after it was taken: {struck}")
        sys.stderr.write(f"{self.done[-1]}\n")


def compared(case: str, undisturbed: Recorded, found: Recorded, started: float) -> Outcome:
    """The comparison of a repetition with the recipe."""
    num_differing = sum(one != other for one, other in zip(undisturbed.answers, found.answers, strict=True))
    seconds = time.monotonic() - started
    outcome = Outcome(case=case, num_differing=num_differing, distance=undisturbed.distance(found), seconds=seconds)
    sys.stderr.write(f"{outcome}\n")
    return outcome


def markdown(title: str, lines: list[str], outcomes: list[Outcome], num_requests: int) -> str:
    """The page."""
    facts = "\n".join(f"- {line}" for line in lines)
    recorded, *others = outcomes
    rows = [f"| undisturbed | of {num_requests} | those that the others are compared with | {recorded.seconds:.0f} |"]
    for each in others:
        distance = f"{each.distance:.1e}" if each.distance else "the same bits"
        rows.append(f"| {each.case} | {each.num_differing} of {num_requests} | {distance} | {each.seconds:.0f} |")
    head = "| requests of the recipe | answers that differ | weights at the end, largest difference | seconds |\n"
    head += "|---|--:|--:|--:|\n"
    strikes = [f"- {strike.rsplit(' (pid', 1)[0]}" for each in outcomes for strike in each.strikes]
    struck = "\n\nStrikes by SIGKILL:\n\n" + "\n".join(strikes) if strikes else ""
    return f"# {title}\n\n{facts}\n\n{head}" + "\n".join(rows) + struck + "\n"


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
