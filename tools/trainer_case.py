"""One case of the trainer's benchmark: a random model on disk, a batch of sequences, and the FLOPs that a step on it needs.

The case goes to the sides as a folder: a Hugging Face checkpoint and `case.json` with the sequences. Nothing of this project is
imported at the top, because one side runs under another Python installation.
"""

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LR = 1e-6
BATCH_SIZE = 8
"""Sequences in a padded micro-batch; TRL's own default."""
MAX_TOKENS = 4096
"""Tokens in a packed micro-batch: that of the tiny model's runs."""
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        **{"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 512},
        **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32},
    },
    "1M": {
        **{"num_hidden_layers": 4, "hidden_size": 128, "intermediate_size": 384, "vocab_size": 1024},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32},
    },
    "3M": {
        **{"num_hidden_layers": 6, "hidden_size": 192, "intermediate_size": 512, "vocab_size": 2048},
        **{"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32},
    },
    "35M": {
        **{"num_hidden_layers": 8, "hidden_size": 512, "intermediate_size": 1536, "vocab_size": 8192},
        **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64},
    },
    "0.5B": {  # Qwen2.5-0.5B's
        **{"num_hidden_layers": 24, "hidden_size": 896, "intermediate_size": 4864, "vocab_size": 151936},
        **{"num_attention_heads": 14, "num_key_value_heads": 2, "head_dim": 64},
    },
    "7B": {  # Qwen2.5-7B's layers and vocabulary, as many layers as one GPU trains
        **{"num_hidden_layers": 8, "hidden_size": 3584, "intermediate_size": 18944, "vocab_size": 152064},
        **{"num_attention_heads": 28, "num_key_value_heads": 4, "head_dim": 128},
    },
}


@dataclass(kw_only=True, slots=True)
class Case:
    """The data that all sides train on.

    Example: `Case(size="3M", precision="bfloat16", max_tokens=4096, sequences=[{"prompt": [5, 9], "response": [7], …}])`.
    """

    size: str
    precision: str
    max_tokens: int
    sequences: list[dict[str, Any]]
    """`prompt` and `response` tokens, and `advantage`, in the order in which padded batches take them."""

    @property
    def num_tokens(self) -> int:
        """The number of tokens of all sequences; prompts too."""
        return sum(len(sequence["prompt"]) + len(sequence["response"]) for sequence in self.sequences)


def draw_case(size: str, precision: str, lengths: list[tuple[int, int]], *, max_tokens: int = MAX_TOKENS, seed: int = 0) -> Case:
    """Random tokens of these lengths, in random order, as trainers shuffle their samples."""
    generator = random.Random(seed)
    vocabulary = SHAPES[size]["vocab_size"]
    sequences = [
        {
            "prompt": [generator.randrange(vocabulary) for _ in range(prompt)],
            "response": [generator.randrange(vocabulary) for _ in range(response)],
            "advantage": generator.gauss(0.0, 1.0),
        }
        for prompt, response in lengths
    ]
    generator.shuffle(sequences)
    return Case(size=size, precision=precision, max_tokens=max_tokens, sequences=sequences)


def write_case(case: Case, folder: Path) -> None:
    """The checkpoint of a random Qwen3-shaped model, and `case.json` beside it."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen3Config(**SHAPES[case.size], max_position_embeddings=4096, tie_word_embeddings=False)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if case.size == "7B" else torch.float32)
    model.save_pretrained(folder)
    (folder / "case.json").write_text(json.dumps(asdict(case)))


def read_case(folder: Path) -> Case:
    """The case that `write_case` wrote."""
    return Case(**json.loads((folder / "case.json").read_text()))


def padded_batches(case: Case) -> list[list[dict[str, Any]]]:
    """Neighbours, `BATCH_SIZE` at a time."""
    return [case.sequences[start : start + BATCH_SIZE] for start in range(0, len(case.sequences), BATCH_SIZE)]


def flops(size: str, rows: list[tuple[int, int]]) -> float:
    """Forward and backward FLOPs of rows; a row is (number of places, number of places projected onto the vocabulary).

    6 per parameter and place, and causal attention; recomputation in the backward pass is not counted.
    """
    shape = SHAPES[size]
    hidden, width, heads = shape["hidden_size"], shape["head_dim"], shape["num_attention_heads"]
    attention = 2 * hidden * width * (heads + shape["num_key_value_heads"])
    layer = attention + 3 * hidden * shape["intermediate_size"]
    layers, vocabulary = shape["num_hidden_layers"], shape["vocab_size"]
    total = 0.0
    for places, projected in rows:
        total += 6.0 * layers * (layer * places + heads * width * places * places) + 6.0 * hidden * vocabulary * projected
    return total


def needed_flops(case: Case) -> float:
    """FLOPs of the sequences without padding, logits for responses only: those that any trainer must do."""
    rows = [(len(sequence["prompt"]) + len(sequence["response"]), len(sequence["response"])) for sequence in case.sequences]
    return flops(case.size, rows)


def executed_flops(case: Case, side: str) -> float:
    """FLOPs of a padded side: batches as wide as their longest sequence (`hugging_face`), or all as the whole batch's longest
    prompt and response (`trl`, which pads before it splits); `hugging_face` projects all places, `trl` only responses."""
    rows: list[tuple[int, int]] = []
    prompts, responses = ([len(sequence[part]) for sequence in case.sequences] for part in ("prompt", "response"))
    for batch in padded_batches(case):
        width = max(len(sequence["prompt"]) + len(sequence["response"]) for sequence in batch)
        one = (width, width) if side == "hugging_face" else (max(prompts) + max(responses), max(responses))
        rows += [one] * len(batch)
    return flops(case.size, rows)
