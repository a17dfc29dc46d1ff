"""Odd replies through the gateway: 10,000 of them from a grammar, by all protocols, whole and streamed, sent back as clients do.

python tools/odd_replies.py                       prints what was wrong, and ends with 1 if anything was
python tools/odd_replies.py --replies 300 --seed 1 --json PATH --markdown PATH

No reply may lose an attempt, a stream shows the same as a whole answer, every sampled token is trained once behind the prompt
that the model saw, turns are closed as the template closes them, and nothing that the model wrote disappears.
"""

import argparse
import asyncio
import json
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from bench_rows import Result, circumstances
from client_audit import audit
from fetch_qwen3_tokenizer import fetched
from odd_grammar import Odd, odd_reply
from odd_protocols import PROTOCOLS, Shown

from vime.chat.reply_reader import ReplyReader
from vime.chat.served_model import ServedModel
from vime.gateway.gateway import Gateway
from vime.gateway.session import AgentSession
from vime.model.load_tokenizer import load_tokenizer
from vime.serving.reply import Listener
from vime.types import Sample, Turn

END = "<|im_end|>"
"""The template's own end of a turn."""
TURNS = 5
"""Replies of a conversation."""
ALLOWED_FORKS = {"thinking_dropped", "template_rewrites"}
"""New sequences that the chat template demands; every other one means that a reply was not recognized."""
LLAMA = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
    '{{ \'{"name": "\' + m.tool_calls[0].function.name + \'", "parameters": \' }}'
    "{{ m.tool_calls[0].function.arguments | tojson }}{{ '}' }}"
    "{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""A template like Llama's: JSON without a mark, one call at a time, and no text beside it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """A chat template with the parsers of its model."""

    name: str
    tool_parser: str | None = "hermes"
    reasoning_parser: str | None = "qwen3"
    template: dict[str, Any] = field(default_factory=dict)
    """Arguments of the template."""
    call: str = "hermes"
    """The way in which calls are written."""
    chat_template: str = ""
    thinks: bool = True
    """True if replies begin with reasoning."""


SETUPS = (
    Setup(name="hermes, qwen3"),
    Setup(name="hermes, qwen3; the prompt ends the thinking", template={"enable_thinking": False}, thinks=False),
    Setup(name="hermes", reasoning_parser=None, thinks=False),
    Setup(name="hermes, deepseek_r1", reasoning_parser="deepseek_r1"),
    Setup(name="qwen3_coder, qwen3", tool_parser="qwen3_coder", call="xml"),
    Setup(name="llama3_json", tool_parser="llama3_json", reasoning_parser=None, call="llama", chat_template=LLAMA, thinks=False),
)


MOST_TOKENS = 200_000


class OddModel:
    """A model that says given token ids, in pieces of random sizes; the logprob of a token tells its turn and place."""

    def __init__(self, tokenizer: Any, template: dict[str, Any], replies: list[tuple[list[int], bool]], seed: int) -> None:
        self.tokenizer, self._template, self._replies = tokenizer, template, replies
        self._draw = random.Random(seed)
        self.asked: list[tuple[list[int], Turn]] = []

    def served(self) -> ServedModel:
        """The model as a session calls it."""
        return ServedModel(
            client=self, tokenizer=self.tokenizer, max_model_len=MOST_TOKENS, session="odd", chat_template_args=self._template
        )

    async def generate(self, token_ids: Any, *, listener: Listener, **_: Any) -> Turn:
        """The next reply."""
        ids, is_cut = self._replies[len(self.asked)]
        logprobs = [-float(10_000 * (len(self.asked) + 1) + place) for place in range(len(ids))]
        reason = "length" if is_cut else "stop"
        turn = Turn(output_ids=ids, logprobs=logprobs, weight_versions=[1] * len(ids), finish_reason=reason)
        self.asked.append((list(token_ids), turn))
        start = 0
        while start < len(ids):
            end = start + self._draw.choice((1, 1, 2, 3, 7, 40))
            listener.received(Turn(output_ids=ids[start:end], logprobs=logprobs[start:end]))
            start = end
            await asyncio.sleep(0)
        return turn


@dataclass(kw_only=True, slots=True)
class Findings:
    """Findings about all replies. Example: `Findings(num_replies=300, problems=[])`."""

    num_replies: int = 0
    num_requests: int = 0
    num_tokens: int = 0
    """Trained tokens."""
    num_tagged: int = 0
    """Replies with an opened, unclosed or nested tag or call."""
    num_calls: int = 0
    """Calls that were shown."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Number of replies by their oddity; one may count several times."""
    refused: Counter[str] = field(default_factory=Counter)
    """Requests that the chat template refused, by set-up."""
    problems: list[str] = field(default_factory=list)


class Bench:
    """A gateway, and the tokenizers and readers of all set-ups."""

    def __init__(self, http: aiohttp.ClientSession, gateway: Gateway) -> None:
        self._http, self._gateway = http, gateway
        self._made: dict[str, tuple[Any, ReplyReader]] = {}

    async def conversation(self, setup: Setup, odds: list[Odd], seed: int, found: Findings) -> None:
        """Plays one conversation by all protocols, whole and streamed, and compares the shown replies."""
        tokenizer, reader = self._of(setup)
        replies = [(odd.ids(tokenizer, END), odd.is_cut) for odd in odds]
        for name, protocol in PROTOCOLS.items():
            seen: list[list[Shown]] = []
            for stream in (False, True):
                model = OddModel(tokenizer, setup.template, replies, seed)
                session = AgentSession(model=model.served(), reader=reader)
                self._gateway.open(session)
                where = f"{setup.name}, {name}, {'streamed' if stream else 'whole'}, seed {seed}"
                client = protocol(self._http, session, stream=stream, draw=random.Random(seed))
                shown: list[Shown] = []
                for place, odd in enumerate(odds):
                    status, reply = await client.ask(f"question {place}")
                    found.num_requests += 1
                    if status != 200:
                        if "chat template" in str(reply) and session.failure is None:
                            found.refused[setup.name] += 1
                        else:
                            found.problems.append(f"{where}: status {status} after {odds[max(place - 1, 0)].text!r}: {reply}")
                        break
                    shown.append(reply)
                    found.num_calls += len(reply.calls)
                    found.problems += [
                        f"{where}: {odd.text!r}: {what}" for what in wrong(odd, reply, setup, tokenizer, replies[place][0])
                    ]
                found.problems += [
                    f"{where}: {what}" for what in _wrong_session(session, model, tokenizer, found, silent=client.is_silent)
                ]
                self._gateway.close(session)
                seen.append(shown)
            for odd, one, other in zip(odds, *seen):
                if one != other:
                    found.problems.append(f"{setup.name}, {name}, seed {seed}: {odd.text!r}: whole {one}, streamed {other}")

    def _of(self, setup: Setup) -> tuple[Any, ReplyReader]:
        if setup.name not in self._made:
            tokenizer = load_tokenizer(fetched())
            if setup.chat_template:
                tokenizer.chat_template = setup.chat_template
                tokenizer.add_special_tokens(
                    {"additional_special_tokens": ["<|python_tag|>"]}, replace_extra_special_tokens=False
                )
            reader = ReplyReader(tokenizer, tool_parser=setup.tool_parser, reasoning_parser=setup.reasoning_parser)
            self._made[setup.name] = (tokenizer, reader)
        return self._made[setup.name]


def _wrong_session(session: AgentSession, model: OddModel, tokenizer: Any, found: Findings, *, silent: bool) -> Iterator[str]:
    """Errors in the sequences that would be trained, and in the prompts."""
    if session.failure is not None:
        yield f"the attempt is lost: {session.failure!r}"
        return
    audited = audit(session, session.samples(Sample()), model.asked)
    found.num_tokens += audited.num_tokens
    yield from audited.problems
    if (forks := set(audited.forks) - ALLOWED_FORKS) and not silent:
        yield f"a reply was not recognized when it came back: {sorted(forks)}"
    (closed,) = tokenizer.encode(END, add_special_tokens=False)
    for (prompt, turn), (following, _) in zip(model.asked, model.asked[1:]):
        whole = [*prompt, *turn.output_ids]
        if following[: len(whole)] == whole and closed not in (*turn.output_ids[-1:], following[len(whole)]):
            yield f"the turn is not closed: {tokenizer.decode(turn.output_ids)!r} {tokenizer.decode(following[len(whole) :])!r}"


def wrong(odd: Odd, shown: Shown, setup: Setup, tokenizer: Any, ids: list[int]) -> Iterator[str]:
    """Differences between a reply as it is shown and the grammar's knowledge of it."""
    if shown.torn:
        yield f"the events of the stream do not add up: {shown.torn}"
    if not setup.thinks and shown.reasoning:
        yield f"the reasoning {shown.reasoning!r}, where no reasoning begins"
    if setup.thinks and odd.never_ends and (shown.content or shown.calls):
        yield f"an answer behind thinking that was never closed: {shown.content!r} {shown.calls}"
    if odd.calls is not None and shown.calls != odd.calls:
        yield f"calls {shown.calls} in place of {odd.calls}"
    if not shown.calls:
        said = tokenizer.decode(ids, skip_special_tokens=True)
        marks = ("<think>", "</think>") if setup.thinks else ()
        left, right = bare(said, marks), bare(tokenizer_text(tokenizer, shown.reasoning + shown.content), marks)
        if left != right:
            yield f"{left!r} was said, {right!r} is shown"


def tokenizer_text(tokenizer: Any, text: str) -> str:
    """A text without special tokens."""
    for word in tokenizer.all_special_tokens:
        text = text.replace(word, "")
    return text


def bare(text: str, marks: tuple[str, ...]) -> str:
    """A text without white space and these marks."""
    for mark in marks:
        text = text.replace(mark, "")
    return "".join(text.split())


async def played(num_replies: int, seed: int, *, show: bool = False) -> Findings:
    """Plays conversations until there were `num_replies` replies."""
    found, draw = Findings(), random.Random(seed)
    gateway = Gateway()
    await gateway.start()
    try:
        async with aiohttp.ClientSession() as http:
            bench = Bench(http, gateway)
            while found.num_replies < num_replies:
                setup = SETUPS[found.num_replies // TURNS % len(SETUPS)]
                odds = [
                    odd_reply(draw, thinks=setup.thinks, call=setup.call)
                    for _ in range(min(TURNS, num_replies - found.num_replies))
                ]
                await bench.conversation(setup, odds, draw.randrange(2**31), found)
                found.num_replies += len(odds)
                found.num_tagged += sum(odd.is_tagged for odd in odds)
                for odd in odds:
                    found.kinds.update(odd.kinds)
                if show and found.num_replies % 500 == 0:
                    sys.stderr.write(f"{found.num_replies} replies, {len(found.problems)} problems\n")
    finally:
        await gateway.stop()
    return found


def page(found: Findings, rows: dict[str, Any]) -> str:
    """The results as a page."""
    lines = [
        "# Odd replies",
        "Replies from a grammar through the gateway by Chat Completions, Responses and Messages, whole and streamed, each sent "
        "back as clients do (reasoning trimmed or dropped, `null` for no content, arguments written anew). "
        "`tools/odd_replies.py` makes this page. A problem would be a lost attempt, a stream that shows something else than the "
        "whole answer, a token that is not trained exactly once, a turn that is not closed, a call that is lost or invented, an "
        "answer behind thinking that never ended, a reply that is not recognized when it comes back, or text that disappears. ",
        "",
        *[f"- {line}" for line in rows["circumstances"]],
        "",
        "| | |",
        "|---|--:|",
        *[f"| {name} | {value:,} |" for name, value in rows["counts"].items()],
        "",
        "| what is odd | replies |",
        "|---|--:|",
        *[f"| {name} | {value:,} |" for name, value in rows["kinds"].items()],
        "",
        "Parsers: " + "; ".join(f"`{setup.name}`" for setup in SETUPS) + ".",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replies", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    start, result = time.monotonic(), Result(title="Odd replies")
    found = asyncio.run(played(asked.replies, asked.seed, show=True))
    counts = {
        "replies": found.num_replies,
        "with an opened, unclosed or nested tag or call": found.num_tagged,
        "requests": found.num_requests,
        "trained tokens": found.num_tokens,
        "calls shown": found.num_calls,
        "conversations that a chat template refused": sum(found.refused.values()),
        "problems": len(found.problems),
        "seconds": round(time.monotonic() - start),
    }
    rows = {
        "circumstances": circumstances(result),
        "seed": asked.seed,
        "counts": counts,
        "kinds": dict(sorted(found.kinds.items())),
        "problems": found.problems[:20],
    }
    for what in found.problems[:20]:
        sys.stdout.write(f"{what}\n")
    sys.stdout.write(f"{counts}\n{dict(found.kinds)}\n{dict(found.refused)}\n")
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    if asked.markdown:
        asked.markdown.write_text(page(found, rows))
    return int(bool(found.problems))


if __name__ == "__main__":
    sys.exit(main())
