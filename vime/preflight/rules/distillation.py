"""Teachers: what they need, what they contradict, and forms of a divergence that have no gradient."""

from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError

from vime.config import (
    AlgorithmName,
    CriticPlace,
    DistillationConfig,
    Divergence,
    ModelAPI,
    RunConfig,
    TeacherConfig,
    TeacherPlace,
    TeacherTerm,
    TopKOf,
)
from vime.errors import ConfigError, Problem, written
from vime.hooks import import_remedy, load_hook
from vime.model.architecture import Architecture, differences, read_architecture
from vime.model.load_tokenizer import load_tokenizer
from vime.preflight.rules.critic import FILTER
from vime.preflight.rules.machine_requirements import checkpoint_problems
from vime.preflight.rules.numbers import value_at
from vime.trajectory.template import turn_ahead

KEY = "algorithm.distillation"
OF_REWARDS = (
    *("advantage", "baseline", "comparison", "turn_credit", "normalization", "whitening", "overlong_max_tokens"),
    *("kl_coefficient", "entropy_coefficient"),
)
"""Settings of `algorithm` that the objective of rewards alone reads."""
OF_RATIOS = (
    *("loss", "ratio", "surrogate", "clip_low", "clip_high", "tau_positive", "tau_negative", "max_divergence", "dual_clip"),
    *("old_logprobs", "correction.mode", "correction.veto"),
)
"""Settings of `algorithm` that a policy gradient reads, on rewards or on the teachers' advantages."""
PROBE = "The solution is 42."
NO_GRADIENT = (
    "a divergence over tokens that were not sampled is the same whichever token is sampled, so as an advantage its expected "
    "gradient is zero, E[D · grad log p] = D · grad 1"
)


def teachers(config: RunConfig) -> list[Problem]:
    """Each teacher is a frozen served model that answers with logprobs and has room for the student's longest sequence, or second
    weights that the trainer can have."""
    models, problems = config.serving.models, list[Problem]()
    if config.algorithm.name is AlgorithmName.on_policy_distillation and not config.algorithm.distillation.teachers:
        remedy = f"a teacher is missing: +{KEY}.teachers.solver={{}} +serving.models.solver.checkpoint=FOLDER"
        problems.append(Problem(key=f"{KEY}.teachers", value="", remedy=remedy))
    longest = max((model.max_model_len for model in models.values() if model.trained), default=0)
    for name, teacher in config.algorithm.distillation.teachers.items():
        key, model = f"{KEY}.teachers.{name}", models.get(name)
        if teacher.place is TeacherPlace.trainer:
            problems += _in_trainer(config, key, teacher)
        elif unread := [each for each in ("checkpoint", "decay") if getattr(teacher, each) is not None]:
            for each in unread:
                remedy = f"belongs to weights in the trainer: add {key}.place=trainer, or use null and serving.models.{name}"
                problems.append(Problem(key=f"{key}.{each}", value=getattr(teacher, each), remedy=remedy))
        elif model is None:
            remedy = f"is no model of serving.models ({', '.join(models)}): set serving.models.{name}.checkpoint, or use its name"
            remedy += f"; with {key}.place=trainer it is no served model"
            problems.append(Problem(key=key, value=name, remedy=remedy))
        elif model.api is ModelAPI.chat:
            remedy = "a chat API shows no logprobs of given tokens: use a model with api=tokens"
            problems.append(Problem(key=f"serving.models.{name}.api", value=model.api.value, remedy=remedy))
        elif teacher.hint is not None and (error := _import_error(teacher.hint)):
            problems.append(Problem(key=f"{key}.hint", value=teacher.hint, remedy=error))
        elif model.trained and teacher.hint is None:
            remedy = (
                "without a hint the student's distance to itself is 0, and so is the gradient: set hint, or name another model"
            )
            problems.append(Problem(key=key, value=name, remedy=remedy))
        elif model.checkpoint is None and (model.urls or teacher.hint is None):
            remedy = "the tokenizer of a teacher is compared with the student's: name the folder of its checkpoint"
            if not model.urls:
                remedy = (
                    "without a checkpoint of its own the teacher is what the student begins as: name the teacher's checkpoint"
                )
            problems.append(Problem(key=f"serving.models.{name}.checkpoint", value=None, remedy=remedy))
        elif model.max_model_len <= longest and not model.trained:
            remedy = (
                f"a sequence of the student has up to {longest} tokens, and a server that scores it writes one more: use "
                f"{longest + 1}, or a smaller one for the student"
            )
            problems.append(Problem(key=f"serving.models.{name}.max_model_len", value=model.max_model_len, remedy=remedy))
    return problems


def _in_trainer(config: RunConfig, key: str, teacher: TeacherConfig) -> list[Problem]:
    """A teacher in the trainer is another checkpoint, or the student with a hint."""
    if (teacher.checkpoint is None) is (teacher.decay is None):
        has = "neither" if teacher.decay is None else "both"
        remedy = (
            f"it has {has}: set either {key}.checkpoint, of the student's architecture, or {key}.decay, for the student itself"
        )
        return [Problem(key=f"{key}.place", value=teacher.place.value, remedy=remedy)]
    if teacher.hint is not None and (error := _import_error(teacher.hint)):
        return [Problem(key=f"{key}.hint", value=teacher.hint, remedy=error)]
    if teacher.decay is not None and teacher.hint is None:
        remedy = (
            "without a hint it begins as the student, and nothing moves the two apart: set hint, or a checkpoint in its place"
        )
        return [Problem(key=f"{key}.decay", value=teacher.decay, remedy=remedy)]
    if teacher.checkpoint is not None and config.trainer.lora.rank:
        remedy = "second weights beside adapters are adapters, which no model has: use place=server, or trainer.lora.rank=0"
        return [Problem(key=f"{key}.checkpoint", value=teacher.checkpoint, remedy=remedy)]
    return []


def combinations(config: RunConfig) -> list[Problem]:
    """A divergence has a place in which it has a gradient, and nothing beside it that it contradicts."""
    algorithm, own = config.algorithm, config.algorithm.distillation
    if not own.teachers:
        default = DistillationConfig()
        changed = [name for name in DistillationConfig.__dataclass_fields__ if getattr(own, name) != getattr(default, name)]
        is_named = algorithm.name is AlgorithmName.on_policy_distillation  # whose teachers are missing
        remedy = f"there is no teacher: set {KEY}.teachers, or use the default"
        return [
            Problem(key=f"{KEY}.{name}", value=_text(getattr(own, name)), remedy=f"{remedy}, {_text(getattr(default, name))}")
            for name in changed
            if not is_named
        ]
    rollout, is_advantage = config.rollout, own.term is TeacherTerm.advantage
    alone, is_student = own.reward_coefficient == 0, own.top_k_of is TopKOf.student
    served = [name for name, teacher in own.teachers.items() if teacher.place is TeacherPlace.server]
    wrong = (
        (algorithm.name is AlgorithmName.sft, "algorithm", "sft", "demonstrations have no teacher: use on_policy_distillation"),
        (
            algorithm.object is not None,
            "algorithm.object",
            algorithm.object,
            f"an algorithm of your own takes the place of {KEY}: use null, or no teachers",
        ),
        (
            algorithm.critic.place is not CriticPlace.none,
            "algorithm.critic.place",
            algorithm.critic.place.value,
            "teachers are not combined with a critic: use none",
        ),
        (
            is_advantage and own.divergence is not Divergence.reverse_kl,
            f"{KEY}.term",
            own.term.value,
            f"{NO_GRADIENT}: use {KEY}.term=loss, which differentiates it, or divergence=reverse_kl",
        ),
        (
            is_advantage and own.top_k > 0,
            f"{KEY}.top_k",
            own.top_k,
            f"{NO_GRADIENT}: use {KEY}.term=loss, which differentiates it, or 0, with which the sampled token counts",
        ),
        (
            not is_advantage and own.top_k == 0,
            f"{KEY}.top_k",
            own.top_k,
            "log p(student) - log p(teacher) of a sampled token, as a loss, has the expected gradient E[grad log p] = 0: use "
            f"{KEY}.term=advantage, or the number of the teacher's likeliest tokens, 20",
        ),
        (
            is_student and not own.top_k,
            f"{KEY}.top_k_of",
            own.top_k_of.value,
            f"is read with {KEY}.term=loss and top_k: set these, or use teacher",
        ),
        (
            is_student and own.top_k > 0 and rollout.num_logprobs != own.top_k,
            "rollout.num_logprobs",
            rollout.num_logprobs,
            f"the student's likeliest tokens are those that its servers record, as many as {KEY}.top_k: use {own.top_k}",
        ),
        (
            is_student and bool(served),
            f"{KEY}.top_k_of",
            own.top_k_of.value,
            f"{', '.join(served)} would have to score tokens that are named, and servers score their own likeliest: use "
            f"{KEY}.teachers.{next(iter(served), 'NAME')}.place=trainer, or teacher",
        ),
        (
            rollout.temperature != 1,
            "rollout.temperature",
            rollout.temperature,
            "servers give a teacher's logprobs at temperature 1, and the student's must be of the same kind: use 1.0",
        ),
        (
            rollout.top_k is not None or rollout.top_p < 1,
            "rollout.top_k" if rollout.top_k is not None else "rollout.top_p",
            rollout.top_k if rollout.top_k is not None else rollout.top_p,
            "the student's distribution would be cut and the teacher's whole: use rollout.top_k=null rollout.top_p=1.0",
        ),
        (
            algorithm.score_centering,
            "algorithm.score_centering",
            True,
            "it takes the place of the teacher's likeliest tokens in the trainer: use false",
        ),
        (
            alone and rollout.filter == FILTER,
            "rollout.filter",
            rollout.filter,
            "it replaces groups whose rewards are equal, from which a teacher teaches too: use null",
        ),
    )
    return [Problem(key=key, value=value, remedy=remedy) for is_wrong, key, value, remedy in wrong if is_wrong]


def unread(config: RunConfig) -> list[Problem]:
    """Settings that no term of the objective reads have their defaults."""
    own, default, names = config.algorithm.distillation, RunConfig(), dict[str, str]()
    if not own.teachers:
        return []
    if not own.reward_coefficient:
        remedy = f"belongs to the objective of rewards: set {KEY}.reward_coefficient, or use the default"
        names |= dict.fromkeys(OF_REWARDS, remedy)
        if own.term is TeacherTerm.loss:
            remedy = f"belongs to a policy gradient: use {KEY}.term=advantage, set {KEY}.reward_coefficient, or use the default"
            names |= dict.fromkeys(OF_RATIOS, remedy)
    if own.divergence is not Divergence.jensen_shannon:
        names["distillation.mixture"] = f"is read by {KEY}.divergence=jensen_shannon: use that, or the default"
    found = [(f"algorithm.{name}", remedy) for name, remedy in names.items()]
    return [
        Problem(key=key, value=_text(value_at(config, key)), remedy=f"{remedy}, {_text(value_at(default, key))}")
        for key, remedy in found
        if value_at(config, key) != value_at(default, key)
    ]


def vocabularies(config: RunConfig) -> list[Problem]:
    """Teacher and student give the same ids to the same tokens: their tokenizers are compared, whatever their names are."""
    problems, models, checkpoints = list[Problem](), config.serving.models, dict[str, str | None]()
    for name, teacher in config.algorithm.distillation.teachers.items():
        if teacher.place is TeacherPlace.trainer:
            checkpoints[f"{KEY}.teachers.{name}.checkpoint"] = teacher.checkpoint
        elif name in models:
            checkpoints[f"serving.models.{name}.checkpoint"] = models[name].checkpoint
    checkpoints = {key: path for key, path in checkpoints.items() if path and config.model.checkpoint}
    own = _vocabulary(config.model.checkpoint) if checkpoints else None
    for key, path in checkpoints.items():
        found = _vocabulary(path)
        if own is None or found is None or own == found:
            continue
        token = min((token for token in own.keys() | found.keys() if own.get(token) != found.get(token)), key=str)
        ids = " and ".join(f"{who} {'has no such token' if i is None else f'id {i}'}" for who, i in _both(own, found, token))
        remedy = (
            f"its tokens are not the student's, and are compared by id: {token!r} is {ids} (model.checkpoint="
            f"{config.model.checkpoint}); use a teacher with the same tokenizer"
        )
        problems.append(Problem(key=key, value=path, remedy=remedy))
    return problems


def hints(config: RunConfig) -> list[Problem]:
    """The chat template of a teacher with a hint shows it."""
    problems, models = list[Problem](), config.serving.models
    for name, teacher in config.algorithm.distillation.teachers.items():
        is_served = teacher.place is TeacherPlace.server
        path = (models[name].checkpoint if is_served and name in models else None) or config.model.checkpoint
        if teacher.hint is None or (tokenizer := _tokenizer(path)) is None:
            continue
        try:
            turn_ahead(tokenizer, PROBE)
        except (TemplateError, ValueError) as error:  # or there is no template
            reason = (str(error).splitlines() or [""])[0]
            remedy = f"its text would not reach the teacher, with the tokenizer of {path} ({reason}): use a model whose template "
            remedy += "has turns of the system or the user, or null"
            problems.append(Problem(key=f"{KEY}.teachers.{name}.hint", value=teacher.hint, remedy=remedy))
    return problems


def architectures(config: RunConfig) -> list[Problem]:
    """A teacher in the trainer can be read, and has the student's architecture in every field: its weights take the place of the
    student's. The trainer compares those that are no folders when it has loaded them."""
    problems = list[Problem]()
    for name, teacher in config.algorithm.distillation.teachers.items():
        key, path = f"{KEY}.teachers.{name}.checkpoint", teacher.checkpoint
        if teacher.place is not TeacherPlace.trainer or path is None:
            continue
        if unreadable := checkpoint_problems(key, path):
            problems += unreadable
            continue
        try:
            own, found = (_architecture(config, each) for each in (config.model.checkpoint, path))
        except (ConfigError, OSError, ValueError, KeyError):
            remedy = "its config.json is not that of a model which the trainer can load: use one of the student's architecture"
            problems.append(Problem(key=key, value=path, remedy=remedy))
            continue
        if own is not None and found is not None and (differing := differences(own, found)):
            remedy = f"it has another architecture than the student ({differing}): serve it, with place=server"
            problems.append(Problem(key=key, value=path, remedy=remedy))
    return problems


def _architecture(config: RunConfig, checkpoint: str) -> Architecture | None:
    """The architecture in a folder; None if there is no such folder."""
    folder = Path(checkpoint)
    return read_architecture(folder, rope_parameters=config.model.rope_parameters) if folder.is_dir() else None


def _import_error(path: str) -> str:
    try:
        return "" if callable(load_hook(path)) else "is no function: use module.function"
    except ImportError as error:
        return import_remedy(path, error)


def _both(own: dict[str, int], found: dict[str, int], token: str) -> list[tuple[str, int | None]]:
    return [("for the student", own.get(token)), ("for the teacher", found.get(token))]


def _vocabulary(checkpoint: str | None) -> dict[str, int] | None:
    """Ids by token; None for a checkpoint that other rules report, because it is not there."""
    tokenizer = _tokenizer(checkpoint)
    return None if tokenizer is None else tokenizer.get_vocab()


def _tokenizer(checkpoint: str | None) -> Any:
    try:
        return load_tokenizer(str(checkpoint))
    except (OSError, ValueError):
        return None


def _text(value: object) -> str:
    return written(getattr(value, "value", value))
