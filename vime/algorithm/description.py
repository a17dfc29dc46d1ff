"""A training objective in one line, which shows every option that a preset or a recipe has set."""

from vime.config import (
    Aggregation,
    AlgorithmConfig,
    AlgorithmName,
    Baseline,
    Comparison,
    CorrectionMode,
    CriticConfig,
    CriticPlace,
    DistillationConfig,
    Divergence,
    Normalization,
    RatioLevel,
    Surrogate,
    TeacherConfig,
    TeacherPlace,
    TeacherTerm,
    TurnCredit,
)

BASELINES = {
    Baseline.mean: "reward minus group mean",
    Baseline.leave_one_out: "reward minus mean of the others in the group",
    Baseline.running: "reward minus running mean",
    Baseline.none: "reward",
}
DIVISORS = {
    Normalization.std: ", divided by group deviation",
    Normalization.mean: ", divided by group mean",
    Normalization.none: "",
}


TURNS = {
    TurnCredit.none: "",
    TurnCredit.returns: ", of the return from each turn on (discount {discount:g}) over all turns",
    TurnCredit.states: ", plus {weight:g} times that of the return from each turn on (discount {discount:g}) over equal states",
}
PLACES = {
    CriticPlace.model: "a second model",
    CriticPlace.frozen_attention: "a second model with frozen attention",
    CriticPlace.trunk: "a head on the policy",
}
DIVERGENCES = {
    Divergence.reverse_kl: "KL(student ‖ teacher)",
    Divergence.forward_kl: "KL(teacher ‖ student)",
    Divergence.jensen_shannon: "Jensen-Shannon divergence (mixture {mixture:g})",
}


def describe(config: AlgorithmConfig) -> str:
    """The advantage, the ratio and its clipping, the average, the KL term and the correction in words.

    Example: `reward minus group mean, divided by group deviation; clipped token ratio 0.8 … 1.2; mean over tokens; no KL`.
    """
    if config.object is not None:
        options = ", ".join(f"{name} {value}" for name, value in config.options.items())
        return f"{config.object}" + (f" with {options}" if options else "")
    if config.name is AlgorithmName.sft:
        return "negative log-likelihood of demonstrations"
    advantage = BASELINES[config.baseline] if config.critic.place is CriticPlace.none else describe_critic(config.critic)
    advantage += " by seat" if config.comparison is Comparison.seat else ""
    advantage += f" ({', '.join(config.nested_seats)} within the rollout)" if config.nested_seats else ""
    advantage += DIVISORS[config.normalization]
    advantage += TURNS[config.turn_credit].format(discount=config.turn_discount, weight=config.turn_weight)
    advantage += ", whitened over the batch" if config.whitening else ""
    advantage = config.advantage or advantage
    if config.distillation.teachers or config.name is AlgorithmName.on_policy_distillation:
        advantage = describe_teachers(config.distillation, rewards=advantage)
    constant = config.aggregation is Aggregation.constant
    over = (
        "samples of a rollout, then over rollouts" if config.aggregation is Aggregation.nested else f"{config.aggregation.value}s"
    )
    average = f"sum divided by {config.constant_tokens} tokens" if constant else f"mean over {over}"
    kl = f"KL {config.kl_coefficient:g} {config.kl_estimator.value} in the {config.kl_place.value}"
    parts = [advantage]
    parts += [describe_ratio(config) if config.loss is None else config.loss]
    parts += ["centered scores"] if config.score_centering else []
    parts += [average, kl if config.kl_coefficient else "no KL"]
    if config.correction.mode is not CorrectionMode.none:
        bounds = f"{config.correction.low:g} … {config.correction.high:g}"
        parts.append(f"engine ratio {config.correction.mode.value} at {config.correction.level.value} level, {bounds}")
    return "; ".join(parts)


def describe_teachers(config: DistillationConfig, *, rewards: str) -> str:
    """The teachers' term, who teaches what, and the term of the rewards.

    Example: `KL(student ‖ teacher) to solver (data sets maths), as advantages; plus 0.5 times reward minus group mean`, and
    of a teacher in the trainer `to self (average of the student with decay 0.99, in the trainer; with a hint)`.
    """
    names = []
    for name, teacher in config.teachers.items():
        taught = [
            f"{kind} {', '.join(given)}" for kind, given in (("data sets", teacher.datasets), ("seats", teacher.seats)) if given
        ]
        taught += [f"{_weights(teacher)}, in the trainer"] if teacher.place is TeacherPlace.trainer else []
        taught += ["with a hint"] if teacher.hint else []
        taught += [f"weight {teacher.weight:g}"] if teacher.weight != 1 else []
        names.append(name + (f" ({'; '.join(taught)})" if taught else ""))
    term = DIVERGENCES[config.divergence].format(mixture=config.mixture)
    term = f"{config.coefficient:g} times {term}" if config.coefficient != 1 else term
    where = (
        "as advantages"
        if config.term is TeacherTerm.advantage
        else f"over the {config.top_k_of.value}'s {config.top_k} likeliest tokens"
    )
    to = f" to {', '.join(names)}" if names else ""
    beside = f", plus {config.reward_coefficient:g} times {rewards}" if config.reward_coefficient else ""
    return f"{term}{to}, {where}{beside}"


def _weights(teacher: TeacherConfig) -> str:
    """The weights of a teacher in the trainer."""
    if teacher.decay is None:
        return str(teacher.checkpoint)
    if 0 < teacher.decay < 1:
        return f"average of the student with decay {teacher.decay:g}"
    return "the student's first weights" if teacher.decay else "the student's present weights"


def describe_critic(critic: CriticConfig) -> str:
    """The estimate of advantages and the weights of the critic.

    Example: `reward by GAE (lambda 1) on the values of a second model, lr 1e-05`.
    """
    decay = f"{critic.gae_lambda:g}" if critic.adaptive_alpha is None else f"1 - 1/({critic.adaptive_alpha:g} length)"
    own = "" if critic.return_lambda is None else f", of returns {critic.return_lambda:g}"
    discount = "" if critic.discount == 1 else f", discount {critic.discount:g}"
    on = f"reward by GAE (lambda {decay}{own}{discount}) on the values of {PLACES[critic.place]}"
    if critic.place is CriticPlace.trunk:
        part = f"{critic.gradient_scale:g} of its gradient" if critic.gradient_scale else "none of its gradient"
        return f"{on}, which gets {part}" + _clip(critic)
    times = f", {critic.num_epochs_per_batch} passes a batch" if critic.num_epochs_per_batch > 1 else ""
    first = f", alone for {critic.warmup_steps} steps" if critic.warmup_steps else ""
    return f"{on}, lr {critic.lr:g}{times}{first}" + _clip(critic)


def _clip(critic: CriticConfig) -> str:
    return "" if critic.value_clip is None else f", values clipped at {critic.value_clip:g}"


def describe_ratio(config: AlgorithmConfig) -> str:
    """The importance ratio and what bounds it. Example: `clipped token ratio 0.8 … 1.2`."""
    ratio = "sequence ratio" if config.ratio is RatioLevel.sequence else "token ratio"
    bounds = f"{1 - config.clip_low:g} … {1 + config.clip_high:g}"
    most = f"{config.max_divergence:g}"
    if config.surrogate is Surrogate.sapo:
        return f"{ratio} through a sigmoid gate, temperatures {config.tau_positive:g} and {config.tau_negative:g}"
    if config.surrogate is Surrogate.masked:
        return f"{ratio}, masked outside {bounds}"
    if config.surrogate is Surrogate.gmpo:
        return f"geometric mean of token ratios clipped to {bounds}"
    if config.surrogate is Surrogate.ipo:
        return f"{ratio}, masked where probabilities of trainer and sampler differ by more than {most}"
    if config.surrogate is Surrogate.dppo_tv:
        return f"{ratio}, masked where the probability moved in the direction of the advantage by more than {most}"
    if config.surrogate is Surrogate.dppo_kl:
        return f"{ratio}, masked where the probability moved in the direction of the advantage by a binary KL of more than {most}"
    dual = f", dual clip {config.dual_clip:g}" if config.dual_clip is not None else ""
    return f"{config.surrogate.value} {ratio} {bounds}{dual}"
