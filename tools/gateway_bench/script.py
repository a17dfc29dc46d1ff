"""The words of the scripted engine and of the benchmark's agents: an agent that reads one file after another.

Every call of an agent adds the model's reply as it was answered and a result of its tool, as agents with tools do.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

MODEL = "actor"
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "read",
            "description": "Reads a file.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
]
REASONING = "The last part names another file, and the answer may well stand there, so I read that file before I answer."
CONTENT = "Let me look at the next file."
ARGUMENTS = '{"path": "source/part_seven/reader.py"}'
WRITTEN = (
    f"<think>\n{REASONING}\n</think>\n\n{CONTENT}\n"
    f'<tool_call>\n{{"name": "read", "arguments": {ARGUMENTS}}}\n</tool_call><|im_end|>'
)
"""The reply as Qwen3 writes it, with reasoning and one call."""
FREQUENT = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one you were"
    " all her she there would their we him been has when who will no more if out so up said what its about than into them can"
    " only other time new some could these two may first then do any like my now over such our man me even most made after also"
)
WORDS = FREQUENT.split()
"""Words that are one token each behind a blank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """One reply, in every form in which the engine sends it.

    Example: `Script(ids=[151667, 198, …], texts=["<think>", "\\n", …], message={"role": "assistant", "content": "…"})`.
    """

    ids: list[int]
    texts: list[str]
    """The text of each token; the first one begins the reasoning and has none."""
    message: dict[str, Any]
    """The reply as a message of Chat Completions."""

    def to_json(self) -> str:
        """The script as a file has it."""
        return json.dumps(asdict(self))


def script_of(tokenizer: Any) -> Script:
    """The reply in the tokens of a tokenizer."""
    ids: list[int] = tokenizer.encode(WRITTEN, add_special_tokens=False)
    message = {"role": "assistant", "content": CONTENT, "reasoning_content": REASONING, "tool_calls": [call("call_1")]}
    texts: list[str] = [tokenizer.decode([token], skip_special_tokens=True) for token in ids]
    return Script(ids=ids, texts=["", *texts[1:]], message=message)


def call(name: str) -> dict[str, Any]:
    """The tool call of the reply under an id."""
    return {"id": name, "type": "function", "function": {"name": "read", "arguments": ARGUMENTS}}


def text(source: random.Random, num_tokens: int) -> str:
    """A text of about `num_tokens` tokens."""
    return " ".join(source.choices(WORDS, k=num_tokens))


def opening(source: random.Random, num_tokens: int) -> list[dict[str, Any]]:
    """The messages before the first call of an agent."""
    system = {"role": "system", "content": f"You answer questions about a program. {text(source, num_tokens // 2)}"}
    return [system, {"role": "user", "content": f"Where is the reader made? {text(source, num_tokens // 2)}"}]


def results(reply: dict[str, Any], source: random.Random, num_tokens: int) -> Iterator[dict[str, Any]]:
    """The tool's results for each call of a reply, or another question if it called none."""
    for made in reply.get("tool_calls") or ():
        yield {"role": "tool", "tool_call_id": made["id"], "content": text(source, num_tokens)}
    if not reply.get("tool_calls"):
        yield {"role": "user", "content": text(source, num_tokens)}
