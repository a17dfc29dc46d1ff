"""Generated demonstrations for the supervised training of the tiny database model.

The first part of the curriculum teaches the model to ask the right table, to continue from a result to the next query, and to
answer with the last result; questions that need one query are about all people and prices. The last part teaches bad habits:
asking for another person or thing, answering with the first result, and guessing. So the model is sometimes right, and
reinforcement learning can improve it. A batch depends on the seed and the step only.
"""

import json
import random
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from agentic.database.agents.database import SYSTEM, TABLES, TOOL, query
from agentic.database.agents.openai_sdk import TOOLS
from agentic.database.task import PEOPLE, THINGS, Question, sample_question, select
from vime.data.split import EVALUATION_SHARE
from vime.tiny.demonstration import DemonstratedConversation, encode_conversation, filled
from vime.types import Message, Sample

HABIT_PROGRESS = 0.8
"""The progress at which the last part begins."""
LOOKUP_SHARE = 0.3
"""Questions that need one query only, which are also about people and prices of the evaluation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """The share of right ones of each decision. Shares(asks=0.7, right_query=0.8, goes_on=0.5, reads=0.8)"""

    asks: float
    right_query: float
    goes_on: float
    reads: float


SKILL = Shares(asks=0.98, right_query=0.96, goes_on=0.97, reads=0.98)
HABITS = Shares(asks=0.75, right_query=0.85, goes_on=0.5, reads=0.8)


def conversation(question: Question, rng: random.Random, *, shares: Shares) -> list[Message]:
    """One conversation about a question, with the database's replies to its queries."""
    row = {table: getattr(question, table) for table in TABLES}
    messages: list[Message] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question.text}]
    found = ""
    for number, right in enumerate(question.queries):
        if rng.random() >= (shares.goes_on if number else shares.asks):
            break
        is_right = rng.random() < shares.right_query
        sql = right if is_right else wrong_query(rng)
        found = query(row, sql)
        messages += [{"role": "assistant", "content": call_text(sql)}, {"role": "tool", "content": found}]
        if not is_right:
            break
    answer = found if found and rng.random() < shares.reads else guess(question, rng)
    return [*messages, {"role": "assistant", "content": answer}]


def lookup(rng: random.Random) -> list[Message]:
    """A question that one query answers, about any person, thing or price."""
    question = sample_question(rng, split="eval" if rng.random() < EVALUATION_SHARE else "train")
    thing, price = question.thing, question.prices[question.thing]
    text, sql = rng.choice(
        [
            (f"What does {question.name} own ?", select("thing", "owners", "name", question.name)),
            (f"Who owns the {thing} ?", select("name", "owners", "thing", thing)),
            (f"What costs {price} ?", select("thing", "prices", "price", price)),
            (f"What does the {thing} cost ?", select("price", "prices", "thing", thing)),
        ]
    )
    found = query({table: getattr(question, table) for table in TABLES}, sql)
    messages: list[Message] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    messages += [{"role": "assistant", "content": call_text(sql)}, {"role": "tool", "content": found}]
    return [*messages, {"role": "assistant", "content": found}]


def call_text(sql: str) -> str:
    """A tool call as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': TOOL, 'arguments': {'sql': sql}})}\n</tool_call>"


def wrong_query(rng: random.Random) -> str:
    """A query for something else."""
    if rng.random() < 0.5:
        return select("thing", "owners", "name", rng.choice(PEOPLE))
    return select("price", "prices", "thing", rng.choice(THINGS))


def guess(question: Question, rng: random.Random) -> str:
    """An answer of the right kind."""
    return str(rng.randrange(10, 100)) if question.kind == "price" else rng.choice(list(question.owners))


def texts() -> list[str]:
    """Texts that the model reads and writes, from which the vocabulary is made."""
    rng = random.Random("vocabulary")
    spoken = [f" {word}" for word in (*PEOPLE, *THINGS)] + [*PEOPLE, *THINGS, *(f"'{word}'" for word in (*PEOPLE, *THINGS))]
    questions = [sample_question(rng, split="train") for _ in range(200)]
    conversations = [*(conversation(one, rng, shares=HABITS) for one in questions), *(lookup(rng) for _ in questions)]
    return spoken + [message["content"] for messages in conversations for message in messages]


def demonstrations(tokenizer: PreTrainedTokenizerBase, step: int, num_steps: int, num_tokens: int, seed: int) -> list[Sample]:
    """Return the batch of one step of num_steps, about num_tokens tokens."""
    rng = random.Random(f"database/{seed}/{step}")
    shares = HABITS if step / num_steps >= HABIT_PROGRESS else SKILL

    def make() -> DemonstratedConversation:
        is_lookup = rng.random() < LOOKUP_SHARE
        messages = lookup(rng) if is_lookup else conversation(sample_question(rng, split="train"), rng, shares=shares)
        return DemonstratedConversation(messages=messages, tools=TOOLS)

    return filled(lambda: [encode_conversation(make(), tokenizer=tokenizer)], num_tokens=num_tokens)
