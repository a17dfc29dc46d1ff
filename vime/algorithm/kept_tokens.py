"""The distribution over the tokens that top-k and top-p kept, from logprobs of the whole one (arXiv 2512.02556, section 3.1).

Shape suffixes: N tokens, K recorded tokens at each place, J = 1 + K.
"""

import torch


def over_kept(logprobs_NJ: torch.Tensor, target_N: torch.Tensor, top_ids_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs [N, J] and entropy [N] after everything else has probability 0.

    `logprobs_NJ` has the logprob of the target, then those of `top_ids_NK`, where ids below 0 are no tokens. The target was
    sampled, so it belongs to the kept tokens, also where a tie has moved it out of the recorded ones. The logarithm of the kept
    mass that is subtracted has a gradient, which takes away that of all other tokens.
    """
    is_other_N = (top_ids_NK != target_N.unsqueeze(1)).all(1)
    is_kept_NJ = torch.cat([is_other_N.unsqueeze(1), top_ids_NK >= 0], 1)
    kept_NJ = torch.where(is_kept_NJ, logprobs_NJ, -torch.inf)
    found_NJ = logprobs_NJ - kept_NJ.logsumexp(1, keepdim=True)
    inner_NJ = torch.where(is_kept_NJ, found_NJ, 0.0)
    entropy_N = -torch.where(is_kept_NJ, inner_NJ.exp() * inner_NJ, 0.0).sum(1)
    return found_NJ, entropy_N
