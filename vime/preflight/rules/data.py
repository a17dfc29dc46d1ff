"""Data sets: each has one source and a name of its own."""

import inspect
import re
from dataclasses import fields

from vime.algorithm.choice import is_paired
from vime.config import AlgorithmName, DatasetConfig, RunConfig
from vime.data.dataset import NAME
from vime.errors import Problem
from vime.hooks import import_remedy, load_hook

_HUB_FILE = re.compile(r"hf://datasets/[\w.-]+/[\w.-]+(@[\w.-]+)?/.+")
CURRICULUM = "vime.data.curriculum.Curriculum"


def datasets(config: RunConfig) -> dict[str, DatasetConfig]:
    """The data sets that this run reads, by their configuration keys."""
    found = {f"data.evaluation.{position}": dataset for position, dataset in enumerate(config.data.evaluation)}
    reads_rows = config.algorithm.name is not AlgorithmName.sft or is_paired(config)
    return {"data.train": config.data.train, **found} if reads_rows else found


def sources(config: RunConfig) -> list[Problem]:
    """A data set comes either from a path or from a generator."""
    problems = []
    for key, dataset in datasets(config).items():
        if dataset.path and dataset.generator:
            remedy = f"{key}.generator={dataset.generator} is also set, by you or by a chosen option: "
            remedy += f"add {key}.generator=null to use the path"
            problems.append(Problem(key=f"{key}.path", value=dataset.path, remedy=remedy))
        if dataset.path and "://" in dataset.path and not _HUB_FILE.fullmatch(dataset.path):
            remedy = (
                "is no address of a file on the Hugging Face Hub: use hf://datasets/OWNER/NAME@REVISION/FILE, the id OWNER/NAME "
            )
            remedy += "of a whole data set, or a local file"
            problems.append(Problem(key=f"{key}.path", value=dataset.path, remedy=remedy))
        if not dataset.path and not dataset.generator:
            remedy = (
                f"the data set has no source: set {key}.path (a file: jsonl, json, csv, tsv or parquet, or a Hugging Face id) or "
                f"{key}.generator (module.function)"
            )
            problems.append(Problem(key=f"{key}.path", value=dataset.path, remedy=remedy))
        if dataset.generator and dataset.num_items is None:
            remedy = "a generator needs the number of rows to make: set a number, for example 1000"
            problems.append(Problem(key=f"{key}.num_items", value=None, remedy=remedy))
    return problems


def curriculum(config: RunConfig) -> list[Problem]:
    """Pools of rows have a source that keeps them, their limits are in order, and no race decides them in a run that repeats."""
    own, problems, key = config.data.curriculum, list[Problem](), "data.curriculum"
    if config.data.source != CURRICULUM:
        remedy = f"{config.data.source} has no pools: use data.source={CURRICULUM}, or leave this out"
        changed = {field.name: getattr(own, field.name) for field in fields(own) if getattr(own, field.name) != field.default}
        return [Problem(key=f"{key}.{name}", value=value, remedy=remedy) for name, value in changed.items()]
    if own.hopeless_at >= own.solved_at:
        remedy = f"a row is hopeless below and solved above: use less than {key}.solved_at={own.solved_at:g}"
        problems.append(Problem(key=f"{key}.hopeless_at", value=own.hopeless_at, remedy=remedy))
    rollout = config.rollout
    if config.deterministic and (rollout.max_staleness or rollout.filter or rollout.num_oversampled_prompts):
        remedy = "the pools depend on which group finishes first: use rollout.max_staleness=0, no filter and no spare prompts"
        problems.append(Problem(key="data.source", value=CURRICULUM, remedy=f"with deterministic=true {remedy}"))
    return problems


def names(config: RunConfig) -> list[Problem]:
    """Evaluation sets have different names, which are also file names."""
    problems, seen = [], set()
    for key, dataset in datasets(config).items():
        if not NAME.fullmatch(dataset.name):
            remedy = "files are named after it: use only letters, digits, '_', '-' and '.'"
            problems.append(Problem(key=f"{key}.name", value=dataset.name, remedy=remedy))
        if key != "data.train":
            if dataset.name in seen:
                remedy = "another evaluation set has this name: give each set its own name"
                problems.append(Problem(key=f"{key}.name", value=dataset.name, remedy=remedy))
            seen.add(dataset.name)
    return problems


def demonstrations(config: RunConfig) -> list[Problem]:
    """Supervised training has demonstrations, which pairs of replies are learned from once, as weights of a forward pass say."""
    if config.algorithm.name is not AlgorithmName.sft:
        return []
    if is_paired(config):
        passes, key = config.trainer.num_epochs_per_batch, "trainer.num_epochs_per_batch"
        remedy = "the weights of pairs are computed before a step, and hold for one: use 1, and more steps"
        return [Problem(key=key, value=passes, remedy=remedy)] if passes > 1 else []
    if config.data.demonstrations:
        return []
    remedy = "algorithm=sft needs a function that makes demonstrations: use module.function, or choose algorithm=grpo"
    return [Problem(key="data.demonstrations", value=config.data.demonstrations, remedy=remedy)]


def generators(config: RunConfig) -> list[Problem]:
    """Every generator can be imported and accepts the arguments that it is called with."""
    problems = []
    for key, dataset in datasets(config).items():
        if not dataset.generator:
            continue
        try:
            function = load_hook(dataset.generator)
        except ImportError as error:
            remedy = import_remedy(dataset.generator, error)
            problems.append(Problem(key=f"{key}.generator", value=dataset.generator, remedy=remedy))
            continue
        try:
            inspect.signature(function).bind(num_items=dataset.num_items, seed=dataset.seed, **dataset.generator_args)
        except (TypeError, ValueError) as error:
            remedy = f"{dataset.generator} does not accept them ({error}); it is called with num_items, seed and these"
            problems.append(Problem(key=f"{key}.generator_args", value=dataset.generator_args, remedy=remedy))
    return problems
