"""Sampling parameters by the names that vLLM and OpenAI's API share: of frozen models, and of the trained one in training."""

from typing import Any

from vime.config import RoutingReplay, RunConfig, SamplingConfig
from vime.types import Sampling


def sampling_parameters(config: SamplingConfig) -> dict[str, float]:
    """The parameters that are not null, by name.

    Example: `SamplingConfig(temperature=0.7, top_k=20)` gives `{"temperature": 0.7, "top_k": 20}`.
    """
    parameters: dict[str, float | None] = {
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": config.top_k,
        "min_p": config.min_p,
        "presence_penalty": config.presence_penalty,
        "frequency_penalty": config.frequency_penalty,
        "repetition_penalty": config.repetition_penalty,
    }
    return {name: value for name, value in parameters.items() if value is not None}


def in_training(config: RunConfig) -> Sampling:
    """The sampling of the trained model in training."""
    rollout = config.rollout
    return Sampling(
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        num_logprobs=rollout.num_logprobs,
        routed_experts=config.trainer.routing_replay is RoutingReplay.rollout,
    )


def more_parameters(sampling: Sampling) -> dict[str, Any]:
    """The parameters of the trained model beside temperature and top-p, by vLLM's names; those that are off are left out."""
    top_k = {} if sampling.top_k is None else {"top_k": sampling.top_k}
    return top_k | ({"logprobs": sampling.num_logprobs} if sampling.num_logprobs else {})
