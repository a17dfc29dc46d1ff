"""Models whose text follows a script, and that record their requests and the sampled tokens.

`ScriptedModel` samples nothing: it answers with the tokens of the script's text. `ForcedModel` lets a real server sample under
vLLM's own structured outputs, so that the text is the script's and the tokens, which may spell it in many ways, are the server's.
"""

import asyncio
import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime.chat.served_model import ServedModel
from vime.serving.reply import Listener
from vime.types import Turn

REPLY = "<|im_start|>assistant\n"
END = "<|im_end|>"
LOST = "My script has ended."
FOLDER = "{folder}"
"""Placeholder in a script for the client's working folder."""
PIECE_TOKENS = 3
TURN_STEP = 10_000
"""The logprob of a scripted token is -(turn × step + place), so that no two are equal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """The replies in one conversation, one by one. Example: `Part(marker="Who owns", replies=("Ada.",))`."""

    replies: tuple[str, ...]
    marker: str = ""
    """A text of its prompts. The first part whose marker is in a prompt is taken."""
    by_order: bool = False
    """True if its replies follow each other call by call, because the client does not show them in its prompts."""


Script = tuple[Part, ...]


def call(name: str, /, **arguments: Any) -> str:
    """A tool call as Qwen3 writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def thought(text: str, *rest: str) -> str:
    """A reply that begins with a thought."""
    return "\n".join([f"<think>\n{text}\n</think>\n", *rest])


def scripted_reply(script: Script, prompt: str, *, num_asked: int) -> str:
    """The reply to a prompt, before which the model was asked `num_asked` others."""
    part = next((part for part in script if part.marker in prompt), Part(replies=()))
    place = num_asked if part.by_order else prompt.count(REPLY) - 1
    return part.replies[place] if place < len(part.replies) else LOST


class ScriptedModel:
    """The client of a model for one session. Its replies come a few tokens at a time."""

    def __init__(self, tokenizer: Any, script: Script, *, folder: Path, max_model_len: int) -> None:
        self.tokenizer, self.max_model_len, self._script, self._folder = tokenizer, max_model_len, script, folder
        self.asked: list[tuple[list[int], Turn]] = []
        """Prompts and the replies sampled behind them."""
        self._num_calls = 0

    def served(self) -> ServedModel:
        """The model as a session calls it."""
        return ServedModel(client=self, tokenizer=self.tokenizer, max_model_len=self.max_model_len, session="scripted")

    async def generate(self, token_ids: Any, *, sampling: dict[str, Any], listener: Listener, **options: Any) -> Turn:
        """The reply of the script; see `TokenClient.generate`."""
        prompt = list(token_ids)
        said = scripted_reply(self._script, self.tokenizer.decode(prompt), num_asked=len(self.asked))
        text = said.replace(FOLDER, str(self._folder))
        turn = await self._say(prompt, text, sampling=sampling, listener=listener, **options)
        self.asked.append((prompt, turn))
        return turn

    async def _say(
        self,
        prompt: list[int],
        text: str,
        *,
        sampling: dict[str, Any],
        listener: Listener,
        **_: Any,
    ) -> Turn:
        self._num_calls += 1
        number = self._num_calls
        ends = [text.index(word) + len(word) for word in sampling.get("stop", ()) if word in text]
        ids = self.tokenizer.encode(text[: min(ends)] if ends else text + END, add_special_tokens=False)
        kept = ids[: sampling["max_tokens"]]
        logprobs = [-float(TURN_STEP * number + place) for place in range(len(kept))]
        for start in range(0, len(kept), PIECE_TOKENS):
            place = slice(start, start + PIECE_TOKENS)
            listener.received(Turn(output_ids=kept[place], logprobs=logprobs[place]))
            await asyncio.sleep(0)
        reason = "stop" if len(kept) == len(ids) else "length"
        return Turn(output_ids=kept, logprobs=logprobs, weight_versions=[1] * len(kept), finish_reason=reason)


class ForcedModel(ScriptedModel):
    """The client of a real model that is held to the script, for one session."""

    def __init__(self, client: Any, tokenizer: Any, script: Script, *, folder: Path, max_model_len: int) -> None:
        super().__init__(tokenizer, script, folder=folder, max_model_len=max_model_len)
        self._client, self._session = client, uuid.uuid4().hex

    async def _say(
        self,
        prompt: list[int],
        text: str,
        *,
        sampling: dict[str, Any],
        listener: Listener,
        **options: Any,
    ) -> Turn:
        forced = {"structured_outputs": {"choice": [text]}, **sampling}
        options["session_id"] = self._session
        return await self._client.generate(prompt, sampling=forced, listener=listener, **options)
