"""Sampling and template arguments of served models: the trained one has those of the run, every frozen one its own."""

from vime.config import ModelAPI, RunConfig, SamplingConfig
from vime.errors import Problem

WITHOUT_EFFECT = ("top_p", "top_k", "min_p")
"""They cut the distribution, of which temperature 0 takes the first token anyway."""


def trained_model(config: RunConfig) -> list[Problem]:
    """The trained model is sampled as the run says, so that its logprobs are those that the trainer computes."""
    problems: list[Problem] = []
    for name, model in config.serving.models.items():
        if not model.trained:
            continue
        key = f"serving.models.{name}"
        for field in SamplingConfig.__slots__:
            if (value := getattr(model.sampling, field)) != getattr(SamplingConfig(), field):
                remedy = "the trained model is sampled by rollout.temperature, and in evaluations by evaluation.temperature and "
                remedy += "evaluation.top_p: remove this"
                problems.append(Problem(key=f"{key}.sampling.{field}", value=value, remedy=remedy))
        if model.chat_template_args:
            remedy = "the trained model has model.chat_template_args: set them there"
            problems.append(Problem(key=f"{key}.chat_template_args", value=model.chat_template_args, remedy=remedy))
    return problems


def frozen_models(config: RunConfig) -> list[Problem]:
    """What a frozen model is told has an effect, and reaches it."""
    problems: list[Problem] = []
    for name, model in config.serving.models.items():
        if model.trained:
            continue
        key = f"serving.models.{name}"
        for field in WITHOUT_EFFECT:
            if (value := getattr(model.sampling, field)) is not None and model.sampling.temperature == 0:
                remedy = f"temperature 0 always takes the likeliest token: remove this, or give {key}.sampling.temperature too"
                problems.append(Problem(key=f"{key}.sampling.{field}", value=value, remedy=remedy))
        if model.api is ModelAPI.chat and model.chat_template_args:
            remedy = f"others render its messages: give {key}.chat.body.chat_template_kwargs, which vLLM's endpoints take"
            problems.append(Problem(key=f"{key}.chat_template_args", value=model.chat_template_args, remedy=remedy))
    return problems
