"""Logprobs, entropies and gradients over the tokens that a sampler kept equal a softmax in which all others are masked."""

import torch

from vime.algorithm.kept_tokens import over_kept

PLACES, VOCAB, NUM = 6, 12, 4


def test_they_equal_a_masked_softmax_with_its_gradients():
    generator = torch.Generator().manual_seed(0)
    logits_NV = torch.randn(PLACES, VOCAB, generator=generator, dtype=torch.float64, requires_grad=True)
    top_ids_NK = torch.rand(PLACES, VOCAB, generator=generator).topk(NUM).indices
    target_N = top_ids_NK[:, 1].clone()
    target_N[0] = next(token for token in range(VOCAB) if token not in top_ids_NK[0])  # as where a tie moved it out
    top_ids_NK[2, 2:], top_ids_NK[3, 1:], target_N[3] = -1, -1, top_ids_NK[3, 0]
    is_kept_NV = torch.zeros(PLACES, VOCAB, dtype=torch.bool)
    for place in range(PLACES):
        is_kept_NV[place, [*(t for t in top_ids_NK[place].tolist() if t >= 0), int(target_N[place])]] = True
    wanted_NV = logits_NV.masked_fill(~is_kept_NV, -torch.inf).log_softmax(1)
    finite_NV = wanted_NV.masked_fill(~is_kept_NV, 0.0)
    wanted_N, entropy_N = wanted_NV.gather(1, target_N.unsqueeze(1))[:, 0], -(finite_NV.exp() * finite_NV * is_kept_NV).sum(1)

    whole_NV = logits_NV.log_softmax(1)
    chosen_NJ = torch.cat([target_N.unsqueeze(1), top_ids_NK.clamp(min=0)], 1)
    found_NJ, found_entropy_N = over_kept(whole_NV.gather(1, chosen_NJ), target_N, top_ids_NK)
    torch.testing.assert_close(found_NJ[:, 0], wanted_N)
    torch.testing.assert_close(found_entropy_N, entropy_N)
    is_token_NK = top_ids_NK >= 0
    torch.testing.assert_close(found_NJ[:, 1:][is_token_NK], wanted_NV.gather(1, top_ids_NK.clamp(min=0))[is_token_NK])

    weights_N = torch.linspace(-1.0, 2.0, PLACES, dtype=torch.float64)
    gradients = [
        torch.autograd.grad((weights_N * (logprob_N.square() + entropy)).sum(), logits_NV)[0]
        for logprob_N, entropy in ((wanted_N, entropy_N), (found_NJ[:, 0], found_entropy_N))
    ]
    torch.testing.assert_close(*gradients)
    assert not gradients[1][~is_kept_NV].abs().max() > 1e-15, "what was cut off has no gradient"
