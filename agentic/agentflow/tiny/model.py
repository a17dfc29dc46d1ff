"""Builds the start of AgentFlow's two tiny models: a tokenizer of whole words and bytes, and random Qwen weights.

    python -m agentic.agentflow.tiny.model OUT_DIR [--seed 0]

OUT_DIR is then a Hugging Face checkpoint folder that vLLM, transformers and the Megatron trainer open.
"""

import re

from transformers import Qwen2Tokenizer

from agentic.agentflow.tiny import catalogue, prompts
from agentic.agentflow.tiny import task as tiny_task
from vime.tiny import tiny_model

REPLY_WORDS = (
    "Context: none\nSub-Goal: Compute\nTool Name: Plan: Tools: first then coins pays nothing found"
    " Conclusion: STOP CONTINUE unknown error says\n"
    'execution = tool.execute(query=""" """)\n ```python\nprint( )\n``` \\boxed{ }'
)
"""Words of the models' replies and of the steps that they read, see `demonstrations.py`."""


def _words() -> list[str]:
    """Return the words that become single tokens."""
    texts = [
        *(prompts.PLAN, prompts.NEXT_STEP, prompts.EXECUTOR, prompts.VERIFIER, prompts.FINAL),
        *(prompts.SINGLE_TURN, prompts.CODER, REPLY_WORDS),
        *(*tiny_task.QUESTIONS.values(), tiny_task.LOOKUP_GOAL, tiny_task.COMPUTE_GOAL, prompts.LONG_RESULT),
        *(f" {name}" for name in (tiny_task.LOOKUP, tiny_task.PYTHON, tiny_task.GENERATOR)),
    ]
    words = {word for text in texts for word in re.findall(r" ?[A-Za-z]+", text)} | {
        "system",
        "user",
        "assistant",
        " How",
        " Question",
        "Query",
    }
    signs = [*tiny_task.SIGNS, "=", "?", ";", '"""', ")", "}", "\\", "```"]
    words |= {f" {name}" for name in (*catalogue.GOODS, *catalogue.TOWNS, *signs)}
    words |= {'="""', "```", "\\", ":", '""")', "{", "}", "."}
    return sorted(words)


def build_tokenizer() -> Qwen2Tokenizer:
    """Return the tokenizer in which every word of the task is one token."""
    return tiny_model.build_tokenizer(_words())


if __name__ == "__main__":
    tiny_model.run_as_program(__doc__, build_tokenizer)
