"""`Trajectory`: everything that models were shown and sampled in one rollout, as a tree of calls.

A call is in it from the moment it is sent, so that a time-out, a retry, a resumed run and a lost worker all read the same record.
What two calls share, the tokens of a conversation so far, is held once: a call keeps the tokens that were added behind the call
before it.

    trajectory = Trajectory()
    call = trajectory.begin(trajectory.continued(token_ids, model="actor"), model="actor", tokenizer=tokenizer)
    call.received(piece)                                       # as its tokens arrive
    call.finish(turn, message)
    samples = trajectory.samples(sample)                       # every sampled token is trained in exactly one of them
"""

import copy
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from vime.types import STEP_REWARD, Column, Integers, Message, Sample, Turn
from vime.types.column import ROUTED_EXPERTS, TOP_IDS, TOP_LOGPROBS
from vime.types.routed_experts import unknown

KEY_CHARACTERS = 32


class Call:
    """One model call and its reply: a node of the tree. Its prompt continues the reply of its parent.

    Example of a second turn: its `parent` is the first call, its `environment` the tokens of a tool's result, and its `turn` has
    the sampled tokens.
    """

    __slots__ = (
        "_pieces",
        "_tokenizer",
        "caller",
        "cause",
        "delivered",
        "ended",
        "goes_on",
        "has_children",
        "is_finished",
        "kind",
        "message",
        "model",
        "num_prompt_tokens",
        "parent",
        "position",
        "reward",
        "trained",
    )

    def __init__(self, prompt: "CallPrompt", *, model: str, tokenizer: Any, trained: bool) -> None:
        self.model = model
        """The name of the model."""
        self.trained = trained
        """True if its tokens are part of the rollout's samples."""
        self.parent = prompt.parent
        self.num_prompt_tokens = len(prompt.ids)
        self.kind, self.cause, self.caller = prompt.kind, prompt.cause, prompt.caller
        self.goes_on = prompt.goes_on
        self.message: Message = {}
        """The answer that its agent got; empty before the reply is complete."""
        self.position = -1
        """Index of the message in its conversation."""
        self.ended = True
        """True if the model ended the reply, by the template's own end or by another special token."""
        self.delivered = True
        """False if no client received it: it is then not trained."""
        self.reward: float | None = None
        """The reward of the step that the reply has taken, if it has one of its own (`STEP_REWARD`)."""
        self.has_children = False
        self._tokenizer = tokenizer
        self._pieces = [Turn(prompt_ids=prompt.environment)]
        self.is_finished = False
        """True once the reply is complete."""

    @property
    def turn(self) -> Turn:
        """The reply so far, with the tokens of the environment before it, without a message."""
        return self._pieces[0] if len(self._pieces) == 1 else Turn.joined(self._pieces)

    @property
    def environment(self) -> Integers:
        """Token ids that were not sampled: the whole prompt of a root, or those between the parent's reply and this one."""
        return self._pieces[0].prompt_ids

    @property
    def num_routed(self) -> int:
        """Tokens at the beginning of its prompt and reply whose experts it knows together with the calls before it."""
        read, found = self.num_prompt_tokens + len(self.turn.output_ids) - 1, self.turn.routed_experts
        return read if found is not None and found.end == read else 0

    @property
    def text(self) -> str:
        """The text of the reply, or the part that has arrived."""
        return self.message.get("content") or self.decoded(self.turn.output_ids)

    def decoded(self, ids: Integers) -> str:
        """The text of token ids of its model, without special tokens."""
        return self._tokenizer.decode(ids, skip_special_tokens=True) if len(ids) else ""

    @property
    def says_something(self) -> bool:
        """True once the reply has a token, or, for a model whose tokens are not known, a text or a tool call."""
        turn = self.turn
        unseen = turn.usage is not None and (turn.text or turn.tool_calls)
        return len(turn.output_ids) > 0 or bool(unseen)

    def received(self, piece: Turn) -> None:
        """Records tokens that have arrived."""
        self._pieces.append(piece)

    def finish(self, turn: Turn, message: Message | None = None, *, key: str = "") -> None:
        """Replaces the pieces with the complete reply; `key` identifies the call to another attempt (`call_key`)."""
        self._pieces, self.is_finished = [replace(turn, prompt_ids=self.environment, key=key or turn.key)], True
        self.message = message or {}

    def versions(self, unknown: int) -> set[int]:
        """The weight versions of its tokens, with `unknown` for those that may still arrive."""
        return {*self.turn.weight_versions} | (set() if self.is_finished else {unknown})

    def path(self) -> "list[Call]":
        """The calls from the root to this one."""
        found: list[Call] = []
        call: Call | None = self
        while call is not None:
            found.append(call)
            call = call.parent
        return found[::-1]

    def ids(self) -> np.ndarray:
        """Token ids of its prompt and reply, int32."""
        return _end_to_end([part for call in self.path() for part in (call.environment, call.turn.output_ids)], np.int32)

    def begins(self, prompt: Column[int]) -> bool:
        """True for a prompt that begins with its own prompt and its whole reply."""
        if not self.is_finished:
            return False
        said = self.turn.output_ids
        size = self.num_prompt_tokens + len(said)
        if not said or size > len(prompt) or prompt[size - 1] != said[-1]:
            return False
        return np.array_equal(prompt.array[:size], self.ids())


@dataclass(frozen=True, kw_only=True, slots=True)
class CallPrompt:
    """Token ids up to the place where a reply begins, and their place in the tree.

    Example of a prompt that continues a reply with two tokens of a tool: `CallPrompt(ids=[5, 6, 9, 8, 2, 7, 7], parent=first,
    environment=[7, 7])`.
    """

    ids: Column[int]
    environment: Column[int]
    """The part of the ids that follows the parent's reply; all of them without a parent."""
    parent: Call | None = None
    kind: str = ""
    """The branch of the conversation: main, subagent, compacted, edited or retry; empty for plain token ids."""
    cause: str = ""
    """The reason why a branch begins here, for example thinking_dropped; empty where none does."""
    caller: str = ""
    """The name by which an agent tells its calls from those of others; empty where none is given."""
    goes_on: bool = False
    """True if the reply goes on in the message of the parent's reply."""
    keys: list[bytes] = field(default_factory=list)
    """Digests of the conversation up to each of its messages, and first that of its tools (`vime.trajectory.dialogue`)."""
    begun: Message | None = None
    """The last message of the conversation, if the reply continues it."""

    @classmethod
    def behind(cls, parent: Call | None, environment: Integers, **about: Any) -> "CallPrompt":
        """The prompt that adds these tokens to a call's prompt and reply, or to nothing."""
        added = Column(environment, np.int32)
        ids = added if parent is None else Column(np.concatenate([parent.ids(), added.array]), np.int32)
        return cls(ids=ids, environment=added, parent=parent, **about)


class Trajectory:
    """The calls of one rollout: those of the present attempt, and the replies that earlier attempts have kept.

    A restarted agent runs from its beginning. A call to the same model with the same prompt and limit gets the kept reply, once;
    every other call is sampled. This is sound for every agent, because a reply is only used for exactly the prompt that it was
    sampled for, in any order of calls. Tools are called again: their sandboxes are gone.
    """

    __slots__ = ("_kept", "_num_asked", "attempt", "calls", "seed_of")

    def __init__(self, kept: Iterable[Turn] = (), *, seed_of: Callable[[str, int], int] | None = None) -> None:
        """`kept` are replies of an earlier run of the same rollout; `seed_of` gives the seed of a call (`Seeds`)."""
        self.calls: list[Call] = []
        """The calls of the present attempt, in the order in which they were sent."""
        self.attempt = 0
        self.seed_of = seed_of
        """Function for the seed of a call; None leaves seeding to the servers."""
        self._kept: dict[str, list[Turn]] = {}
        self._num_asked: Counter[str] = Counter()
        self._expect(kept)

    def continued(self, token_ids: Integers, *, model: str) -> CallPrompt:
        """The prompt of plain token ids, continuing the model's latest call whose prompt and reply they begin with, if any."""
        ids = Column(token_ids, np.int32)
        parent = next((call for call in reversed(self.calls) if call.model == model and call.begins(ids)), None)
        if parent is None:
            return CallPrompt(ids=ids, environment=ids)
        start = parent.num_prompt_tokens + len(parent.turn.output_ids)
        environment = Column(ids.array[start:].copy(), np.int32)  # a view would keep the whole prompt of each call in memory
        return CallPrompt(ids=ids, environment=environment, parent=parent, goes_on=True)

    def begin(
        self, prompt: CallPrompt, *, model: str, tokenizer: Any = None, trained: bool = True, attempt: int | None = None
    ) -> Call:
        """Adds a call that is being sent. A call that some task still makes for an earlier `attempt` is not recorded."""
        call = Call(prompt, model=model, tokenizer=tokenizer, trained=trained)
        if attempt is None or attempt == self.attempt:
            self.calls.append(call)
        return call

    def seed(self, key: str) -> int | None:
        """The seed of a new call. Equal calls of one attempt get different seeds; every attempt gets the same ones."""
        number, self._num_asked[key] = self._num_asked[key], self._num_asked[key] + 1
        return None if self.seed_of is None else self.seed_of(key, number)

    def recall(self, key: str) -> Turn | None:
        """Returns and removes the reply that an earlier attempt has kept for this call, if there is one."""
        found = self._kept.get(key)
        return found.pop(0) if found else None

    def saved(self) -> list[Turn]:
        """All replies that another attempt could use, including kept ones that were not asked for yet."""
        finished = [replace(call.turn, prompt_ids=[]) for call in self.calls if call.is_finished and call.turn.key]
        return [*finished, *(turn for turns in self._kept.values() for turn in turns)]

    def oldest_version(self, unknown: int) -> int | None:
        """The weight version of the oldest token of this rollout, None without tokens; that of calls in flight is `unknown`."""
        versions = {version for turns in self._kept.values() for turn in turns for version in turn.weight_versions}
        versions |= {version for call in self.calls if call.trained for version in call.versions(unknown)}
        return min(versions, default=None)

    def start_again(self, *, keeps_replies: bool) -> None:
        """Begins a new attempt, whose calls get the replies of this one if `keeps_replies`, and are otherwise all sampled."""
        kept = self.saved() if keeps_replies else []
        self.calls, self.attempt = [], self.attempt + 1
        self._expect(kept)

    def samples(
        self, template: Sample, metadata: dict[str, Any] | None = None, *, calls: Iterable[Call] | None = None
    ) -> list[Sample]:
        """Trainable sequences that contain every sampled token exactly once; an empty list if nothing was sampled.

        There is one sequence for each call without a successor. A beginning that several of them share is trained in the first.
        What was never delivered is left out. Rewards of single replies (`call.reward`) are in the column `step_reward`. `calls`
        are those to take, by default all whose tokens are trained; `metadata` is that of each sequence.
        """
        chosen = [call for call in self.calls if call.trained] if calls is None else list(calls)
        said = {id(call): call for call in chosen if call.delivered and call.says_something}
        inner: set[int] = set()
        for call in said.values():
            before = call.parent
            while before is not None and id(before) not in inner:
                inner.add(id(before))
                before = before.parent
        found: list[Sample] = []
        done: set[int] = set()
        for call in said.values():
            if id(call) not in inner:
                path = call.path()
                own = {id(step) for step in path if id(step) in said} - done
                done |= own
                found.append(_sequence(template, path, own, metadata or {}))
        return found

    def _expect(self, kept: Iterable[Turn]) -> None:
        self._kept, self._num_asked = {}, Counter()
        for turn in kept:
            self._kept.setdefault(turn.key, []).append(turn)


def call_key(model: str, token_ids: Integers, max_tokens: int) -> str:
    """Identifies a model call by a digest of the model's name, the prompt's token ids and the limit."""
    digest = hashlib.sha256(f"{model}/{max_tokens}/".encode())
    digest.update(np.asarray(token_ids, dtype=np.int32).tobytes())
    return digest.hexdigest()[:KEY_CHARACTERS]


def _sequence(template: Sample, path: list[Call], own: set[int], metadata: dict[str, Any]) -> Sample:
    """The tokens of a path up to its last reply; those of the calls in `own` are trained.

    Tokens of the environment count as of the same weights as the reply before them.
    """
    tokens: list[Integers] = []
    masks: list[np.ndarray] = []
    logprobs: list[Any] = []
    versions: list[Any] = []
    rewards: list[tuple[int, float]] = []
    last = 0
    for place, call in enumerate(path):
        turn = call.turn
        tokens += [call.environment, turn.output_ids]
        num_between = len(call.environment) if place else 0
        masks += [np.zeros(num_between, np.uint8), np.full(len(turn.output_ids), id(call) in own, np.uint8)]
        logprobs += [np.zeros(num_between, np.float32), turn.logprobs]
        versions += [np.full(num_between, last, np.int32), turn.weight_versions]
        last = turn.weight_versions[-1] if turn.weight_versions else last
        if call.reward is not None and id(call) in own and len(turn.output_ids):
            rewards.append((sum(map(len, masks)) - 1, call.reward))
    leaf = path[-1]
    sample = copy.copy(template)
    sample.prompt, sample.response = [], _text(path)
    about = ({"kind": leaf.kind, "cause": path[0].cause} if leaf.kind else {}) | ({"caller": leaf.caller} if leaf.caller else {})
    sample.metadata = about | metadata
    sample.tokens = Column(_end_to_end(tokens, np.int32), np.int32)
    sample.loss_mask = Column(_end_to_end(masks, np.uint8), np.uint8)
    sample.rollout_log_probs = Column(_end_to_end(logprobs, np.float32), np.float32)
    sample.weight_versions = Column(_end_to_end(versions, np.int32), np.int32)
    sample.response_length = len(sample.loss_mask)
    if num_logprobs := max(call.turn.num_logprobs for call in path):
        sample.columns = {**sample.columns, **_likeliest(path, num_logprobs)}
    if any(call.turn.routed_experts is not None for call in path):
        sample.columns = {**sample.columns, ROUTED_EXPERTS.name: _routed(path, len(sample.tokens))}
    if rewards:
        column = np.zeros(sample.response_length, STEP_REWARD.dtype)
        for place, reward in rewards:
            column[place] = reward
        sample.columns = {**sample.columns, STEP_REWARD.name: column}
    return sample


def _likeliest(path: list[Call], num: int) -> dict[str, np.ndarray]:
    """The likeliest tokens at each response token of a path, [response tokens, num]; none at tokens of the environment."""
    found: dict[str, np.ndarray] = {}
    for kind in (TOP_IDS, TOP_LOGPROBS):
        parts: list[np.ndarray] = []
        for place, call in enumerate(path):
            turn, num_between = call.turn, len(call.environment) if place else 0
            given = np.asarray(getattr(turn, kind.name))
            own = given.reshape(-1, num) if turn.num_logprobs == num else np.full((len(turn.output_ids), num), kind.fill)
            parts += [np.full((num_between, num), kind.fill), own]
        found[kind.name] = np.concatenate(parts, dtype=np.dtype(kind.dtype), casting="unsafe")
    return found


def _routed(path: list[Call], num_tokens: int) -> np.ndarray:
    """The experts of each token of a path, [tokens, layers, experts of a token], unknown where no call has any.

    Where two calls have those of the same token, those of the earlier one stay: what it sampled depends on them.
    """
    known = [found for call in reversed(path) if (found := call.turn.routed_experts) is not None]
    rows = known[0].rows_RLK
    table = np.full((num_tokens, *rows.shape[1:]), unknown(rows.dtype), rows.dtype)
    for experts in known:
        table[experts.start : experts.end] = experts.rows_RLK
    return table


def _text(path: list[Call]) -> str:
    """The text of the last message: one reply, or several replies with the text between them."""
    text = ""
    for call in reversed(path):
        text = call.text + text
        if not call.goes_on:
            break
        text = call.decoded(call.environment) + text
    return text


def _end_to_end(parts: list[Any], dtype: Any) -> np.ndarray:
    return np.concatenate([np.asarray(part, dtype) for part in parts]) if parts else np.zeros(0, dtype)
