"""The loop of an episode over scripted models: what is trained and rewarded, how it ends, and what an environment can break."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.completing import context_with
from vime.config import RolloutConfig, RunConfig
from vime.environments.config import EnvironmentConfig
from vime.environments.environment import IllegalMove, Observation, Outcome, in_split, load_environment, rows
from vime.environments.play import play, reward
from vime.errors import ConfigError
from vime.rollout.context import Context, Sampling
from vime.serving.client import check_room
from vime.types import STEP_REWARD, Rollout, Sample, StopReason, Turn
from vime.workers.isolation import Hooks, run_rollout

END = "<|im_end|>"


class Scripted:
    """A model that says given words, one after another, with a token for each byte; with `stop` it ends there."""

    def __init__(self, tokenizer: Any, replies: list[str], *, max_model_len: int = 4000, name: str = "actor") -> None:
        self.tokenizer, self.replies, self.max_model_len, self.name = tokenizer, list(replies), max_model_len, name

    async def complete(self, token_ids: Any, *, max_tokens: int, stop: tuple[str, ...] = ()) -> Turn:
        check_room(len(token_ids), max_tokens, max_model_len=self.max_model_len, name=self.name)
        text = self.replies.pop(0)
        ids = self.tokenizer.encode(text if stop else text + END, add_special_tokens=False)
        reason = "length" if len(ids) > max_tokens else "stop"
        ids = ids[:max_tokens]
        return Turn(output_ids=ids, logprobs=[-0.5] * len(ids), weight_versions=[0] * len(ids), finish_reason=reason)


class Counting:
    """Seats say numbers in turn until one says `goal`, who wins; it gives a tenth for each number, also to the other seat."""

    def __init__(self, seats: tuple[str, ...] = ("one", "two"), *, goal: int = 3) -> None:
        self.seats, self.goal = seats, goal
        self.episodes: list[Count] = []

    def rows(self, *, split: Any, num_items: int, seed: int) -> Any:
        return in_split(({"key": f"game {n}"} for n in range(seed, 10_000)), split=split, num_items=num_items)

    def open(self, row: Any) -> "Count":
        self.episodes.append(Count(self, row))
        return self.episodes[-1]


class Count:
    def __init__(self, game: Counting, row: Any) -> None:
        self.game, self.row, self.last, self.to_move = game, row, 0, 0
        self.winner: str | None = None
        self.calls: Counter[str] = Counter()
        self.threads: set[int] = set()

    def observe(self) -> Observation | None:
        self.threads.add(threading.get_ident())
        if self.winner is not None:
            return None
        return Observation(seat=self.game.seats[self.to_move], content=[{"role": "user", "content": f"after {self.last}"}])

    def act(self, reply: Any) -> Any:
        self.calls["act"] += 1
        self.threads.add(threading.get_ident())
        if not reply.text.isdigit():
            raise IllegalMove("a number !")
        self.last = int(reply.text)
        if self.last >= self.game.goal:
            self.winner = reply.seat
        self.to_move = (self.to_move + 1) % len(self.game.seats)
        return dict.fromkeys(self.game.seats, 0.1)

    def outcome(self) -> Outcome:
        rewards = {seat: float(seat == self.winner) for seat in self.game.seats}
        return Outcome(rewards=rewards, metrics={"won": float(self.winner is not None)})

    def close(self) -> None:
        self.calls["close"] += 1


async def played(
    tokenizer: Any,
    environment: Any,
    replies: list[str],
    *,
    models: dict[str, Any] | None = None,
    rollout: Any = None,
    episode: Any = play,
    **limits: Any,
) -> Rollout:
    """The rollout of an episode, as a worker runs it; `episode` is its loop."""
    actor = Scripted(tokenizer, replies, max_model_len=limits.pop("max_model_len", 4000))
    row = {"key": "game 1", "seed": 1, **limits.pop("row", {})}
    config = RunConfig(rollout=RolloutConfig(**{"max_retries": 1, "tool_timeout_seconds": 5.0, **(rollout or {})}))

    def make_context(attempt: int) -> Context:
        return context_with({"actor": actor, **(models or {})}, config=config, row={**row, "attempt": attempt})

    async def generate(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
        return await episode(context, sample, environment, **{"max_turn_tokens": 40, **limits})

    return await run_rollout(
        hooks=Hooks(generate=generate, reward=reward),
        config=config.rollout,
        make_context=make_context,
        template=Sample(prompt=[], group_index=0, rollout_id=0, session_id="s"),
        sampling=Sampling(temperature=1.0, top_p=1.0),
    )


def test_players_change_seats_from_row_to_row_and_a_row_may_have_its_own():
    method = EnvironmentConfig(players={"one": "actor", "two": "opponent"}, rotate_players=True)
    found = Counter(tuple(method.players_of({"key": f"game {n}"}).items()) for n in range(200))
    assert set(found) == {(("one", "actor"), ("two", "opponent")), (("one", "opponent"), ("two", "actor"))}
    assert min(found.values()) > 60
    assert method.players_of({"key": "game 1"}) == method.players_of({"key": "game 1"}), "all attempts at a row are alike"
    assert method.players_of({"key": "game 1", "players": {}}) == {}


async def test_each_seat_has_its_own_sequence_reward_and_step_rewards(byte_tokenizer: Any):
    game = Counting()
    rollout = await played(byte_tokenizer, game, ["1", "2", "5"])
    assert rollout.stop_reason is StopReason.ANSWERED and not rollout.error
    one, two = rollout.samples
    assert [(each.seat, each.reward, each.num_trained_tokens) for each in (one, two)] == [("one", 1.0, 4), ("two", 0.0, 2)]
    assert rollout.reward == 0.5
    assert rollout.metrics == {"won": 1.0, "reward_one": 1.0, "reward_two": 0.0}
    steps = one.columns["step_reward"]
    assert len(steps) == one.response_length == one.num_places(STEP_REWARD)
    places = np.flatnonzero(steps)
    assert places[0] == 1 and places[-1] == len(steps) - 1, "at the last token of each reply"
    assert steps[places].tolist() == pytest.approx([0.2, 0.1]), "a seat also has what the other's move gave it"
    assert one.metadata["step_rewards"] == pytest.approx([0.2, 0.1])
    (episode,) = game.episodes
    assert len(episode.threads) == 1 and threading.get_ident() not in episode.threads
    assert episode.calls["close"] == 1
    assert episode.row["key"] == "game 1", "an environment has the row"


async def test_a_seat_of_another_model_is_not_trained(byte_tokenizer: Any):
    opponent = Scripted(byte_tokenizer, ["4"], name="opponent")
    rollout = await played(byte_tokenizer, Counting(), ["1"], models={"opponent": opponent}, players={"two": "opponent"})
    assert [(each.seat, each.reward) for each in rollout.samples] == [("one", 0.0)]
    assert rollout.metrics["reward_two"] == 1.0


async def test_a_game_longer_than_the_context_ends_as_a_full_context_and_is_trained(byte_tokenizer: Any):
    game = Counting(("agent",), goal=1000)
    rollout = await played(byte_tokenizer, game, [str(n) for n in range(100, 200)], max_model_len=300, max_turns=100)
    assert rollout.stop_reason is StopReason.TOKEN_LIMIT and not rollout.error
    assert rollout.num_retries == 0
    (sample,) = rollout.samples
    (episode,) = game.episodes
    assert episode.calls == {"act": sample.metadata["turns"], "close": 1} and episode.calls["act"] > 1
    assert sample.num_trained_tokens > 4 * episode.calls["act"] - 1 and len(sample.tokens) <= 300
    assert sample.reward == 0.0 and rollout.metrics["won"] == 0.0


async def test_a_game_longer_than_an_opponents_context_ends_likewise(byte_tokenizer: Any):
    numbers = [str(n) for n in range(100, 200)]
    opponent = Scripted(byte_tokenizer, numbers, max_model_len=300, name="opponent")
    options: Any = {"models": {"opponent": opponent}, "players": {"two": "opponent"}, "max_turns": 100}
    rollout = await played(byte_tokenizer, Counting(goal=1000), numbers, **options)
    assert rollout.stop_reason is StopReason.TOKEN_LIMIT and not rollout.error and rollout.num_retries == 0
    assert {each.seat for each in rollout.samples} == {"one"}


async def test_rewards_before_a_seats_first_reply_are_those_of_its_first(byte_tokenizer: Any):
    class Sums(Count):
        def act(self, reply: Any) -> Any:
            super().act(reply)
            return {"one": 1.0, "two": -1.0} if reply.seat == "one" else None

        def outcome(self) -> Outcome:
            return Outcome()

    class Game(Counting):
        def open(self, row: Any) -> Count:
            return Sums(self, row)

    rollout = await played(byte_tokenizer, Game(), ["1", "5"])
    assert [(each.seat, each.reward, each.metadata["step_rewards"]) for each in rollout.samples] == [
        ("one", 1.0, [1.0]),
        ("two", -1.0, [-1.0]),
    ]
    alone = await played(byte_tokenizer, Game(goal=1), ["1"])
    assert alone.metrics == {"reward_one": 1.0, "reward_two": -1.0}, "also of a seat that was never asked"


@pytest.mark.parametrize("method", ["observe", "act", "outcome"])
async def test_a_seat_that_there_is_not_is_an_error_of_the_environment(byte_tokenizer: Any, method: str):
    strange = {"observe": Observation(seat="One", content="?"), "act": {"One": 1.0}, "outcome": Outcome(rewards={"One": 1.0})}

    class Wrong(Counting):
        def open(self, row: Any) -> Count:
            episode = Count(self, row)
            setattr(episode, method, lambda *_: strange[method])
            return episode

    rollout = await played(byte_tokenizer, Wrong(goal=1), ["1"] * 4)
    assert rollout.stop_reason is StopReason.SANDBOX_CRASHED
    assert f"{method} of the environment names One: its seats are one, two" in rollout.error


async def test_a_step_that_raises_stop_iteration_is_an_error_of_the_environment(byte_tokenizer: Any):
    class Exhausted(Counting):
        def open(self, row: Any) -> Count:
            episode = Count(self, row)
            episode.act = lambda _: next(iter(()))  # type: ignore[method-assign]
            return episode

    rollout = await played(byte_tokenizer, Exhausted(), ["1"] * 4)
    assert rollout.stop_reason is StopReason.SANDBOX_CRASHED and "StopIteration" in rollout.error


def test_rows_without_key_and_question_are_told_apart_by_all_that_they_are():
    candidates = [{"prompt": [{"role": "user", "content": f"say {n}"}]} for n in range(100)] * 2
    found = {split: in_split(candidates, split=split, num_items=100) for split in ("train", "eval")}
    assert sum(map(len, found.values())) == 100 and min(map(len, found.values())) > 5


async def test_a_game_that_does_not_fit_into_the_context_is_given_up(byte_tokenizer: Any):
    rollout = await played(byte_tokenizer, Counting(), [], max_model_len=20)
    assert rollout.stop_reason is StopReason.TOKEN_LIMIT and rollout.could_not_begin
    assert rollout.num_retries == 0


async def test_an_episode_that_opens_too_late_is_closed(byte_tokenizer: Any):
    release, closed = threading.Event(), threading.Event()

    class Late(Counting):
        def open(self, row: Any) -> Count:
            release.wait()
            episode = super().open(row)
            episode.close = closed.set  # type: ignore[method-assign]
            return episode

    limits = {"sandbox_timeout_seconds": 0.1, "max_retries": 0}
    rollout = await played(byte_tokenizer, Late(), [], rollout=limits)
    assert rollout.stop_reason is StopReason.SANDBOX_CRASHED and "rollout.sandbox_timeout_seconds=0.1" in rollout.error
    release.set()
    assert await asyncio.to_thread(closed.wait, 20)


async def test_a_game_that_does_not_end_is_left_after_its_last_turn(byte_tokenizer: Any):
    rollout = await played(byte_tokenizer, Counting(("agent",), goal=99), ["1", "2", "3"], max_turns=3)
    assert rollout.stop_reason is StopReason.TURN_LIMIT
    assert rollout.samples[0].metadata["turns"] == 3


async def test_a_step_that_raises_is_called_once_and_the_rollout_is_run_again(byte_tokenizer: Any):
    class Breaking(Counting):
        def open(self, row: Any) -> Count:
            episode = super().open(row)
            if row["attempt"] == 0:
                episode.act = lambda reply: self.lose(episode)  # type: ignore[method-assign]
            return episode

        def lose(self, episode: Count) -> None:
            episode.calls["act"] += 1
            raise ConnectionResetError("gone")

    game = Breaking(("agent",))
    rollout = await played(byte_tokenizer, game, ["3", "3"])
    first, second = game.episodes
    assert first.calls == {"act": 1, "close": 1} and second.calls == {"act": 1, "close": 1}
    assert rollout.num_retries == 1 and rollout.stop_reason is StopReason.ANSWERED
    assert rollout.reward == 1.0


async def test_an_environment_that_is_always_lost_costs_its_rollout_only(byte_tokenizer: Any):
    class Lost(Counting):
        def open(self, row: Any) -> Count:
            raise OSError("no server")

    rollout = await played(byte_tokenizer, Lost(), [])
    assert rollout.stop_reason is StopReason.SANDBOX_CRASHED and "OSError: no server" in rollout.error
    assert not rollout.samples


async def test_a_step_that_hangs_ends_its_rollout_with_what_it_has(byte_tokenizer: Any):
    release = threading.Event()

    class Hanging(Counting):
        def open(self, row: Any) -> Count:
            episode = super().open(row)
            usual = episode.act
            episode.act = lambda reply: release.wait() if reply.text == "2" else usual(reply)  # type: ignore[method-assign]
            return episode

    game = Hanging(("agent",))
    try:
        rollout = await played(byte_tokenizer, game, ["1", "2"], rollout={"tool_timeout_seconds": 0.2})
    finally:
        release.set()
    assert rollout.stop_reason is StopReason.TIME_LIMIT and rollout.num_retries == 0
    assert rollout.reward == pytest.approx(0.1), "the rewards of its steps"
    (sample,) = rollout.samples
    assert sample.metadata["turns"] == 2 and sample.num_trained_tokens == 4


async def test_a_rollout_that_is_stopped_in_a_step_leaves_it_and_closes_afterwards(byte_tokenizer: Any):
    entered, release, closed = threading.Event(), threading.Event(), threading.Event()

    class Slow(Counting):
        def open(self, row: Any) -> Count:
            episode = super().open(row)
            episode.act = lambda reply: (entered.set(), release.wait(), None)[2]  # type: ignore[method-assign]
            episode.close = closed.set  # type: ignore[method-assign]
            return episode

    running = asyncio.ensure_future(played(byte_tokenizer, Slow(("agent",)), ["1"], rollout={"tool_timeout_seconds": 60.0}))
    await asyncio.to_thread(entered.wait, 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not closed.is_set()
    release.set()
    assert await asyncio.to_thread(closed.wait, 20)


async def test_a_step_that_sleeps_does_not_hold_up_others(byte_tokenizer: Any):
    both = threading.Barrier(2, timeout=20)  # each waits until the other is in its step as well

    class Meeting(Counting):
        def open(self, row: Any) -> Count:
            episode = super().open(row)
            usual = episode.act
            episode.act = lambda reply: (both.wait(), usual(reply))[1]  # type: ignore[method-assign]
            return episode

    game, limits = Meeting(("agent",)), {"rollout": {"tool_timeout_seconds": 30.0}}
    found = await asyncio.gather(*(played(byte_tokenizer, game, ["3"], **limits) for _ in range(2)))
    assert [each.stop_reason for each in found] == [StopReason.ANSWERED] * 2


async def test_illegal_moves_are_told_counted_and_change_nothing(byte_tokenizer: Any):
    game = Counting(("agent",))
    rollout = await played(byte_tokenizer, game, ["x", "3"])
    assert rollout.stop_reason is StopReason.ANSWERED and rollout.reward == 1.0
    assert rollout.counts["illegal_moves"] == 1 and rollout.counts["environment_steps"] == 2
    assert "a number !" in byte_tokenizer.decode(rollout.samples[0].tokens)


async def test_a_seat_that_never_made_a_legal_move_has_not_answered(byte_tokenizer: Any):
    rollout = await played(byte_tokenizer, Counting(("agent",)), ["x", "y"], max_turns=2)
    assert rollout.stop_reason is StopReason.MALFORMED
    assert rollout.counting.trained and rollout.reward == 0.0


async def test_methods_may_be_async(byte_tokenizer: Any):
    class Later(Counting):
        async def open(self, row: Any) -> Any:
            episode = super().open(row)
            return type("Async", (), {name: self.later(getattr(episode, name)) for name in ("observe", "act", "outcome")})()

        def later(self, function: Callable[..., Any]) -> Any:
            async def call(_: Any, *arguments: Any) -> Any:
                await asyncio.sleep(0)
                return function(*arguments)

            return call

    rollout = await played(byte_tokenizer, Later(("agent",)), ["3"])
    assert rollout.stop_reason is StopReason.ANSWERED and rollout.reward == 1.0


async def test_a_base_model_continues_a_text_up_to_its_stop(byte_tokenizer: Any):
    class Sums:
        def open(self, row: Any) -> Any:
            return Sum()

    class Sum:
        said: str | None = None

        def observe(self) -> Observation | None:
            return Observation(content="1 + 2 =", stop=("\n",)) if self.said is None else None

        def act(self, reply: Any) -> None:
            self.said = reply.text

        def outcome(self) -> Outcome:
            return Outcome(rewards=float(self.said == " 3\n"))

    rollout = await played(byte_tokenizer, Sums(), [" 3\n"])
    assert rollout.reward == 1.0
    assert byte_tokenizer.decode(rollout.samples[0].tokens) == "1 + 2 = 3\n"
    assert rollout.samples[0].seat == "agent"


def test_rows_of_an_environment_belong_to_one_split_and_need_no_question():
    name = f"{__file__}:Counting"
    train, held_out = (rows(500, 0, environment=name, split=split) for split in ("train", "eval"))  # type: ignore[arg-type]
    assert len(train) == len(held_out) == 500
    assert not {row["key"] for row in train} & {row["key"] for row in held_out}
    assert all(row["prompt"] == [] for row in train)


def test_few_different_rows_end_the_search_for_more():
    endless = ({"key": str(n % 50)} for n in iter(int, 1))
    assert len(in_split(endless, split="train", num_items=10)) <= 1


@pytest.mark.parametrize(
    ("name", "settings", "key", "remedy"),
    [
        ("no_such.thing", {}, "method.environment", "cannot be imported"),
        (f"{__file__}:Counting", {"gaol": 1}, "method.settings", "gaol"),
    ],
)
def test_an_environment_that_cannot_be_made_is_a_problem_with_a_remedy(name: str, settings: Any, key: str, remedy: str):
    with pytest.raises(ConfigError) as raised:
        load_environment(name, settings)
    (problem,) = raised.value.problems
    assert problem.key == key and remedy in problem.remedy
