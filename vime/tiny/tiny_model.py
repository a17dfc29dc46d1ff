"""The common parts of the methods' tiny models: chat template, a tokenizer of whole words and bytes, random Qwen weights."""

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from transformers import Qwen2Tokenizer

if TYPE_CHECKING:
    from transformers import Qwen2Config, Qwen2ForCausalLM

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
ROLES = ("system", "user", "assistant")
"""Names in the chat templates."""
MAX_POSITIONS = 4096
NUM_TOKENS = 1024
"""Rows of embedding and head, as in `conf/model/tiny.yaml`; no tokenizer may have more tokens."""

CHAT_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n' }}
    {{- 'You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments ' }}
    {{- 'within <tool_call></tool_call> XML tags:\\n<tool_call>\\n' }}
    {{- '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + (message.content or '') }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- set call = tool_call.function or tool_call %}
            {%- if not loop.first or message.content %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
SHORT_CHAT_TEMPLATE = """\
{%- if tools or messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content }}{%- endif %}
    {%- for tool in tools or [] %}
        {{- ' ' + tool.function.name }}
        {%- for parameter in tool.function.parameters.properties.values() %}
            {%- for value in parameter.enum or [] %}{{- ' ' + value }}{%- endfor %}
        {%- endfor %}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role != 'system' %}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- set call = tool_call.function or tool_call %}
            {%- if not loop.first or message.content %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
"""Chat template that shows a tool by its name and the values of its enumerations only, because descriptions would be too long."""


def build_tokenizer(words: Iterable[str], *, chat_template: str = CHAT_TEMPLATE) -> Qwen2Tokenizer:
    """Return the byte-level BPE tokenizer: each of `words` is a single token, all other text falls back to bytes.

    Qwen's pre-tokenizer is applied first: it splits numbers into digits and keeps one space or sign before a word.
    """
    special_tokens = [AddedToken(token, special=True, normalized=False) for token in (PAD, START, END)]
    special_tokens += [AddedToken(token, special=False, normalized=False) for token in MARKERS]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = Qwen2Tokenizer().backend_tokenizer.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=4096,  # never reached: merging ends when every word is one token
        min_frequency=1,
        special_tokens=special_tokens,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(words, trainer)
    trained = json.loads(backend.to_str())["model"]
    make_tokenizer: Any = Qwen2Tokenizer  # its annotations are narrower than what it takes
    tokenizer = make_tokenizer(
        vocab=trained["vocab"],
        merges=[tuple(merge) for merge in trained["merges"]],
        unk_token=None,
        pad_token=PAD,
        eos_token=END,
        extra_special_tokens=[START],
        model_max_length=MAX_POSITIONS,
        chat_template=chat_template,
    )
    tokenizer.add_tokens(special_tokens[3:])
    return tokenizer


def tokenizer_of_texts(texts: Iterable[str]) -> Qwen2Tokenizer:
    """Return the tokenizer of a task from its texts: one token for each of their words, and the short chat template."""
    return build_tokenizer(words_of([*texts, *ROLES]), chat_template=SHORT_CHAT_TEMPLATE)


def words_of(texts: Iterable[str]) -> list[str]:
    """Return the pieces into which Qwen's pre-tokenizer cuts texts, each once, for `build_tokenizer`."""
    cutter: Any = Qwen2Tokenizer().backend_tokenizer.pre_tokenizer
    return sorted({text[start:end] for text in set(texts) for _, (start, end) in cutter.pre_tokenize_str(text)})


def build_config(tokenizer: Qwen2Tokenizer, *, num_layers: int = 2) -> "Qwen2Config":
    """Return a Qwen2-shaped configuration of about 0.6 million parameters."""
    from transformers import Qwen2Config

    vocabulary = tokenizer.get_vocab()
    assert len(tokenizer) <= NUM_TOKENS, f"{len(tokenizer)} tokens do not fit into {NUM_TOKENS}"
    return Qwen2Config(
        vocab_size=NUM_TOKENS,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        tie_word_embeddings=False,
        pad_token_id=vocabulary[PAD],
        bos_token_id=None,
        eos_token_id=vocabulary[END],
        dtype="float32",
    )


def build_model(tokenizer: Qwen2Tokenizer, *, seed: int = 0) -> "Qwen2ForCausalLM":
    """Return the untrained model in float32, with attention heads that look up facts; the weights depend on the seed only."""
    import torch
    from transformers import GenerationConfig, Qwen2ForCausalLM

    from vime.tiny.lookup_heads import start_with_lookup_heads

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(build_config(tokenizer))
        start_with_lookup_heads(model)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True, temperature=1.0
    )
    return model


def write_checkpoint(
    out_dir: Path, tokenizer: Qwen2Tokenizer, *, seed: int = 0, make_model: Callable[..., "Qwen2ForCausalLM"] = build_model
) -> None:
    """Write tokenizer, configuration and random weights to a folder."""
    make_model(tokenizer, seed=seed).save_pretrained(out_dir)
    tokenizer.save_pretrained(out_dir)


def run_as_program(
    description: str | None,
    make_tokenizer: Callable[[], Qwen2Tokenizer],
    make_model: Callable[..., "Qwen2ForCausalLM"] = build_model,
) -> None:
    """Read the command line, `OUT_DIR [--seed 0]`, and write the checkpoint."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write_checkpoint(arguments.out_dir, make_tokenizer(), seed=arguments.seed, make_model=make_model)
