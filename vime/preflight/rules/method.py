"""The method: one is chosen, its hooks have the right signatures, and its own rules hold."""

import re
from functools import partial

from vime.agent.entry import entry_problems
from vime.algorithm.choice import is_paired
from vime.config import TRY, AlgorithmName, Mode, RunConfig, TrialEngine
from vime.errors import Problem
from vime.grading.judge import JudgeConfig
from vime.hooks import HOOKS, check_hook
from vime.preflight.rules.numbers import value_at
from vime.preflight.search_path import installed_methods

JUDGED = {"method.group_reward": "vime.grading.judge.ranking", "method.reward": "vime.grading.judge.rubric"}
_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def chosen(config: RunConfig) -> list[Problem]:
    """The run has an agent: a method, a function of the user, or demonstrations."""
    if config.method.name or config.method.generate or config.data.demonstrations or is_paired(config):
        return []
    names = ", ".join(sorted({entry_point.name for entry_point in installed_methods()}))
    remedy = f"no agent is chosen: add +method=NAME (available: {names or 'none; run make setup'}), or set your own functions, "
    return [Problem(key="method", value="", remedy=f"{remedy}method.generate and method.reward")]


def complete(config: RunConfig) -> list[Problem]:
    """A run has a function for rollouts, and rewards from a hook or from `generate` itself."""
    if config.algorithm.name is AlgorithmName.sft:
        return []
    remedy = "is missing: set method.{}=module.function, or choose a method with +method=NAME"
    problems = []
    if not config.method.generate:
        problems.append(Problem(key="method.generate", value="", remedy=remedy.format("generate")))
    if config.method.reward == "":
        remedy = f"{remedy.format('reward')}, or null if generate sets sample.reward"
        problems.append(Problem(key="method.reward", value="", remedy=remedy))
    return problems


def hooks_fit(config: RunConfig) -> list[Problem]:
    """Every function given by its path can be imported and accepts the arguments that it is called with."""
    paths = {key: value_at(config, key) for key in HOOKS}
    checks = {"method.generate": entry_problems}
    return [problem for key, path in paths.items() if path for problem in checks.get(key, partial(check_hook, key))(path)]


def judged(config: RunConfig) -> list[Problem]:
    """A built-in reward of a judge has one, whose calls fit into the time of a reward."""
    judge, problems = JudgeConfig(), list[Problem]()
    for key, path in JUDGED.items():
        if value_at(config, key) != path:
            continue
        if judge.model not in config.serving.models:
            remedy = f"it asks serving.models.{judge.model}: add +serving.models.{judge.model}.checkpoint=FOLDER"
            problems.append(Problem(key=key, value=path, remedy=remedy))
        problems += judge.problems(config, key=key)
    return problems


def run_name(config: RunConfig) -> list[Problem]:
    """The run's name is the name of one folder under `outputs/`."""
    if _FOLDER_NAME.fullmatch(config.name):
        return []
    remedy = "the run folder has this name: use only letters, digits, '_', '-' and '.', or choose a folder with output_dir"
    return [Problem(key="name", value=config.name, remedy=remedy)]


def own_rules(config: RunConfig) -> list[Problem]:
    """The rules of the method itself."""
    return config.method.problems(config)


def trial(config: RunConfig) -> list[Problem]:
    """Scripted replies are for `mode=try`, and there are some."""
    own, key = config.trial, "trial.engine"
    if own.engine is not TrialEngine.scripted:
        if own.replies is None:
            return []
        return [Problem(key="trial.replies", value=own.replies, remedy="is read with trial.engine=scripted only: add it")]
    if config.mode not in (TRY, Mode.plan) or config.rehearse:
        wrong = (
            "rehearse=true has replies and servers of its own: leave one out" if config.rehearse else "is for mode=try: add it"
        )
        return [Problem(key=key, value=own.engine.value, remedy=wrong)]
    if own.replies or config.method.rehearsal or config.data.demonstrations:
        return []
    remedy = "needs replies, and the method has none: write one JSON line per reply to a file and add trial.replies=FILE"
    return [Problem(key=key, value=own.engine.value, remedy=remedy)]
