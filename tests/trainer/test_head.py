"""The head in chunks: the gradient of its weight is that of one product in float32, whatever the number of chunks."""

import pytest
import torch

TOKENS, HIDDEN, VOCABULARY = 2048, 16, 48


def case() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, weight and targets in bfloat16; hidden states point one way, so that the gradients add up."""
    generator = torch.Generator().manual_seed(0)
    hidden_NH = 1 + 0.3 * torch.randn(TOKENS, HIDDEN, generator=generator)
    weight_VH = 0.2 * torch.randn(VOCABULARY, HIDDEN, generator=generator)
    target_N = torch.randint(VOCABULARY // 2, (TOKENS,), generator=generator)
    return hidden_NH.bfloat16(), weight_VH.bfloat16().requires_grad_(), target_N


def reference(hidden_NH: torch.Tensor, weight_VH: torch.Tensor, target_N: torch.Tensor) -> torch.Tensor:
    """d(sum of logprobs + 0.1 · sum of entropies) / d weight: the logits in bfloat16, then one product in float32."""
    logits_NV = (hidden_NH @ weight_VH.t()).detach().float().requires_grad_()
    logprobs_NV = torch.log_softmax(logits_NV, dim=1)
    entropy = -(logprobs_NV.exp() * logprobs_NV).sum()
    (logprobs_NV.gather(1, target_N.unsqueeze(1)).sum() + 0.1 * entropy).backward()
    assert logits_NV.grad is not None
    return logits_NV.grad.t() @ hidden_NH.float()


@pytest.mark.parametrize("has_buffer", [True, False])
def test_the_heads_gradient_over_many_chunks_is_one_float32_product(world: None, has_buffer: bool) -> None:
    from vime.trainer.head import chunked_logprobs

    hidden_NH, weight_VH, target_N = case()
    if has_buffer:  # as Megatron's gradient buffers do
        weight_VH.main_grad = torch.zeros(weight_VH.shape)  # type: ignore[attr-defined]
    logprob_N, entropy_N = chunked_logprobs(hidden_NH, weight_VH, target_N.unsqueeze(1), temperature=1.0, chunk=2)
    (logprob_N.sum() + 0.1 * entropy_N.sum()).backward()
    found = weight_VH.main_grad if has_buffer else weight_VH.grad  # type: ignore[attr-defined]
    wanted_VH = reference(hidden_NH, weight_VH, target_N)
    assert found is not None and (weight_VH.grad is None) == has_buffer
    assert (found.float() - wanted_VH).norm() < 0.005 * wanted_VH.norm()


def test_chunks_change_nothing(world: None) -> None:
    from vime.trainer.head import chunked_logprobs

    hidden_NH, weight_VH, target_N = (x.detach().float() if x.is_floating_point() else x for x in case())
    found = []
    for chunk in (TOKENS, 100):
        inputs = (hidden_NH.clone().requires_grad_(), weight_VH.clone().requires_grad_())
        logprob_N, entropy_N = chunked_logprobs(*inputs, target_N.unsqueeze(1), temperature=0.7, chunk=chunk)
        (logprob_N.square().sum() + entropy_N.square().sum()).backward()
        found.append([logprob_N[:, 0], entropy_N, *(x.grad for x in inputs)])
    inputs = [hidden_NH.clone().requires_grad_(), weight_VH.clone().requires_grad_()]
    logprob_NV = torch.log_softmax(inputs[0] @ inputs[1].t() / 0.7, dim=1)
    logprob_N, entropy_N = logprob_NV[range(TOKENS), target_N], -(logprob_NV.exp() * logprob_NV).sum(1)
    (logprob_N.square().sum() + entropy_N.square().sum()).backward()
    for values in found:
        torch.testing.assert_close(values, [logprob_N, entropy_N, *(x.grad for x in inputs)], rtol=1e-4, atol=1e-4)


def test_several_tokens_of_one_place_have_their_logprobs_and_gradients_once_each(world: None) -> None:
    """A token may be wanted twice, and ids below 0 are none."""
    from vime.trainer.head import chunked_logprobs

    hidden_NH, weight_VH, target_N = (x.detach().float() if x.is_floating_point() else x for x in case())
    others_NK = torch.stack([target_N, (target_N + 3) % len(weight_VH), torch.full_like(target_N, -1)], 1)
    target_NJ, factor_J = torch.cat([target_N.unsqueeze(1), others_NK], 1), torch.tensor([1.0, 0.5, -2.0, 0.0])
    found = []
    for chunk in (3, 100):
        inputs = (hidden_NH.clone().requires_grad_(), weight_VH.clone().requires_grad_())
        logprob_NJ, entropy_N = chunked_logprobs(*inputs, target_NJ, temperature=0.7, chunk=chunk)
        ((logprob_NJ * factor_J).sum() + entropy_N.square().sum()).backward()
        found.append([logprob_NJ[:, :3], entropy_N, *(x.grad for x in inputs)])
    inputs = (hidden_NH.clone().requires_grad_(), weight_VH.clone().requires_grad_())
    logprob_NV = torch.log_softmax(inputs[0] @ inputs[1].t() / 0.7, dim=1)
    wanted_NJ, entropy_N = logprob_NV.gather(1, target_NJ[:, :3]), -(logprob_NV.exp() * logprob_NV).sum(1)
    ((wanted_NJ * factor_J[:3]).sum() + entropy_N.square().sum()).backward()
    for values in found:
        torch.testing.assert_close(values, [wanted_NJ, entropy_N, *(x.grad for x in inputs)], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("has_buffer", [True, False])
def test_a_rank_without_a_wanted_token_has_no_values_and_gradients_of_zero(world: None, has_buffer: bool) -> None:
    from vime.trainer.head import chunked_logprobs

    hidden_NH, weight_VH, target_N = case()
    hidden_NH.requires_grad_()
    if has_buffer:
        weight_VH.main_grad = torch.zeros(weight_VH.shape)  # type: ignore[attr-defined]
    target_NJ = target_N[:0].unsqueeze(1).expand(-1, 3)
    logprob_NJ, entropy_N = chunked_logprobs(hidden_NH[:0], weight_VH, target_NJ, temperature=0.7, chunk=2)
    (logprob_NJ.sum() + entropy_N.sum()).backward()
    found = weight_VH.main_grad if has_buffer else weight_VH.grad  # type: ignore[attr-defined]
    assert logprob_NJ.shape == (0, 3) and entropy_N.shape == (0,) and found is not None
    assert hidden_NH.grad is not None and not hidden_NH.grad.any() and not found.any()
