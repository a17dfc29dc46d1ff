"""`play`: the loop of an episode, in which each seat has a conversation with its model, and the rewards of its result.

environment                      seats
observe() ── messages or text ─> the conversation of the seat that is to move
                                 reply: sampled and trained
act(reply) <─ text, tool calls ─ once, within a time limit; its reward belongs to this reply
outcome() ─> rewards and metrics of each seat
"""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

from vime.chat.conversation import Conversation
from vime.environments.config import ACTOR, EnvironmentConfig
from vime.environments.environment import IllegalMove, Observation, Outcome, Reply, load_environment, seats_of
from vime.environments.harness import has_agents, opponent, run_harness
from vime.environments.steps import Steps
from vime.errors import ContextFullError, SampleError, SandboxError
from vime.rollout.context import Context, Sampling
from vime.rollout.within import HookTimeout
from vime.threads import in_own_thread
from vime.types import Reward, Sample, StopReason, Turn


async def generate(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
    """One episode of `method.environment`."""
    method = EnvironmentConfig.of(context.config)
    with context.clock.stopped():  # the first rollout of a process makes it, which may load data
        environment = await in_own_thread(load_environment, method.environment, dict(method.settings))
    episode = run_harness if has_agents(environment) else play
    return await episode(
        context,
        sample,
        environment,
        players=method.players_of(context.row),
        max_turns=method.max_turns,
        max_turn_tokens=method.max_turn_tokens,
    )


async def reward(context: Context, samples: list[Sample]) -> Reward:
    """The rewards of an episode: each seat's own for its samples, and their mean over the trained seats for the rollout.

    Metrics are those of the outcome, and with several seats the reward of each, `reward_SEAT`.
    """
    result = samples[-1].metadata["outcome"]
    own = {sample.seat: float(result["rewards"][sample.seat]) for sample in samples}
    seats = {f"reward_{seat}": value for seat, value in result["rewards"].items()} if len(result["rewards"]) > 1 else {}
    return Reward(score=fmean(own.values()), metrics=result["metrics"] | seats, samples=[own[sample.seat] for sample in samples])


@dataclass(kw_only=True, slots=True)
class _Seat:
    """A seat's conversation and its results so far."""

    talk: Conversation
    model: str
    """Name in `serving.models`."""
    num_turns: int = 0
    num_illegal: int = 0
    step_rewards: list[float] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class _Table:
    """The seats of an episode."""

    names: tuple[str, ...]
    seats: dict[str, _Seat] = field(default_factory=dict)
    """The seats that were asked."""
    owed: dict[str, float] = field(default_factory=dict)
    """Rewards of seats that have not replied yet, which their first replies get."""

    def check(self, method: str, names: Iterable[str]) -> None:
        """Raises SandboxError for a name that is no seat."""
        if strange := sorted(set(names) - set(self.names)):
            raise SandboxError(f"{method} of the environment names {', '.join(strange)}: its seats are {', '.join(self.names)}")

    def book(self, mover: str, given: Any) -> None:
        """Adds the reward of a step to the last reply of the seat that moved, or of each seat that it names."""
        rewards = given if isinstance(given, Mapping) else {mover: 0.0 if given is None else given}
        self.check("act", rewards)
        self.seats[mover].step_rewards.append(self.owed.pop(mover, 0.0))
        for name, value in {mover: 0.0, **rewards}.items():
            seat = self.seats.get(name)
            if seat is None or not seat.step_rewards:
                self.owed[name] = self.owed.get(name, 0.0) + float(value)
            else:
                seat.step_rewards[-1] += float(value)
                seat.talk.calls[-1].reward = seat.step_rewards[-1]


async def play(
    context: Context,
    sample: Sample,
    environment: Any,
    *,
    players: Mapping[str, str] | None = None,
    max_turns: int = 32,
    max_turn_tokens: int = 512,
) -> list[Sample]:
    """Plays one episode of the row `context.row`; returns the sequences of all seats that the trained model plays.

    `Sample.seat` names the seat, the rewards of single steps are in the column `step_reward`, and the metadata hold the
    `outcome`, which `reward` reads. An episode ends as `token_limit` if the context of a model is full or its last reply was
    cut, as `turn_limit` after `max_turns` replies, as `time_limit` if a step is longer than
    `rollout.tool_timeout_seconds`, and as `malformed` if a seat never made a legal move; all of these are trained. Raises
    SandboxError if the environment is lost or names a seat that it has not, so that the rollout is run again.
    """
    table = _Table(names=seats_of(environment))
    seconds = getattr(environment, "step_seconds", context.config.rollout.tool_timeout_seconds)
    steps = Steps(context, seconds)
    try:
        episode = await _opened(context, environment, steps)
        steps.closes = getattr(episode, "close", None)
        try:
            end = await _turns(context, episode, steps, table, players or {}, max_turns, max_turn_tokens)
            outcome = await steps.call("outcome", episode.outcome)
        except HookTimeout:
            context.trace.count("environment_timeouts")
            end, outcome = StopReason.TIME_LIMIT, Outcome()
    finally:
        await steps.end()
    return _samples(sample, table, outcome, end)


async def _opened(context: Context, environment: Any, steps: Steps) -> Any:
    """An episode of the row, as soon as the environment has a place."""
    patience = context.config.rollout.sandbox_timeout_seconds
    own = {"context": context} if "context" in inspect.signature(environment.open).parameters else {}
    opened = partial(environment.open, dict(context.row), **own)
    if not inspect.iscoroutinefunction(environment.open):
        opened = steps.closing(opened)
    try:
        return await steps.placed("open", opened, seconds=patience)
    except HookTimeout as error:
        raise SandboxError(f"the environment did not open within rollout.sandbox_timeout_seconds={patience:g}") from error


async def _turns(
    context: Context,
    episode: Any,
    steps: Steps,
    table: _Table,
    players: Mapping[str, str],
    max_turns: int,
    max_turn_tokens: int,
) -> StopReason:
    """Lets the seats reply until the episode is over or reaches a limit."""
    seen: Observation | None = None
    num_turns, again, is_cut = 0, "", False
    while True:
        if not again:
            seen = await steps.call("observe", episode.observe)
        if seen is None:
            return StopReason.TOKEN_LIMIT if is_cut else StopReason.ANSWERED
        if num_turns >= max_turns:
            return StopReason.TURN_LIMIT
        seat = _told(context, table, players, seen, again)
        limit = max_turn_tokens if seen.max_tokens is None else min(seen.max_tokens, max_turn_tokens)
        try:
            turn = await seat.talk.reply(max_tokens=limit, stop=seen.stop)
        except ContextFullError:
            if not any(each.talk.calls for each in table.seats.values() if each.model == ACTOR):
                raise  # an episode in which the trained model said nothing has nothing to train
            return StopReason.TOKEN_LIMIT
        num_turns, again, is_cut = num_turns + 1, "", turn.finish_reason == "length"
        seat.num_turns += 1
        context.trace.count("environment_steps")
        try:
            given = await steps.call("act", episode.act, _reply(seen.seat, turn))
        except IllegalMove as error:
            again, given = str(error), 0.0
            seat.num_illegal += 1
            context.trace.count("illegal_moves")
        table.book(seen.seat, given)


def _told(context: Context, table: _Table, players: Mapping[str, str], seen: Observation, again: str) -> _Seat:
    """The seat that is to move, whose conversation has the observation, or `again`, what was wrong with its last reply."""
    content = seen.content
    if again:
        content = f"\n{again}\n{content}" if isinstance(content, str) else [{"role": "user", "content": again}]
    seat = table.seats.get(seen.seat)
    if seat is None:
        table.check("observe", [seen.seat])
        model = players.get(seen.seat, ACTOR)
        talk = context.models[model].conversation(content, tools=seen.tools or None)
        seat = table.seats[seen.seat] = _Seat(talk=talk, model=model)
    else:
        seat.talk.add(content)
    return seat


def _reply(seat: str, turn: Turn) -> Reply:
    """A model's reply as its environment gets it, without special tokens."""
    return Reply(seat=seat, text=turn.text, tool_calls=turn.tool_calls, is_cut=turn.finish_reason == "length")


def _samples(sample: Sample, table: _Table, outcome: Outcome, end: StopReason) -> list[Sample]:
    """The sequences of the trained seats, with their results."""
    seats, given = table.seats, outcome.rewards
    summed = table.owed | {name: sum(seat.step_rewards) for name, seat in seats.items()}
    if isinstance(given, Mapping):
        table.check("outcome", given)
        rewards = {**summed, **{name: float(value) for name, value in given.items()}}
    else:
        rewards = summed if given is None else dict.fromkeys(seats, float(given))
    if end in (StopReason.ANSWERED, StopReason.TURN_LIMIT) and any(
        seat.num_turns and seat.num_illegal == seat.num_turns for seat in seats.values() if seat.model == ACTOR
    ):
        end = StopReason.MALFORMED
    opponents = {name: opponent(seat.model, seat.talk.calls) for name, seat in seats.items() if seat.model != ACTOR}
    result = {"rewards": rewards, "metrics": {name: float(value) for name, value in outcome.metrics.items()}}
    samples: list[Sample] = []
    for name, seat in seats.items():
        if seat.model != ACTOR:
            continue
        about = {
            "outcome": result,
            "opponents": opponents,
            "turns": seat.num_turns,
            "illegal_moves": seat.num_illegal,
            "step_rewards": seat.step_rewards,
        }
        for each in seat.talk.samples(sample, **about):
            each.seat, each.stop_reason = name, outcome.end or end
            samples.append(each)
    if not samples:
        raise SampleError("the episode ended before the trained model was asked")
    return samples
