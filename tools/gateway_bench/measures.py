"""Measurements of each side, all of them with the agents of `load` over the scripted engine."""

import statistics
from collections import defaultdict
from dataclasses import dataclass, field

from gateway_bench.load import Measured, Work
from gateway_bench.sides import EngineProcess, Side, run_load

NUM_HISTORY_CALLS = 15
STEP_TOKENS = 1000
"""Tokens by which history grows with each call."""
STREAM_SECONDS = 0.5
MANY = 1000
"""Sessions by whose number the memory of one is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """A number of agents side by side.

    Example: 64 agents that wait a second for each reply and half a second for each tool: `Load(sessions=64, engine_seconds=1.0,
    think_seconds=0.5, turns=6, flat_turns=8)`.
    """

    sessions: int
    engine_seconds: float
    think_seconds: float
    turns: int
    flat_turns: int
    """Calls of each agent where neither engine nor agents wait."""


@dataclass(kw_only=True, slots=True)
class Found:
    """Measurements of one side, over all rounds; by the number of sessions, or the size of the history."""

    seconds: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Seconds of each call, while the engine takes its time."""
    calls_per_second: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    cpu_seconds: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """CPU seconds of the side's process for each call, a mean of each round."""
    history: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Seconds of each call beyond the engine's."""
    engine: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Seconds of each call in the engine, at these sizes of the history."""
    first_lag: list[float] = field(default_factory=list)
    """Seconds from the engine's first text to the client's, for one agent; empty if the side lets the engine answer whole."""
    first_seconds: list[float] = field(default_factory=list)
    """Seconds from the request to the first text, for 64 agents."""
    session_bytes: float = 0.0
    """Growth of the process for each of the sessions in the largest load, after their calls in the first round."""
    failures: list[str] = field(default_factory=list)


def measure_load(side: Side, engine: EngineProcess, *, load: Load, found: Found, seed: int) -> None:
    """Latency at the engine's pace, then the most calls that the side answers, and their CPU time."""
    count = load.sessions
    engine.pace(load.engine_seconds)
    memory = side.memory_bytes()
    work = Work(targets=side.open(count), turns=load.turns, think_seconds=load.think_seconds, seed=seed)
    work.spread_seconds = load.engine_seconds
    found.seconds[count] += _run(work, found).seconds
    if count >= MANY and not found.session_bytes:  # later rounds find memory that earlier sessions have left
        found.session_bytes = (side.memory_bytes() - memory) / count
    side.close()
    engine.pace(0.0)
    targets, cpu = side.open(count), side.cpu_seconds()
    measured = _run(Work(targets=targets, turns=load.flat_turns, seed=seed), found)
    if measured.seconds:
        found.cpu_seconds[count].append((side.cpu_seconds() - cpu) / len(measured.seconds))
        found.calls_per_second[count].append(len(measured.seconds) / measured.wall_seconds)
    side.close()
    engine.log()


def measure_history(side: Side, engine: EngineProcess, *, num_tokens: int, found: Found, seed: int) -> None:
    """Calls of one agent with a history of about `num_tokens`, which it made in as many calls as an agent makes."""
    engine.pace(0.0)
    engine.log()
    growth = [STEP_TOKENS - 80] * (num_tokens // STEP_TOKENS - 1)
    work = Work(targets=side.open(1), turns=NUM_HISTORY_CALLS, growth=growth, first_tokens=500, new_tokens=20, seed=seed)
    measured = _run(work, found)
    for seconds, entry in zip(measured.seconds, engine.log()[len(growth) :]):
        found.engine[num_tokens].append(entry["last"] - entry["came"])
        found.history[num_tokens].append(seconds - entry["last"] + entry["came"])
    side.close()


def measure_stream(side: Side, engine: EngineProcess, *, load: Load, num_calls: int, found: Found, seed: int) -> None:
    """Measures when the first text of a streamed reply arrives: at one agent by the clock, at many from their requests on."""
    engine.pace(STREAM_SECONDS)
    engine.log()
    measured = _run(Work(targets=side.open(1), turns=num_calls, stream=True, seed=seed), found)
    log = engine.log()
    found.first_lag += [at - entry["first"] for at, entry in zip(measured.first_at, log) if "first" in entry]
    side.close()
    engine.pace(load.engine_seconds)
    work = Work(targets=side.open(load.sessions), turns=load.turns, think_seconds=load.think_seconds, stream=True, seed=seed)
    work.spread_seconds = load.engine_seconds
    found.first_seconds += _run(work, found).first_seconds
    side.close()
    engine.log()


def median(values: list[float]) -> float:
    """The middle value; NaN of none."""
    return statistics.median(values) if values else float("nan")


def percentile_99(values: list[float]) -> float:
    """The value that one in a hundred exceeds; NaN without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] if ordered else float("nan")


def _run(work: Work, found: Found) -> Measured:
    measured = run_load(work)
    found.failures += measured.failures
    return measured
