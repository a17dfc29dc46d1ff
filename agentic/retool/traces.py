"""Code-integrated traces for the cold start (arXiv 2504.11536, section 2.2): the layout of ReTool-SFT, for `algorithm=sft`.

A row has two messages: a problem within the authors' prompt, and a response with `<code>` and `<interpreter>` blocks. All of the
response is learned but the interpreter's output, which is encoded as `generate` adds it. VIME_RETOOL_TRACES names the file.
"""

import os
import random
import re
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from agentic.retool.prompts import CODE, INTERPRETED
from vime.config import DatasetConfig
from vime.data.dataset import load_rows
from vime.errors import ConfigError, Problem
from vime.tiny.demonstration import Demonstration, filled
from vime.trajectory.plain_text import control_tokens, render
from vime.types import Sample

VARIABLE, DEFAULT = "VIME_RETOOL_TRACES", "data/retool_sft.jsonl"
MARK = "*user question:*"
"""The mark before the problem in the authors' prompt."""
_INSTRUCTION = re.compile(r"^Answer the following Math Problem[^\n]*\n|Remember to place the final answer.*", re.DOTALL)
_INTERPRETED = re.compile(r"\s*<interpreter>\n?(.*?)\n?</interpreter>\s*", re.DOTALL)


def demonstration_of(prompt: str, response: str, *, tokenizer: Any) -> Demonstration:
    """A trace as tokens; all of the response but the output of programs is learned, including its end."""
    token_ids = render(tokenizer, [{"role": "user", "content": prompt}])
    loss_mask = [0] * len(token_ids)
    for number, text in enumerate(_INTERPRETED.split(response)):
        is_output = number % 2 == 1
        if is_output:
            ids = control_tokens(tokenizer).encode_plain(INTERPRETED.format(output=text))
        else:
            ids = tokenizer.encode(text, add_special_tokens=False)
        token_ids += ids
        loss_mask += [int(not is_output)] * len(ids)
    return Demonstration(token_ids=[*token_ids, tokenizer.eos_token_id], loss_mask=[*loss_mask, 1])


def problem_of(prompt: str) -> str:
    """The problem in the authors' prompt, without their instructions."""
    return _INSTRUCTION.sub("", prompt.rpartition(MARK)[2].strip()).strip()


def demonstrations(tokenizer: PreTrainedTokenizerBase, step: int, num_steps: int, num_tokens: int, seed: int) -> list[Sample]:
    """The batch of one step: traces of about num_tokens tokens, drawn at random."""
    traces = read_traces(os.environ.get(VARIABLE, DEFAULT))
    drawn = iter(random.Random(f"retool traces/{seed}/{step}").sample(traces, len(traces)))

    def one() -> list[Demonstration]:
        problem, response = next(drawn)
        return [demonstration_of(CODE.format(problem=problem), response, tokenizer=tokenizer)]

    return filled(one, num_tokens=num_tokens)


@lru_cache(maxsize=1)
def read_traces(file: str) -> list[tuple[str, str]]:
    """Problems and responses. Raises ConfigError if the file does not hold rows of two messages."""
    rows = load_rows(DatasetConfig(name="traces", path=file), key="data.demonstrations")
    found = []
    for number, row in enumerate(rows):
        messages = row.get("messages") or []
        if [message["role"] for message in messages] != ["user", "assistant"]:
            remedy = f"row {number} is not a user's message and a reply: set {VARIABLE} to a file in the layout of ReTool-SFT"
            raise ConfigError([Problem(key="data.demonstrations", value=file, remedy=remedy)])
        found.append((problem_of(messages[0]["content"]), messages[1]["content"]))
    return found
