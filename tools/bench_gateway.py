"""The cost that a gateway adds to a model call: time, CPU and memory, beside those that others run in front of their engines.

    python tools/bench_gateway.py [--peers PATH] [--rounds 2] [--json PATH] [--markdown PATH]
    python tools/bench_gateway.py --against FOLDER [--pairs 8] [--rounds 1] [--json PATH] [--markdown PATH]

Agents with a tool call one side after the other, over the same scripted engine: the engine itself, vime's gateway as a rollout
worker runs it, the interception server of verifiers with its training client, and litellm's proxy. Engine, gateway and agents are
processes of their own; every gateway has one. `PATH` holds an environment for each peer, `verifiers/` and `litellm/`; a peer
without one is left out. vime's gateway and vLLM's own chat route are also measured in front of a real server with a tiny model
(`--no-vllm` leaves it out). `--against` puts the gateway of another checkout of this project beside this one's, without peers
(`against.py`), and `--numbers` measures this one alone.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import against
from bench_rows import Result, add_options, finish, save
from fetch_qwen3_tokenizer import fetched
from gateway_bench.load import Work
from gateway_bench.measures import Found, Load, measure_history, measure_load, measure_stream, median
from gateway_bench.script import script_of
from gateway_bench.sides import Direct, EngineProcess, LiteLLM, Sessions, Side, run_load
from gateway_bench.table import LESS, add_rows, numbers_of
from gateway_bench.vllm_side import TOOL_PARSER, VllmServer

PEERS = Path.home() / ".cache" / "vime" / "bench_gateway"
LOADS = (
    Load(sessions=1, engine_seconds=0.2, think_seconds=0.0, turns=25, flat_turns=50),
    Load(sessions=64, engine_seconds=1.0, think_seconds=0.5, turns=6, flat_turns=8),
    Load(sessions=1000, engine_seconds=15.0, think_seconds=2.0, turns=2, flat_turns=2),
)
BESIDE_LOADS = (
    Load(sessions=1, engine_seconds=0.05, think_seconds=0.0, turns=25, flat_turns=50),
    Load(sessions=64, engine_seconds=0.5, think_seconds=0.25, turns=6, flat_turns=8),
    Load(sessions=1000, engine_seconds=5.0, think_seconds=1.0, turns=2, flat_turns=2),
)
"""Loads of a side of `--against`, which runs many times: the same calls with less waiting."""
HISTORIES = (1_000, 10_000, 100_000)
SMALL_LOADS = (Load(sessions=2, engine_seconds=0.1, think_seconds=0.0, turns=2, flat_turns=2),)
SMALL_HISTORIES = (1_000, 2_000)
STREAMED_CALLS, SMALL_STREAMED_CALLS = 15, 3
"""Calls of one agent; each takes half a second of the engine."""
VLLM_CALLS = 12


def our_side(engine_url: str, tokenizer: str, folder: Path, *, max_model_len: int, parsers: tuple[str, ...]) -> Sessions:
    """vime's gateway."""
    words = [engine_url, tokenizer, str(max_model_len), *parsers]
    return Sessions("vime", [sys.executable, "-m", "gateway_bench.our_side", *words], folder)


def peer_sides(engine_url: str, tokenizer: str, peers: Path, folder: Path) -> list[Side]:
    """The peers that have an environment."""
    found: list[Side] = []
    python, proxy = peers / "verifiers" / "bin" / "python", peers / "litellm" / "bin" / "litellm"
    if python.exists():
        command = [str(python), "-m", "gateway_bench.verifiers_side", engine_url, tokenizer]
        found.append(Sessions("verifiers", command, folder))
    if proxy.exists():
        found.append(LiteLLM(proxy, engine_url, folder))
    return found


def measure_all(sides: list[Side], engine: EngineProcess, options: argparse.Namespace) -> dict[str, Found]:
    """All measurements of all sides, which take turns in each of them."""
    found = {side.name: Found() for side in sides}
    loads, histories = (SMALL_LOADS, SMALL_HISTORIES) if options.small else (LOADS, HISTORIES)
    if options.numbers and not options.small:
        loads = BESIDE_LOADS
    warm_up = loads[0]
    for side in sides:
        measure_load(side, engine, load=warm_up, found=Found(), seed=-1)
    streamed = loads[min(1, len(loads) - 1)]
    steps: list[Callable[..., None]] = [partial(measure_load, load=load) for load in loads]
    steps += [partial(measure_history, num_tokens=size) for size in histories]
    num_calls = SMALL_STREAMED_CALLS if options.small else STREAMED_CALLS
    steps += [partial(measure_stream, load=streamed, num_calls=num_calls)]
    for seed in range(options.rounds):
        for number, step in enumerate(steps):
            for side in sides:
                sys.stderr.write(f"round {seed + 1}, measurement {number + 1} of {len(steps)}: {side.name}\n")
                step(side, engine, found=found[side.name], seed=seed)
    return found


def add_vllm(result: Result, folder: Path, rounds: int) -> None:
    """vime's gateway and vLLM's own chat route in front of one real server, one agent at a time, one token a reply."""
    server = VllmServer(folder)
    ours = our_side(server.url, server.tokenizer, folder, max_model_len=server.max_model_len, parsers=(TOOL_PARSER,))
    seconds: dict[str, list[float]] = {side.name: [] for side in (ours, server)}
    try:
        for seed in range(-1, 4 * rounds):
            for side in (ours, server):
                work = Work(targets=side.open(1), turns=VLLM_CALLS, first_tokens=60, new_tokens=5, max_tokens=1, seed=seed)
                measured = run_load(work)
                assert not measured.failures, measured.failures[0]
                seconds[side.name] += measured.seconds if seed >= 0 else []  # the first of each warm up
                side.close()
    finally:
        ours.stop()
        server.stop()
    case = "in front of vLLM with a tiny model, 1 session, one token a reply: median time of a call; vLLM's own chat route"
    result.add(
        "gateway", case, ours=1000 * median(seconds[ours.name]), reference=1000 * median(seconds[server.name]), unit=f"ms; {LESS}"
    )


def main() -> None:
    """Measures and shows the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, default=PEERS, help="folder with an environment for each peer")
    parser.add_argument("--rounds", type=int, help="measurements of each side (2; with --against 1 of each of its runs)")
    parser.add_argument("--no-vllm", action="store_true", help="leave out the real server")
    parser.add_argument("--small", action="store_true", help="a few calls of a few agents, to see that it runs")
    against.add_options(parser)
    add_options(parser)
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.against or options.numbers else 2)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the sides end too
    result = Result(title="A gateway between agents and an engine")
    if options.against:
        words = ["--rounds", str(options.rounds), *(["--small"] if options.small else [])]
        against.compare(result, options, "bench_gateway.py", words)
        return
    with tempfile.TemporaryDirectory(prefix="bench-gateway-") as name:
        folder = Path(name)
        found = over_the_engine(options, folder)
        if options.numbers:
            against.write_numbers(numbers_of(found))
            return
        add_rows(result, found)
        save(result, options)
        if not options.no_vllm:
            add_vllm(result, folder, options.rounds)
    finish(result, options)


def over_the_engine(options: argparse.Namespace, folder: Path) -> dict[str, Found]:
    """Measurements of all sides."""
    from vime.model.load_tokenizer import load_tokenizer

    tokenizer = str(fetched())
    engine = EngineProcess(script_of(load_tokenizer(tokenizer)), folder)
    sides: list[Side] = [Direct(engine)]
    try:
        sides.append(our_side(engine.url, tokenizer, folder, max_model_len=1_000_000, parsers=("hermes", "qwen3")))
        sides += [] if options.numbers else peer_sides(engine.url, tokenizer, options.peers, folder)
        return measure_all(sides, engine, options)
    finally:
        for side in [*sides, engine]:
            side.stop()


if __name__ == "__main__":
    main()
