"""One reply as it arrives, in one or more attempts; each attempt continues from the tokens received so far."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from vime.types import Column, Integers, RoutedExperts, Turn
from vime.types.routed_experts import id_type
from vime.weights.payload import ADAPTER, version_in

STREAM_INTERVAL_TOKENS = 64
"""Number of tokens that a server sends at a time, after the first; at most this many are sampled again when it is killed."""
GOES_ON = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "max_tokens", "min_tokens", "ignore_eos", "stop_token_ids", "logit_bias"),
        *("stream_interval", "logprobs"),
    }
)
"""Sampling parameters under which a reply can be continued from its first half. Others (penalties, structured output, a seed)
depend on where the reply begins, so with them a reply is sampled again from its beginning; with a seed it comes out the same."""


CUT = -9999.0
"""vLLM's logprob of a token that top-k or top-p has cut off, because JSON has no minus infinity."""


class TooOld(Exception):
    """The server samples with older weights than the request allows."""


class StreamError(Exception):
    """The server ended the stream without ending the reply."""


class Listener(Protocol):
    """Follows a request while it is in flight."""

    def received(self, piece: Turn) -> None:
        """Called when more tokens have arrived, which will stay part of the reply."""
        ...

    def lost(self) -> None:
        """Called when the server is lost; until tokens arrive again, the request waits for it or for another."""
        ...

    def is_paused(self) -> bool:
        """True if servers are known to be silent at present because they receive weights."""
        ...


@dataclass(kw_only=True, slots=True)
class Reply:
    """The reply to one request; `add` takes a message of the server, `lose` keeps the tokens that came before a loss.

    A server that was not started by `vime.inside_vllm.vllm_server` reports weight versions late; its tokens are held until then.
    If it is lost before, they count as sampled by `minimum_version`, the oldest weights that they can be of.
    """

    prompt: Integers
    sampling: dict[str, Any]
    minimum_version: int = 0
    adapter: str | None = None
    """Name of the adapter that it is computed with (`Endpoint.adapter`)."""
    num_experts: int = 0
    """Experts of a layer, if the server reports those of each token (`Endpoint.num_experts`)."""
    experts_from: int | None = None
    """Place of the first token whose experts are wanted; None if they are not."""
    listener: Listener | None = None
    pieces: list[Turn] = field(default_factory=list)
    """The tokens received, in order."""
    num_tokens: int = 0
    """Sampled tokens in the pieces."""
    finish_reason: str = ""
    """`stop` or `length` once the reply is complete."""
    seconds: float = 0.0
    """Duration of earlier attempts that brought tokens."""
    attempt_seconds: float = 0.0
    """Time from the request of this attempt to its latest token."""
    _held: list[Turn] = field(default_factory=list)
    """Tokens whose versions are not known yet."""
    _num_before: int = 0
    """The number of tokens that earlier attempts brought."""

    def body(self) -> dict[str, Any]:
        """The request of the next attempt: its prompt is the first one and all tokens received, and it asks for the rest.

        The token ids are an array, which becomes JSON in a fraction of the time that a list takes. One more logprob is asked
        for than is wanted: vLLM counts the sampled token among them, which may be none of the likeliest.
        """
        num_logprobs = self._num_logprobs + 1 if self._num_logprobs else 0
        sampling = {**self.sampling, "logprobs": num_logprobs, "detokenize": "stop" in self.sampling}
        sampling.setdefault("stream_interval", STREAM_INTERVAL_TOKENS)
        self._num_before = self.num_tokens
        if self._num_before:
            sampling["max_tokens"] -= self._num_before
            if "min_tokens" in sampling:
                sampling["min_tokens"] = max(0, sampling["min_tokens"] - self._num_before)
        token_ids = np.concatenate(
            [np.asarray(part, np.int32) for part in (self.prompt, *(each.output_ids for each in self.pieces))]
        )
        if self.num_experts:
            sampling["routed_experts_prompt_start"] = len(token_ids) if self.experts_from is None else self._next_routed
        if self.adapter is not None:
            sampling["extra_args"] = {**(sampling.get("extra_args") or {}), ADAPTER: self.adapter}
        return {"token_ids": token_ids, "sampling_params": sampling, "stream": True}

    def add(self, choice: dict[str, Any]) -> None:
        """Processes one event of the stream.

        Raises TooOld if its tokens are older than `minimum_version`, StreamError if the server gave the request up.
        """
        content = (choice.get("logprobs") or {}).get("content") or ()
        ids = choice.get("token_ids") or ()
        experts = self._experts(choice.get("routed_experts"), num_new=len(ids))
        if ids or experts is not None:
            if len(content) != len(ids):
                raise StreamError(f"the server sent {len(content)} logprobs for {len(ids)} tokens")
            top_ids, top_logprobs = _likeliest(content, self._num_logprobs)
            logprobs = [token["logprob"] for token in content]
            self._held.append(
                Turn(
                    output_ids=list(ids),
                    logprobs=logprobs,
                    top_ids=top_ids,
                    top_logprobs=top_logprobs,
                    routed_experts=experts,
                )
            )
        reason, spans = choice.get("finish_reason"), choice.get("weight_versions")
        if spans or reason:
            versions = self._versions(spans, self.num_tokens - self._num_before)
            if min(versions, default=self.minimum_version) < self.minimum_version:
                raise TooOld(f"it samples with version {min(versions)}, wanted is {self.minimum_version}")
            if self._goes_on() or reason in ("stop", "length"):
                self._keep(versions)
        if reason in ("stop", "length"):
            self.finish_reason = reason
        elif reason:
            raise StreamError(f"the server ended the generation: {reason}")

    def lose(self, *, too_old: bool = False) -> None:
        """Ends a failed attempt; its tokens are kept, unless their weights are `too_old` or the reply cannot be continued."""
        if not too_old and self._goes_on():
            self.keep()
            self.seconds += self.attempt_seconds
        self._held, self.attempt_seconds = [], 0.0
        if self.num_tokens >= self.sampling["max_tokens"]:
            self.finish_reason = "length"
        if self.listener is not None:
            self.listener.lost()

    def keep(self) -> None:
        """Keeps the held tokens, as sampled by the oldest weights that they can be of."""
        self._keep([self.minimum_version] * self._num_held)

    def turn(self) -> Turn:
        """The finished reply; its `seconds` are those of the attempts that brought tokens, each from its request to its last."""
        assert self.finish_reason, f"{self.num_tokens} tokens and no end"
        return Turn.joined(self.pieces, finish_reason=self.finish_reason, seconds=self.seconds + self.attempt_seconds)

    @property
    def _num_logprobs(self) -> int:
        return self.sampling.get("logprobs", 0)

    @property
    def _next_routed(self) -> int:
        """Place of the first token whose experts have not come yet."""
        known = [piece.routed_experts.end for piece in (*self.pieces, *self._held) if piece.routed_experts is not None]
        return max([self.experts_from or 0, *known])

    def _experts(self, text: str | None, *, num_new: int) -> RoutedExperts | None:
        """The next experts, from a file of numpy in base64; they are those of all tokens before the last of `num_new`.

        Raises StreamError if they are not.
        """
        if self.experts_from is None or not text:
            return None
        rows_RLK = np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)
        found = RoutedExperts(self._next_routed, rows_RLK.astype(id_type(self.num_experts), copy=False))
        read = len(self.prompt) + self.num_tokens + self._num_held + num_new - 1
        if found.end != read:
            raise StreamError(f"the server sent the experts of {found.end} tokens, and has read {read}")
        return found if len(rows_RLK) else None

    def _goes_on(self) -> bool:
        return GOES_ON.issuperset(self.sampling)

    @property
    def _num_held(self) -> int:
        return sum(len(piece.output_ids) for piece in self._held)

    def _versions(self, spans: list[dict[str, Any]] | None, start: int) -> list[int]:
        """One version for each held token (see `version_in`); the first is the attempt's token `start`."""
        count = self._num_held
        versions = [0] * count
        for span in spans or ():
            first, last = max(span["start"] - start, 0), min(span["end"] - start, count)
            if first < last:
                versions[first:last] = [version_in(span["version"], self.adapter)] * (last - first)
        return versions

    def _keep(self, versions: list[int]) -> None:
        held, self._held = self._held, []
        if not held:
            return
        piece = replace(held[0] if len(held) == 1 else Turn.joined(held), weight_versions=versions)
        self.pieces.append(piece)
        self.num_tokens += len(versions)
        if self.listener is not None:
            self.listener.received(piece)


def _likeliest(content: Sequence[dict[str, Any]], num: int) -> tuple[Column[int], Column[float]]:
    """Ids and logprobs of the `num` likeliest tokens at each place, end to end; places of tokens that were cut off stay empty."""
    ids, logprobs = np.full((len(content), num), -1, np.int32), np.full((len(content), num), -np.inf, np.float32)
    for place, token in enumerate(content if num else ()):
        kept = [(each["logprob"], each["token_id"]) for each in token["top_logprobs"] if each["logprob"] > CUT]
        kept.sort(key=itemgetter(0), reverse=True)
        for number, (logprob, token_id) in enumerate(kept[:num]):
            ids[place, number], logprobs[place, number] = token_id, logprob
    return Column(ids.reshape(-1), np.int32), Column(logprobs.reshape(-1), np.float32)
