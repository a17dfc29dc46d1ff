"""Replies of shipped tiny models, without a server."""

from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from vime.tiny.demonstration import Demonstration


def greedy(folder: Path, tokenizer: PreTrainedTokenizerBase, demonstrations: list[Demonstration]) -> list[str]:
    """Replies to the prompts of demonstrations, before their first learned token, token by token the likeliest."""
    import torch
    from transformers import AutoModelForCausalLM

    network: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
    replies = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several spin between two tokens of so small a model
    for demonstration in demonstrations:
        ids = torch.tensor([demonstration.token_ids[: demonstration.loss_mask.index(1)]])
        sampled = network.generate(ids, max_new_tokens=32, do_sample=False, pad_token_id=0, eos_token_id=tokenizer.eos_token_id)
        replies.append(
            str(tokenizer.decode(sampled[0][ids.shape[1] :], skip_special_tokens=False)).removesuffix(str(tokenizer.eos_token))
        )
    torch.set_num_threads(threads)
    return replies
