"""Divergences between teacher and student over likeliest tokens of one of them, with all other tokens as one more outcome.

Without that outcome a sum over the likeliest tokens is no divergence: it may be negative, and its gradient moves mass to the
tokens that are left out. With it the value is a lower bound of the divergence over the whole vocabulary, and grows to it with k.

Shape suffixes: N tokens, K likeliest tokens at each place, J = 1 + K outcomes.
"""

import torch

from vime.config import DistillationConfig, Divergence

LEAST_TAIL = 1e-7
"""Least probability of all other tokens together: what float32 leaves of 1 minus a sum that is 1."""


def divergence(
    config: DistillationConfig, student_NK: torch.Tensor, teacher_NK: torch.Tensor, is_known_NK: torch.Tensor
) -> torch.Tensor:
    """The divergence at each place, [N], in nats; gradients go through the student's logprobs.

    `student_NK` and `teacher_NK` are logprobs of the likeliest tokens under both models; where `is_known_NK` is False there is no
    token. Reverse and forward KL, or the generalized Jensen-Shannon divergence beta · KL(teacher ‖ M) + (1 - beta) ·
    KL(student ‖ M) with M = beta · teacher + (1 - beta) · student (arXiv 2306.13649, equation 1).
    """
    student_NJ, teacher_NJ = with_tail(student_NK, is_known_NK), with_tail(teacher_NK, is_known_NK).detach()
    if config.divergence is Divergence.reverse_kl:
        return _kl(student_NJ, teacher_NJ)
    if config.divergence is Divergence.forward_kl:
        return _kl(teacher_NJ, student_NJ)
    beta = config.mixture
    mixture_NJ = (beta * teacher_NJ.exp() + (1 - beta) * student_NJ.exp()).clamp(min=torch.finfo(student_NJ.dtype).tiny).log()
    return beta * _kl(teacher_NJ, mixture_NJ) + (1 - beta) * _kl(student_NJ, mixture_NJ)


def with_tail(logprobs_NK: torch.Tensor, is_known_NK: torch.Tensor) -> torch.Tensor:
    """The logprob of all other tokens together, and these logprobs behind it, [N, J]; minus infinity where there is no token."""
    known_NK = torch.where(is_known_NK, logprobs_NK, -torch.inf)
    tail_N = (1.0 - known_NK.exp().sum(1)).clamp(min=LEAST_TAIL).log()
    return torch.cat([tail_N.unsqueeze(1), known_NK], 1)


def _kl(p_NJ: torch.Tensor, q_NJ: torch.Tensor) -> torch.Tensor:
    """KL(p ‖ q) over the outcomes; those without a token count nothing, and have no gradient."""
    is_known_NJ = p_NJ > -torch.inf
    p_NJ, q_NJ = (torch.where(is_known_NJ, each_NJ, 0.0) for each_NJ in (p_NJ, q_NJ))
    return torch.where(is_known_NJ, p_NJ.exp() * (p_NJ - q_NJ), 0.0).sum(1)
