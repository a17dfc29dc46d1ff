"""Initializes a two-layer model with attention heads that look up facts, so that lookups are learned within half a minute.

From random weights, a model of this size still guesses after a hundred seconds of training on the same lookups, until its
attention has learned to copy (induction heads, Olsson et al. 2022, arXiv 2209.11895). Here two heads of the first layer write the
tokens one and two positions back into the residual stream; heads of the second layer match them with the current or the previous
token and copy what they find. Training may change all of these weights.
"""

import math
from typing import Any

import torch
from transformers import Qwen2ForCausalLM

EMBEDDING_SCALE = 0.3
HEAD_SCALE = 0.1
SHARPNESS = 7.0
"""Bias of queries and keys, for which the attention to the intended position is above 0.9."""
MATCH_SCALE = 3.0
WEAK_MATCH = 0.3
FIRST_SLOW_PAIR = 6
"""First rotary pair that rotates too slowly to disturb a match within a few hundred tokens (theta 1e6, 32 dimensions)."""


def start_with_lookup_heads(model: Qwen2ForCausalLM) -> None:
    """Sets the attention of layers 0 and 1, the embedding and the head; the model must have four query and two key heads."""
    config = model.config
    hidden = config.hidden_size
    head_dim = hidden // config.num_attention_heads
    assert (config.num_attention_heads, config.num_key_value_heads) == (4, 2), "four query and two key heads"
    bases, _ = torch.linalg.qr(torch.randn(hidden, 2 * head_dim))
    one_before, two_before = bases[:, :head_dim], bases[:, head_dim:]
    reading = torch.randn(head_dim, hidden) / math.sqrt(hidden)
    with torch.no_grad():
        embedding = model.model.embed_tokens.weight.normal_(0, EMBEDDING_SCALE)
        model.lm_head.weight.copy_(embedding * (HEAD_SCALE / EMBEDDING_SCALE))
        _write_down_previous_tokens(model, reading, [one_before, two_before])
        _match_and_copy(model, reading, one_before, two_before)


def _write_down_previous_tokens(model: Qwen2ForCausalLM, reading: torch.Tensor, writings: list[torch.Tensor]) -> None:
    """Layer 0: head h attends to the token h + 1 positions back by biases alone, and writes its value into a subspace."""
    attention: Any = model.model.layers[0].self_attn
    head_dim, half = reading.shape[0], reading.shape[0] // 2
    rope_parameters: Any = model.config.rope_parameters
    theta = rope_parameters["rope_theta"]
    frequencies = theta ** (-torch.arange(FIRST_SLOW_PAIR) * 2 / head_dim)  # slower ones cannot tell neighbours apart
    attention.k_proj.bias[:FIRST_SLOW_PAIR] = SHARPNESS
    attention.v_proj.weight[:head_dim] = reading
    for head, writing in enumerate(writings):
        angle, start = frequencies * (head + 1), head * head_dim
        attention.q_proj.bias[start : start + FIRST_SLOW_PAIR] = SHARPNESS * torch.cos(angle)
        attention.q_proj.bias[start + half : start + half + FIRST_SLOW_PAIR] = -SHARPNESS * torch.sin(angle)
        attention.o_proj.weight[:, start : start + head_dim] = writing * (2 * EMBEDDING_SCALE)


def _match_and_copy(model: Qwen2ForCausalLM, reading: torch.Tensor, one_before: torch.Tensor, two_before: torch.Tensor) -> None:
    """Layer 1: in "A B … A" it finds B by the token one position before B, in "A is B … A is" by the one two positions before."""
    attention: Any = model.model.layers[1].self_attn
    head_dim, half = reading.shape[0], reading.shape[0] // 2
    slow = [*range(FIRST_SLOW_PAIR, half), *range(half + FIRST_SLOW_PAIR, head_dim)]
    copying, _ = torch.linalg.qr(torch.randn(reading.shape[1], 2 * head_dim))
    attention.q_proj.weight.mul_(0.2)
    attention.k_proj.weight.mul_(0.2)
    for pair, (query, key) in enumerate([(reading.T, one_before), (one_before, two_before)]):
        values = copying[:, pair * head_dim : (pair + 1) * head_dim]
        attention.v_proj.weight[pair * head_dim : (pair + 1) * head_dim] = values.T
        for column, row in enumerate(slow):
            attention.k_proj.weight[pair * head_dim + row] = key[:, column]
            attention.q_proj.weight[2 * pair * head_dim + row] = query[:, column] * MATCH_SCALE
            attention.q_proj.weight[(2 * pair + 1) * head_dim + row] = query[:, column] * MATCH_SCALE * WEAK_MATCH
        for head in (2 * pair, 2 * pair + 1):
            attention.o_proj.weight[:, head * head_dim : (head + 1) * head_dim] = values * EMBEDDING_SCALE
