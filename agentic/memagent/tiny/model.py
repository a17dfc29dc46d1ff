"""Builds the tiny MemAgent model before any training: a tokenizer of whole words and bytes, and random Qwen weights.

    python -m agentic.memagent.tiny.model OUT_DIR [--seed 0]

OUT_DIR is then a Hugging Face checkpoint folder that vLLM, transformers and the Megatron trainer open.
"""

import re

from transformers import Qwen2Tokenizer

from agentic.memagent import prompts
from agentic.memagent.tiny import task as tiny_task
from vime.tiny import tiny_model

# Words of the model's own replies, see demonstrations.py.
REPLY_WORDS = "Notes:\nLatest: The\nunknown \\boxed{}. {unknown}"


def _words() -> list[str]:
    """Return the words that become single tokens, each once."""
    names = tiny_task.ESTATES + tiny_task.PEOPLE + tiny_task.CITIES
    texts = [prompts.MEMORY_PROMPT, prompts.FINAL_PROMPT, prompts.SINGLE_TURN_PROMPT, prompts.NO_MEMORY, REPLY_WORDS]
    texts += [tiny_task.QUESTION, tiny_task.OWNER_FACT, tiny_task.HOME_FACT, tiny_task.DOCUMENT]
    texts += [tiny_task.owner_document("", "")[0], tiny_task.home_document("", "")[0]]
    words = {word for text in texts for word in re.findall(r" ?[A-Za-z]+", text)}
    punctuation = [".\n", ".\n\n", ":\n", ">\n\n", ">\n", "\n\n", "</", "?\n"]
    words |= {"system", "user", "assistant"}
    return sorted(words) + punctuation + [f" {name}" for name in names] + list(tiny_task.CITIES)


def build_tokenizer() -> Qwen2Tokenizer:
    """Return the tokenizer in which every word of the task is one token."""
    return tiny_model.build_tokenizer(_words())


if __name__ == "__main__":
    tiny_model.run_as_program(__doc__, build_tokenizer)
