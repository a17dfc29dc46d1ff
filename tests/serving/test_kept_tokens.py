"""The likeliest tokens that a real server returns are those that it kept, and make the trainer's logprobs its own."""

from typing import Any

import numpy as np
import pytest
import torch

from vime.algorithm.kept_tokens import over_kept
from vime.serving.client import TokenClient
from vime.serving.sampling import more_parameters
from vime.types import Sampling, Turn

PROMPT, NUM_TOKENS = [5, 9, 2, 77, 31, 8], 120
CUTS = {
    "nothing": Sampling(temperature=1.3, top_p=1.0, num_logprobs=19),
    "top-k": Sampling(temperature=1.3, top_p=1.0, top_k=5, num_logprobs=8),
    "top-p among top-k": Sampling(temperature=0.7, top_p=0.6, top_k=19, num_logprobs=19),
}


async def sampled(stack: Any, sampling: Sampling) -> Turn:
    client = TokenClient(stack.endpoint, stack.config.serving)
    own = {"temperature": sampling.temperature, "top_p": sampling.top_p, **more_parameters(sampling)}
    try:
        asked = {**own, "max_tokens": NUM_TOKENS, "ignore_eos": True, "seed": 7}
        return await client.generate(PROMPT, sampling=asked, session_id="kept", request_id="kept")
    finally:
        await client.close()


@pytest.mark.parametrize("name", CUTS)
async def test_the_recorded_tokens_are_the_ones_that_were_kept(served: Any, name: str):
    stack, sampling = served["tied"], CUTS[name]
    turn = await sampled(stack, sampling)
    assert turn.num_logprobs == sampling.num_logprobs
    top_ids_NK = np.asarray(turn.top_ids).reshape(NUM_TOKENS, -1)
    top_NK = np.asarray(turn.top_logprobs).reshape(NUM_TOKENS, -1)
    with torch.no_grad():
        logits = stack.trainer.model(torch.tensor([[*PROMPT, *turn.output_ids]])).logits[0, len(PROMPT) - 1 : -1].float()
    whole_NV, target_N = (logits / sampling.temperature).log_softmax(1), torch.tensor(list(turn.output_ids))
    server_N, ids_NK = torch.tensor(list(turn.logprobs)), torch.from_numpy(top_ids_NK.copy()).long()
    num_kept_N = (ids_NK >= 0).sum(1)
    if name == "nothing":
        likeliest = whole_NV.topk(sampling.num_logprobs)
        assert (ids_NK == likeliest.indices).float().mean() > 0.99, "equal ones may change places"
        torch.testing.assert_close(torch.from_numpy(top_NK.copy()), likeliest.values, rtol=0, atol=1e-4)
        torch.testing.assert_close(server_N, whole_NV.gather(1, target_N.unsqueeze(1))[:, 0], rtol=0, atol=1e-4)
        assert not (ids_NK == target_N.unsqueeze(1)).any(1).all(), "a sampled token may be none of the likeliest"
        return
    assert sampling.top_k is not None
    assert np.exp(top_NK.astype(np.float64)).sum(1) == pytest.approx(np.ones(NUM_TOKENS), abs=1e-4)
    assert num_kept_N.max() <= sampling.top_k and (name == "top-k" or num_kept_N.min() < sampling.top_k)
    chosen_NJ = torch.cat([target_N.unsqueeze(1), ids_NK.clamp(min=0)], 1)
    kept_NJ, _ = over_kept(whole_NV.gather(1, chosen_NJ), target_N, ids_NK)
    torch.testing.assert_close(kept_NJ[:, 0], server_N, rtol=0, atol=1e-4)
    mass_N = torch.where(ids_NK >= 0, whole_NV.gather(1, ids_NK.clamp(min=0)).exp(), 0.0).sum(1)
    without_N = whole_NV.gather(1, target_N.unsqueeze(1))[:, 0]
    torch.testing.assert_close(server_N - without_N, -mass_N.log(), rtol=0, atol=1e-4)
    assert (server_N - without_N).mean() > 0.1, "without the record the trainer would be off by the logarithm of the kept mass"
