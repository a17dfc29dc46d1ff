"""`run_harness`: an episode whose environment has agents of its own, which call the models of their seats by URL.

environment                                  seats
run(row, seats) ── requests over HTTP ─────> a session of each: every sampled token is recorded, and trained
      └─> rewards and metrics of each seat
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from vime.environments.config import ACTOR
from vime.environments.environment import NoPlaceError, Outcome, Seat, seats_of
from vime.environments.steps import Steps
from vime.errors import VimeError
from vime.gateway.session import AgentSession, Limits
from vime.rollout.context import Context
from vime.trajectory.trajectory import Call
from vime.types import Sample, StopReason
from vime.types.stop_reason import COUNTS

UNLIMITED_SECONDS = 30 * 24 * 3600.0
"""An episode has no time limit of its own: `rollout.generate_timeout_seconds` bounds it."""
ENDS = [reason.value for reason, counting in COUNTS.items() if counting.trained]
"""The ends that an episode may name."""


def has_agents(environment: Any) -> bool:
    """True for an environment with agents of its own (`Harness`)."""
    return callable(getattr(environment, "run", None))


async def run_harness(
    context: Context,
    sample: Sample,
    environment: Any,
    *,
    players: Mapping[str, str] | None = None,
    max_turns: int = 32,
    max_turn_tokens: int = 512,
) -> list[Sample]:
    """One episode of the row `context.row`; returns the sequences of all seats that the trained model plays.

    Each seat has a session of its own, which ends after `max_turns` calls. `Sample.seat` names the seat, and the metadata hold
    the `outcome`, which `vime.environments.play.reward` reads. Raises SandboxError if the environment is lost, so that the
    rollout is run again, and SampleError if no agent called the trained model.
    """
    players, own = players or {}, context.config.method.session
    num_calls = max_turns if own.num_calls is None else min(own.num_calls, max_turns)
    limits = Limits(num_calls=num_calls, num_tokens=own.num_tokens)
    steps = Steps(context, UNLIMITED_SECONDS)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(steps.end)
        with context.clock.stopped():  # an environment in a Python of its own may have to start first
            names = await steps.begun(seats_of, environment)
        sessions = {
            name: await stack.enter_async_context(context.session(players.get(name, ACTOR), limits=limits)) for name in names
        }
        seats = {name: _seat(session, max_turn_tokens) for name, session in sessions.items()}
        trained = {name: session for name, session in sessions.items() if players.get(name, ACTOR) == ACTOR}

        async def run() -> Outcome:
            try:
                return outcome_of(await steps.begun(environment.run, dict(context.row), seats), tuple(seats))
            except (VimeError, NoPlaceError):
                raise
            except Exception:  # whatever its agents made of the limit that ended one of them
                ends = {name: each.stop_reason for name, each in sessions.items() if each.stop_reason is not StopReason.ANSWERED}
                if not ends:
                    raise
                is_own = not ends.keys().isdisjoint(trained)  # the samples of that session say it already
                return replace(outcome_of(0.0, tuple(seats)), end=None if is_own else next(iter(ends.values())))

        outcome = await steps.placed("run", run)
    others = {name: opponent(players[name], each.dialogue.calls) for name, each in sessions.items() if name not in trained}
    return _samples(sample, trained, outcome, others)


def opponent(model: str, calls: Sequence[Call]) -> dict[str, Any]:
    """A player that is not trained, as metadata name it: its model, and the versions of the weights that have replied."""
    return {"model": model, "versions": sorted({int(version) for call in calls for version in call.turn.weight_versions})}


def outcome_of(result: Any, seats: tuple[str, ...]) -> Outcome:
    """The result of an episode in whichever form it was returned.

    Each seat has a reward then, 0 if others have one. Raises ValueError for a reward that is no number, and for one of a seat
    that does not exist.
    """
    if not isinstance(result, Outcome):
        fields = dict(result) if isinstance(result, Mapping) else {"rewards": result}
        if strange := set(fields) - {"rewards", "metrics", "end"}:
            raise ValueError(f"run returned {sorted(strange)}: an outcome has rewards, metrics and end")
        end = fields.get("end")
        if end is not None and end not in ENDS:
            raise ValueError(f"run returned the end {end!r}: use one of {', '.join(ENDS)}, or none")
        metrics = fields.get("metrics") or {}
        result = Outcome(rewards=fields.get("rewards"), metrics=metrics, end=None if end is None else StopReason(end))
    given = result.rewards
    rewards: dict[str, Any] = dict(given) if isinstance(given, Mapping) else dict.fromkeys(seats, given)
    if strange := set(rewards) - set(seats):
        raise ValueError(f"run returned rewards of {sorted(strange)}: the seats are {', '.join(seats)}")
    for name, value in {**rewards, **result.metrics}.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"run returned {value!r} for {name}: rewards and metrics are numbers")
    metrics = {name: float(value) for name, value in result.metrics.items()}
    return Outcome(rewards={name: float(rewards.get(name, 0.0)) for name in seats}, metrics=metrics, end=result.end)


def _seat(session: AgentSession, max_tokens: int) -> Seat:
    urls = {"base_url": session.openai_url, "anthropic_url": session.anthropic_url}
    return Seat(**urls, api_key=session.secret, model=session.model_name, max_tokens=max_tokens)


def _samples(
    sample: Sample, sessions: Mapping[str, AgentSession], outcome: Outcome, opponents: Mapping[str, Any]
) -> list[Sample]:
    """The sequences of the trained seats that were asked, with their results."""
    asked = {name: session for name, session in sessions.items() if session.counts["calls"]} or dict(sessions)
    result = {"rewards": outcome.rewards, "metrics": outcome.metrics}
    samples: list[Sample] = []
    for name, session in asked.items():
        for each in session.samples(sample, outcome=result, opponents=dict(opponents), turns=session.counts["calls"]):
            each.seat = name
            if outcome.end is not None:
                each.stop_reason = outcome.end
            samples.append(each)
    return samples
