"""Sampling and chat template arguments of served models: the trained model has those of the run, a frozen model has its own."""

from vime.config import AlgorithmName, Constraints, ModelAPI, RunConfig, SamplingConfig
from vime.errors import Problem

WITHOUT_EFFECT = ("top_p", "top_k", "min_p")
"""Parameters without effect at temperature 0, which always takes the most likely token."""


def trained_model(config: RunConfig) -> list[Problem]:
    """The trained model is sampled by the settings of the run, so that server and trainer compute the same logprobs."""
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
            remedy = "the chat template of the trained model has its arguments in model.chat_template_args: set them there"
            problems.append(Problem(key=f"{key}.chat_template_args", value=model.chat_template_args, remedy=remedy))
    return problems


def kept_tokens(config: RunConfig) -> list[Problem]:
    """A sampler that cuts off tokens in training records the ones that it keeps, for the trainer."""
    rollout, problems = config.rollout, []
    if config.algorithm.name is AlgorithmName.sft:
        return []
    if rollout.top_p < 1 and rollout.top_k is None:
        remedy = (
            "the trainer must know which tokens top-p keeps, and without a limit they may be all: set rollout.top_k=20 "
            "rollout.num_logprobs=24, or 1.0 here"
        )
        problems.append(Problem(key="rollout.top_p", value=rollout.top_p, remedy=remedy))
    elif rollout.top_k is not None and rollout.num_logprobs < rollout.top_k:
        remedy = (
            f"the trainer must know the {rollout.top_k} kept tokens: use at least rollout.top_k={rollout.top_k}, and a few more "
            "for those that are equally likely as the last one, or rollout.top_k=null rollout.top_p=1.0"
        )
        problems.append(Problem(key="rollout.num_logprobs", value=rollout.num_logprobs, remedy=remedy))
    if rollout.num_logprobs > config.model.vocab_size:
        remedy = f"must be at most model.vocab_size={config.model.vocab_size}"
        problems.append(Problem(key="rollout.num_logprobs", value=rollout.num_logprobs, remedy=remedy))
    return problems


def constraints(config: RunConfig) -> list[Problem]:
    """Tokens that were sampled under a constraint have no logprobs that the trainer could compute.

    vLLM masks the logits before its sampler sees them (`apply_grammar_bitmask` in its model runners), so that the logprobs of
    every `logprobs_mode` are those of the constrained model.
    """
    if config.gateway.constraints is not Constraints.record:
        return []
    remedy = "vLLM computes logprobs of constrained replies after it has masked them, and the trainer cannot compute these: use "
    remedy += "free, which samples freely, or refuse"
    return [Problem(key="gateway.constraints", value=config.gateway.constraints.value, remedy=remedy)]


def frozen_models(config: RunConfig) -> list[Problem]:
    """The sampling and template arguments of a frozen model have an effect."""
    problems: list[Problem] = []
    for name, model in config.serving.models.items():
        if model.trained:
            continue
        key = f"serving.models.{name}"
        for field in WITHOUT_EFFECT:
            if (value := getattr(model.sampling, field)) is not None and model.sampling.temperature == 0:
                remedy = f"temperature 0 always takes the most likely token: remove this, or set {key}.sampling.temperature too"
                problems.append(Problem(key=f"{key}.sampling.{field}", value=value, remedy=remedy))
        if model.api is ModelAPI.chat and model.chat_template_args:
            remedy = (
                f"an external endpoint renders its messages itself: set {key}.chat.body.chat_template_kwargs, which vLLM accepts"
            )
            problems.append(Problem(key=f"{key}.chat_template_args", value=model.chat_template_args, remedy=remedy))
    return problems
