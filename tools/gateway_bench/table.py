"""Makes rows of the measurements: ours beside each peer, and beside the promised values."""

from against import Number, Numbers
from bench_rows import Result

from gateway_bench.measures import Found, median, percentile_99

LESS = "less is better"
PROMISED_MEDIAN_MS, PROMISED_99_MS, PROMISED_AT = 5.0, 20.0, 64
PROMISED_CPU_MS, SHARE_OF_LITELLM = 3.0, 0.2
PROMISED_GROWTH_MS, PROMISED_FIRST_MS = 10.0, 5.0
ENGINE, OURS, LITELLM = "engine", "vime", "litellm"


def add_rows(result: Result, found: dict[str, Found]) -> None:
    """Adds all rows; a row with a peer names it in its case, and the others have the promised value as their reference."""
    ours, engine = found[OURS], found[ENGINE]
    peers = {name: each for name, each in found.items() if name not in (OURS, ENGINE)}
    _add_latency(result, ours, engine, peers)
    _add_cpu(result, ours, peers)
    _add_history(result, ours, peers)
    _add_first(result, ours, engine, peers)
    for name, peer in peers.items():
        if ours.session_bytes > 0 and peer.session_bytes > 0:
            case = f"1,000 sessions after two calls of 1,400 tokens: memory a session; {name}"
            _add(result, case, ours.session_bytes / 1024, peer.session_bytes / 1024, f"KiB; {LESS}")
    for name, each in found.items():
        if each.failures:
            result.notes.append(f"{name} failed {len(each.failures)} agents, which stopped there; the first: {each.failures[0]}")


def numbers_of(found: dict[str, Found]) -> Numbers:
    """The cost of this checkout's gateway, without peers."""
    ours, engine = found[OURS], found[ENGINE]
    assert not ours.failures + engine.failures, [*ours.failures, *engine.failures][0]
    numbers: Numbers = {}
    for count in sorted(ours.seconds):
        label = f"{count:,} {_sessions(count)}"
        numbers[f"{label}: time added to a call, median"] = _ms(median(added_ms(ours, engine, count)))
        numbers[f"{label}, nobody waits: CPU time of the gateway a call"] = _ms(1000 * median(ours.cpu_seconds[count]))
        rate = median(ours.calls_per_second[count])
        numbers[f"{label}, nobody waits: calls answered"] = Number(value=rate, unit="calls/s")
    for size in sorted(ours.history):
        case = f"{size:,} tokens of history, 1 session: median time of a call beyond the engine's"
        numbers[case] = _ms(1000 * median(ours.history[size]))
    lag = "streamed, 1 session: from the engine's first text to the client's, median"
    numbers[lag] = _ms(1000 * median(ours.first_lag))
    if ours.session_bytes > 0:
        size = ours.session_bytes / 1024
        numbers["memory of one of 1,000 sessions after two calls"] = Number(value=size, unit="KiB", is_cost=True)
    return numbers


def _ms(value: float) -> Number:
    return Number(value=value, unit="ms", is_cost=True)


def added_ms(found: Found, engine: Found, sessions: int) -> list[float]:
    """The added time of each call, beyond the median of the same calls straight to the engine."""
    straight = median(engine.seconds[sessions])
    return [1000 * (seconds - straight) for seconds in found.seconds[sessions]]


def _add_latency(result: Result, ours: Found, engine: Found, peers: dict[str, Found]) -> None:
    for sessions in sorted(ours.seconds):
        own = added_ms(ours, engine, sessions)
        for label, measure, promised in (
            ("median", median, PROMISED_MEDIAN_MS),
            ("99th percentile", percentile_99, PROMISED_99_MS),
        ):
            case = f"{sessions:,} {_sessions(sessions)}: time added to a call, {label}"
            if sessions == PROMISED_AT:
                _add(result, f"{case}; promised", measure(own), promised, f"ms; {LESS}")
            for name, peer in peers.items():
                _add(result, f"{case}; {name}", measure(own), measure(added_ms(peer, engine, sessions)), f"ms; {LESS}")


def _add_cpu(result: Result, ours: Found, peers: dict[str, Found]) -> None:
    for sessions in sorted(ours.cpu_seconds):
        own = 1000 * median(ours.cpu_seconds[sessions])
        case = f"{sessions:,} {_sessions(sessions)}, nobody waits: CPU time of the gateway a call"
        if sessions == PROMISED_AT:
            _add(result, f"{case}; promised", own, PROMISED_CPU_MS, f"ms; {LESS}")
        for name, peer in peers.items():
            _add(result, f"{case}; {name}", own, 1000 * median(peer.cpu_seconds[sessions]), f"ms; {LESS}")
            if name == LITELLM and sessions == PROMISED_AT:
                fifth = SHARE_OF_LITELLM * 1000 * median(peer.cpu_seconds[sessions])
                _add(result, f"{case}; a fifth of {name}", own, fifth, f"ms; {LESS}")
    for sessions in sorted(ours.calls_per_second):
        for name, peer in peers.items():
            case = f"{sessions:,} {_sessions(sessions)}, nobody waits: calls answered; {name}"
            _add(result, case, median(ours.calls_per_second[sessions]), median(peer.calls_per_second[sessions]), "calls/s")


def _add_history(result: Result, ours: Found, peers: dict[str, Found]) -> None:
    sizes = sorted(ours.history)
    for size in sizes:
        own = 1000 * median(ours.history[size])
        case = f"{size:,} tokens of history, 1 session: median time of a call beyond the engine's"
        if size == sizes[-1]:
            promised = 1000 * median(ours.history[sizes[0]]) + PROMISED_GROWTH_MS
            _add(result, f"{case}; promised, {PROMISED_GROWTH_MS:g} more than at {sizes[0]:,}", own, promised, f"ms; {LESS}")
        for name, peer in peers.items():
            _add(result, f"{case}; {name}", own, 1000 * median(peer.history[size]), f"ms; {LESS}")
        result.notes.append(
            f"{size:,} tokens of history: of a call of ours the engine takes {1000 * median(ours.engine[size]):.1f} ms"
        )


def _add_first(result: Result, ours: Found, engine: Found, peers: dict[str, Found]) -> None:
    lag = "streamed, 1 session: from the engine's first text to the client's, median"
    many = "streamed, 64 sessions: time added to the first text, median"
    straight = median(engine.first_seconds)
    own = 1000 * (median(ours.first_seconds) - straight)
    result.notes.append("the engine streams to vime four tokens at a time after the first, to litellm one; the first has no text")
    _add(result, f"{lag}; promised", 1000 * median(ours.first_lag), PROMISED_FIRST_MS, f"ms; {LESS}")
    for name, peer in peers.items():
        _add(result, f"{lag}; {name}", 1000 * median(ours.first_lag), 1000 * median(peer.first_lag), f"ms; {LESS}")
        _add(result, f"{many}; {name}", own, 1000 * (median(peer.first_seconds) - straight), f"ms; {LESS}")


def _sessions(count: int) -> str:
    return "session" if count == 1 else "sessions"


def _add(result: Result, case: str, ours: float, reference: float, unit: str) -> None:
    """A row, if both were measured."""
    if ours == ours and reference == reference:
        result.add("gateway", case, ours=ours, reference=reference, unit=unit)
