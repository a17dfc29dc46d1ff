"""The experts that a question's tools offer, with aliases and prices, and the tool schemas that describe them."""

import random
from dataclasses import replace
from typing import Any

from agentic.toolorchestra.config import ToolOrchestraConfig
from agentic.toolorchestra.settings import ExpertConfig

Offered = dict[str, dict[str, ExpertConfig]]
"""Experts by tool and alias."""
SEARCH, ENHANCE_REASONING, ANSWER, CALL_EXPERT = "search", "enhance_reasoning", "answer", "call_expert"
DESCRIPTIONS = {
    SEARCH: "An expert writes a query and the passages that it finds are shown.",
    ENHANCE_REASONING: "An expert reasons and writes a Python program, which is run; its output is shown.",
    ANSWER: "An expert gives the final answer from the problem and all that was found. This ends the work.",
    CALL_EXPERT: "Asks an expert.",
}
ALIAS = {SEARCH: "model", ENHANCE_REASONING: "model", ANSWER: "model", CALL_EXPERT: "expert"}
"""The argument of each tool that names the expert."""


def offer(method: ToolOrchestraConfig, question: str, *, seed: int) -> Offered:
    """The experts for one question: those of the configuration, randomized as `randomization` says.

    All rollouts of a question get the same offer, so that their rewards are comparable.
    """
    rng = random.Random(f"{seed}/{question}")
    how, tools = method.randomization, method.tools
    found: Offered = {}
    lists = {SEARCH: tools.search, ENHANCE_REASONING: tools.enhance_reasoning, ANSWER: tools.answer}
    for tool, aliases in {**lists, CALL_EXPERT: tools.call_expert}.items():
        experts = [method.experts[alias] for alias in aliases]
        if how.shuffle_aliases:
            rng.shuffle(experts)
        pairs = list(zip(aliases, experts))
        if 0 < how.num_aliases < len(pairs):
            pairs = sorted(rng.sample(pairs, how.num_aliases), key=lambda pair: aliases.index(pair[0]))
        if pairs:
            found[tool] = {alias: _repriced(expert, how.price_factor, rng) for alias, expert in pairs}
    return found


def _repriced(expert: ExpertConfig, factor: float, rng: random.Random) -> ExpertConfig:
    if factor <= 1:
        return expert
    times = factor ** rng.uniform(-1.0, 1.0)
    return replace(
        expert,
        dollars_per_million_input_tokens=expert.dollars_per_million_input_tokens * times,
        dollars_per_million_output_tokens=expert.dollars_per_million_output_tokens * times,
    )


def question_schemas(offered: Offered) -> list[dict[str, Any]]:
    """The tools of the question-answering mode, in OpenAI's form."""
    query = {"query": {"type": "string", "description": "what the expert is asked"}}
    return [schema(tool, experts, extra=query if tool == CALL_EXPERT else {}) for tool, experts in offered.items()]


def schema(tool: str, experts: dict[str, ExpertConfig], *, extra: dict[str, Any] | None = None) -> dict[str, Any]:
    """The schema of one tool; the alias argument's description states every expert's strengths, prices and latency."""
    alias = {"type": "string", "enum": list(experts), "description": table(experts)}
    properties = {ALIAS[tool]: alias, **(extra or {})}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": tool, "description": DESCRIPTIONS[tool], "parameters": parameters}}


def table(experts: dict[str, ExpertConfig]) -> str:
    """A sentence about each expert, then a table of prices and latencies."""
    sentences = [f"{alias}: {expert.strengths}" for alias, expert in experts.items() if expert.strengths]
    lines = [
        f"{alias} | ${expert.dollars_per_million_input_tokens:g} | ${expert.dollars_per_million_output_tokens:g} | "
        f"{expert.seconds:g} s"
        for alias, expert in experts.items()
    ]
    head = "model | $ per million tokens in | $ per million tokens out | average latency"
    return "\n".join([*sentences, head, *lines])
