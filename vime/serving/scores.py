"""`Scores`: the logprobs that a served model gives to the tokens of a finished sequence, as its server answers them."""

from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import orjson

from vime.serving.reply import StreamError, TooOld
from vime.weights.payload import version_in


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Logprobs of the tokens of a sequence but its first, [T - 1], at temperature 1; natural logarithms.

    Example of the tokens `[5, 9, 2]`, where 9 was likely: `Scores(logprobs=[-0.1, -3.2], ids=[[9], [4]], likeliest=[[-0.1],
    [-0.2]])`.
    """

    logprobs: np.ndarray
    ids: np.ndarray
    """The likeliest tokens in each place, [T - 1, K], likeliest first; K may be 0."""
    likeliest: np.ndarray
    """Their logprobs, [T - 1, K]."""

    @classmethod
    def of(
        cls, answer: bytes, token_ids: np.ndarray, *, num_likeliest: int, minimum_version: int = 0, adapter: str | None = None
    ) -> "Scores":
        """Reads vLLM's answer to a request with `prompt_logprobs`, for these tokens.

        Raises `StreamError` if it is none, has another length, or other tokens than were sent, and `TooOld` if the weights of the
        model, or of its `adapter`, are older than `minimum_version`.
        """
        try:
            read = orjson.loads(answer)
            places = read["prompt_logprobs"][1:]
        except (ValueError, KeyError, TypeError) as error:
            raise StreamError(f"the answer has no logprobs of the prompt: {answer[:200]!r}") from error
        spans = [span for choice in read.get("choices") or () for span in choice.get("weight_versions") or ()]
        version = min((version_in(span["version"], adapter) for span in spans), default=0)
        if version < minimum_version:
            raise TooOld(f"it scores with version {version}, wanted is {minimum_version}")
        if len(places) != len(token_ids) - 1:
            raise StreamError(f"the answer has logprobs of {len(places) + 1} tokens, {len(token_ids)} were sent")
        logprobs = np.empty(len(places), np.float32)
        ids = np.full((len(places), num_likeliest), -1, np.int32)
        likeliest = np.full((len(places), num_likeliest), -np.inf, np.float32)
        for place, (token, found) in enumerate(zip(token_ids[1:].tolist(), places)):
            own = found.get(str(token)) if isinstance(found, dict) else None
            if own is None:
                raise StreamError(f"the answer has no logprob of token {token} in place {place + 1}")
            logprobs[place] = own["logprob"]
            for number, (logprob, text) in enumerate(_sorted(found)[:num_likeliest]):
                ids[place, number], likeliest[place, number] = int(text), logprob
        if not np.isfinite(logprobs).all():
            raise StreamError(f"the answer has the logprob {logprobs[~np.isfinite(logprobs)][0]}")
        return cls(logprobs=logprobs, ids=ids, likeliest=likeliest)


def _sorted(found: dict[str, Any]) -> list[tuple[float, str]]:
    return sorted(((each["logprob"], text) for text, each in found.items()), key=itemgetter(0), reverse=True)
