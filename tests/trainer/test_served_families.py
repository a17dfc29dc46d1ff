"""A real server in float32 gives the logprobs of the trainer and of Hugging Face, for families that no other test serves.

`test_bridge.py` compares the trainer with Hugging Face for all families. Qwen2 and Qwen3 are served in `tests/sync`, Qwen3's
mixture of experts in `tests/inside_vllm`, Llama in `tests/serving/test_rotary.py`.
"""

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tests.served_stack import HuggingFaceTrainer, ServedStack
from vime.config import ServedModelConfig, ServingConfig

VOCAB = 160
SHAPES: dict[str, dict[str, Any]] = {
    "gemma3_text": {"head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 24},
    "qwen3_5_text": {"head_dim": 32},
    "gpt_oss": {"head_dim": 32, "swiglu_limit": 7.0, "tie_word_embeddings": False},
}
"""Fields of the random models; vLLM has no heads of 16 channels on a CPU."""
NUM_LAYERS, LENGTHS = 4, [3, 7, 40, 150]
LIMIT = 1e-4


@pytest.fixture(params=[*SHAPES])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A random model whose layers alternate between local and global attention, and whose norms are not 1."""
    import transformers

    from vime.model.families import family_of

    own = family_of(request.param)
    assert own.config_class is not None
    torch.manual_seed(0)
    config = getattr(transformers, own.config_class)(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        **{"tie_word_embeddings": True, **own.test_shape, **SHAPES[request.param]},
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(tmp_path / "model")
    words = Tokenizer(WordLevel({str(number): number for number in range(VOCAB)}, unk_token="0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


async def sampled(endpoint: Any, serving: ServingConfig) -> list[tuple[list[int], list[float]]]:
    """Sequences of a prompt and 20 sampled tokens, with the server's logprobs of the latter."""
    from vime.serving.client import TokenClient

    generator = torch.Generator().manual_seed(2)
    prompts = [torch.randint(1, VOCAB, (length,), generator=generator).tolist() for length in LENGTHS]
    client = TokenClient(endpoint, serving)
    sampling = {"temperature": 1.0, "max_tokens": 20, "ignore_eos": True, "seed": 1}
    try:
        turns = await asyncio.gather(
            *[
                client.generate(prompt, sampling=sampling, session_id=f"s{number}", request_id=f"r{number}")
                for number, prompt in enumerate(prompts)
            ]
        )
    finally:
        await client.close()
    return [([*prompt, *turn.output_ids], list(turn.logprobs)) for prompt, turn in zip(prompts, turns, strict=True)]


def largest_difference(found: list[list[float]], expected: list[list[float]]) -> float:
    return max(abs(a - b) for ours, theirs in zip(found, expected, strict=True) for a, b in zip(ours, theirs, strict=True))


async def test_server_trainer_and_hugging_face_agree_and_new_weights_arrive(
    folder: Path, engine: Callable[..., Any], make_config: Callable[..., Any], ray_cluster: None, tmp_path: Path
) -> None:
    from vime.serving.topology import Serving
    from vime.weights.policy import Policy

    config = make_config(folder)
    served = ServedModelConfig(trained=True, gpu_memory_utilization=0.01, max_num_seqs=8, max_model_len=256)
    config.serving = ServingConfig(models={"actor": served})
    policy = Policy()
    serving = Serving(config, tmp_path / "run", uuid.uuid4().hex[:8], policy=policy)
    serving.start()
    try:
        reference = HuggingFaceTrainer(folder, serving.payload_folder)
        trainer = engine(config)
        await serving.ready()
        stack = ServedStack(config, serving, reference, policy)
        rows = await sampled(stack.endpoint, config.serving)
        tokens, by_server = [row for row, _ in rows], [logprobs for _, logprobs in rows]
        counts = [len(logprobs) for logprobs in by_server]
        assert counts == [20] * len(LENGTHS)
        assert largest_difference(by_server, await reference.logprobs(tokens, counts)) < LIMIT
        by_trainer = trainer.logprobs(tokens, counts, 1.0)
        assert largest_difference(by_server, [by_trainer[number] for number in range(len(tokens))]) < LIMIT
        reference.step()
        assert (await stack.sync(reference.export()))["sync/num_unread_tensors"] == 0  # each tensor was proven
        await stack.probe()
        rows = await sampled(stack.endpoint, config.serving)
        moved = await reference.logprobs([row for row, _ in rows], counts)
        assert largest_difference([logprobs for _, logprobs in rows], moved) < LIMIT
        assert tokens != [row for row, _ in rows], "the weights did not move"
    finally:
        await serving.stop()
