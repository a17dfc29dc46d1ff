"""The prompts of orchestrator and experts, with the fields of the public reproductions in our own words."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentic.toolorchestra.tiny import prompts as tiny_prompts
from vime.config import PromptStyle
from vime.thinking import after_thinking

SYSTEM = """You orchestrate tools and experts to solve a problem. In every reply call exactly one tool and never write the answer
yourself. When enough is known, call the tool answer."""
QUESTION = "Problem: {question}\n\nChoose a tool."
QUERY = """{context}Problem: {question}

Write one search query that finds what is still missing. Put it between <query> and </query>."""
PROGRAM = """{context}Problem: {question}

Think step by step about what would help. Then write one Python program that computes it and prints the result, in a block
between ```python and ```. It has no network, no files and no input."""
ANSWER = """{context}Problem: {question}

Solve the problem with what is known. Put the final answer alone between <answer> and </answer>."""
ADVICE = "{context}Problem: {question}\n\nYou are asked: {query}"
CUSTOMER_SERVICE = """<instructions>
You serve a customer as the policy says. In each reply either write a message to the customer or call tools, never both. Where a
decision is hard, call_expert lets an expert take the turn for you.
</instructions>
<policy>
{policy}
</policy>"""
PREFERENCE = "\n\nWhat the user prefers: {instruction}"
"""Added to the question or the policy if the row has an instruction."""
UNAVAILABLE = "[Expert unavailable]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompts:
    """The templates of one style."""

    system: str
    question: str
    query: str
    program: str
    answer: str
    advice: str
    customer_service: str


SETS = {
    PromptStyle.full: Prompts(
        system=SYSTEM,
        question=QUESTION,
        query=QUERY,
        program=PROGRAM,
        answer=ANSWER,
        advice=ADVICE,
        customer_service=CUSTOMER_SERVICE,
    ),
    PromptStyle.tiny: Prompts(
        system=tiny_prompts.SYSTEM,
        question=tiny_prompts.QUESTION,
        query=tiny_prompts.QUERY,
        program=tiny_prompts.PROGRAM,
        answer=tiny_prompts.ANSWER,
        advice=tiny_prompts.ADVICE,
        customer_service=tiny_prompts.CUSTOMER_SERVICE,
    ),
}

_TAGGED = re.compile(r"<(query|answer|message)>(.*?)</\1>", re.DOTALL)
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_FINAL = re.compile(r"final answer\s*(?:is|:)\s*(.+)", re.IGNORECASE)
MAX_QUERY_CHARACTERS = 200


def tagged(text: str, tag: str) -> str | None:
    """The text between the last pair of these tags, or None if there is none."""
    found = [content.strip() for name, content in _TAGGED.findall(after_thinking(text)) if name == tag and content.strip()]
    return found[-1] if found else None


def program_of(text: str) -> str | None:
    """The longest fenced program of a reply, or None if there is none."""
    blocks = [block for block in _FENCE.findall(after_thinking(text)) if block.strip()]
    return max(blocks, key=len) if blocks else None


def answer_of(text: str) -> str | None:
    """The answer in a reply: between its tags, else in its last box, else after "Final answer:"; None without any of these."""
    if found := tagged(text, "answer"):
        return found
    from vime.grading.boxed import last_boxed

    text = after_thinking(text)
    if (box := last_boxed(text)) and box.strip():
        return box.strip()
    final = _FINAL.findall(text)
    return final[-1].strip() or None if final else None


def preference_of(metadata: Mapping[str, Any]) -> str:
    """The text on the user's preference, "" if the row has none."""
    instruction = metadata.get("preference_instruction")
    return PREFERENCE.format(instruction=instruction) if instruction else ""


def without_transfer(policy: str) -> str:
    """The policy with experts in place of human agents, and `call_expert` in place of the transfer to them."""
    policy = policy.replace("transfer_to_human_agents", "call_expert")
    return re.sub(r"\bhuman agent(s?)\b", r"expert\1", policy, flags=re.IGNORECASE)
