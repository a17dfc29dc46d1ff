"""A real vLLM server of a tiny model, whose replies are held to the scripts of the clients by vLLM's own structured outputs.

The model knows nothing but how long each of its tokens is, and likes long ones. So under a constraint it spells a text mostly as
its tokenizer would, here and there otherwise, as sampling models do.
"""

import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from client_cases import Case
from client_engine import ForcedModel, ScriptedModel
from fetch_qwen3_tokenizer import fetched

from vime.config import RunConfig
from vime.preflight.compose import compose_run
from vime.runtime import Runtime
from vime.serving.client import TokenClient
from vime.serving.topology import Serving

HIDDEN, VOCABULARY, MOST_TOKENS = 64, 151_936, 65_536
CONSTANT = 4.0
"""The first number of every embedding."""
LENGTH_WEIGHT, NOISE = 0.26, 0.2
"""A character more makes a token about four times as likely; the noise of a logit is about as much as one character."""
LONGEST = 24
SPACE, SPACE_LENGTH = "ĠĊĉč", -8
"""White space as the vocabulary writes it, and how long a token of it counts as: JSON may have any amount of white space."""


def save_speller(folder: Path) -> None:
    """Writes the model: layers that add nothing, and a head that reads the first number as the length of each token."""
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(fetched())
    shape = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=HIDDEN,
        max_position_embeddings=MOST_TOKENS,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = Qwen3ForCausalLM(shape)
    lengths = torch.zeros(VOCABULARY)
    for text, number in tokenizer.get_vocab().items():
        lengths[number] = min(len(text), LONGEST) if text.strip(SPACE) else SPACE_LENGTH
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()  # type: ignore[union-attr]
            layer.mlp.down_proj.weight.zero_()  # type: ignore[union-attr]
        model.model.embed_tokens.weight.normal_(std=0.5)[:, 0] = CONSTANT
        model.lm_head.weight.normal_(std=NOISE)[:, 0] = LENGTH_WEIGHT * lengths
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def configuration(checkpoint: Path) -> RunConfig:
    """One server of the model."""
    words = [
        "+method=memagent",
        f"model.checkpoint={checkpoint}",
        f"model.vocab_size={VOCABULARY}",
        f"model.max_position_embeddings={MOST_TOKENS}",
        f"serving.models.actor.max_model_len={MOST_TOKENS}",
        "serving.models.actor.gpu_memory_utilization=0.05",
        "trainer.precision=float32",
    ]
    return compose_run(words).config


@asynccontextmanager
async def served_engine() -> AsyncIterator[Callable[[Case, Path], ScriptedModel]]:
    """Models that a server samples."""
    from vime.model.load_tokenizer import load_tokenizer

    with tempfile.TemporaryDirectory(prefix="vime-clients-") as name:
        folder = Path(name)
        save_speller(folder / "speller")
        config = configuration(folder / "speller")
        with Runtime(config, say=lambda _: None) as runtime:
            serving = Serving(config, folder, runtime.run_id, runtime.nodes)
            serving.start()
            client: TokenClient | None = None
            try:
                await serving.ready()
                endpoint = serving.trained_endpoint()
                client = TokenClient(endpoint, config.serving)
                tokenizer: Any = load_tokenizer(endpoint.tokenizer)

                def make(case: Case, working: Path) -> ScriptedModel:
                    most = min(case.max_model_len, endpoint.max_model_len)
                    return ForcedModel(client, tokenizer, case.script, folder=working, max_model_len=most)

                yield make
            finally:
                if client is not None:
                    await client.close()
                await serving.stop()
