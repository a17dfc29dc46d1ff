"""Score centering over small vocabularies, where expected gradients are sums that can be written out (arXiv 2609.20807)."""

import pytest
import torch

from vime.algorithm.loss import policy_loss, score_centering
from vime.config import AlgorithmConfig, Surrogate
from vime.preflight.compose import compose_run

VOCAB, PLACES = 9, 5
BOUNDS = {"no weights": (0.0, 0.0), "truncated": (0.6, 0.5), "full": (1.0, 1e9)}


def config_of(name: str) -> AlgorithmConfig:
    low, high = BOUNDS[name]
    return AlgorithmConfig(surrogate=Surrogate.cispo, score_centering=True, clip_low=low, clip_high=high)


def place(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the trainer (a leaf) and the sampler's probabilities, [VOCAB], which are far apart."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(VOCAB, generator=generator, dtype=torch.float64, requires_grad=True)
    return logits, (logits.detach() + torch.randn(VOCAB, generator=generator, dtype=torch.float64)).softmax(0)


def term(config: AlgorithmConfig, logits: torch.Tensor, sampler: torch.Tensor, num: int, advantage: float) -> torch.Tensor:
    """The centering term of one place with the sampler's `num` likeliest tokens, in one more place than there are."""
    ids = sampler.topk(num).indices
    known = torch.tensor([[True] * num + [False]])
    nothing = torch.tensor([[-1.0]])
    top = torch.cat([logits.log_softmax(0)[ids].unsqueeze(0), nothing], 1)
    q = torch.cat([sampler.log()[ids].unsqueeze(0), torch.full((1, 1), float("nan"))], 1)
    value, metrics = score_centering(config, top, q, known, torch.tensor([advantage]))
    assert metrics["train/recorded_mass_mean"] == pytest.approx(float(sampler[ids].sum()))
    return value.sum()


def base(config: AlgorithmConfig, logits: torch.Tensor, sampler: torch.Tensor, token: int, advantage: float) -> torch.Tensor:
    """The loss of one sampled token."""
    one = torch.ones(1)
    values = logits.log_softmax(0)[token : token + 1], sampler.log()[token : token + 1], torch.tensor([advantage])
    return policy_loss(config, *values, one, one.long() * 0)[0].sum()


def gradient(value: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(value, logits)[0]


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("num", [1, 4, VOCAB])
def test_the_term_takes_away_the_expected_gradient_with_the_rest_in_the_trainers_proportions(name: str, num: int):
    for seed in range(10):
        config, (logits, sampler), advantage = config_of(name), place(seed), 1.3 - 0.4 * seed
        p = logits.detach().softmax(0)
        recorded = torch.zeros(VOCAB, dtype=torch.bool)
        recorded[sampler.topk(num).indices] = True
        rest = p * (1 - sampler[recorded].sum()) / (1 - p[recorded].sum()).clamp(min=1e-6)
        assumed = torch.where(recorded, sampler, rest)
        expected = sum(
            assumed[token] * gradient(base(config, logits, assumed, token, advantage), logits)
            for token in range(VOCAB)
            if assumed[token] > 0
        )
        found = gradient(term(config, logits, sampler, num, advantage), logits)
        torch.testing.assert_close(found, -expected, rtol=1e-7, atol=1e-9)


def test_with_all_tokens_recorded_the_bias_of_a_baseline_is_exactly_zero():
    for name in BOUNDS:
        config, (logits, sampler) = config_of(name), place(3)
        for advantage in (-2.0, 0.0, 5.0):
            total = term(config, logits, sampler, VOCAB, advantage)
            total = total + sum(sampler[t] * base(config, logits, sampler, t, advantage) for t in range(VOCAB))
            assert gradient(total, logits).abs().max() < 1e-12


def test_among_kept_tokens_there_is_no_rest():
    """The probabilities of trainer and sampler are those among the kept tokens, whose sums are 1 up to rounding."""
    config, (logits, sampler) = config_of("no weights"), place(2)
    ids = sampler.topk(4).indices
    kept, q = logits[ids].log_softmax(0), sampler[ids] / sampler[ids].sum() * (1 - 1e-4)
    args = kept.unsqueeze(0), q.log().unsqueeze(0), torch.ones(1, 4, dtype=torch.bool), torch.tensor([2.0])
    value, _ = score_centering(config, *args, has_rest=False)
    torch.testing.assert_close(gradient(value.sum(), logits), gradient(2.0 * (q * logits[ids].log_softmax(0)).sum(), logits))


def test_full_importance_weights_need_no_centering():
    config, (logits, sampler) = config_of("full"), place(1)
    assert gradient(term(config, logits, sampler, 4, 1.0), logits).abs().max() < 1e-12


def test_without_the_term_a_constant_reward_moves_the_policy():
    config, (logits, sampler) = config_of("no weights"), place(1)
    drift = sum(sampler[t] * gradient(base(config, logits, sampler, t, 1.0), logits) for t in range(VOCAB))
    assert torch.as_tensor(drift).abs().max() > 0.05


def test_the_named_algorithm_asks_for_the_likeliest_tokens():
    config = compose_run(["algorithm=score_centering", "mode=plan"]).config
    assert config.algorithm.score_centering and config.rollout.num_logprobs == 20
    assert config.algorithm.surrogate is Surrogate.cispo
