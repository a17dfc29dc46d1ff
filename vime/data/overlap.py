"""Refuses a run that would be scored on items that it trains on.

The method decides what makes two items the same (`MethodConfig.identities`): the words of a question, regardless of its document,
or the number of a task.
"""

from collections.abc import Iterable, Mapping, Sequence

from vime.config import RunConfig
from vime.errors import ConfigError, Problem
from vime.types import Prompt

NUM_EXAMPLE_CHARACTERS = 100


def check_overlap(config: RunConfig, training: Iterable[Prompt], evaluation: Mapping[str, Sequence[Prompt]]) -> None:
    """Raises `ConfigError` with one problem for each evaluation set that shares an item with the training prompts."""
    identities = config.method.identities
    wanted: dict[str, set[tuple[str, int]]] = {}
    for name, prompts in evaluation.items():
        for prompt in prompts:
            for key in identities(prompt):
                wanted.setdefault(key, set()).add((name, prompt.index))
    shared: dict[tuple[str, int], str] = {}
    for prompt in training:
        for key in identities(prompt):
            for item in wanted.get(key, ()):
                shared.setdefault(item, key)
    problems = [
        _problem(config, name, position, {item: key for item, key in shared.items() if item[0] == name}, evaluation[name])
        for position, name in enumerate(dataset.name for dataset in config.data.evaluation)
        if name in evaluation and any(item[0] == name for item in shared)
    ]
    if problems:
        raise ConfigError(problems)


def _problem(
    config: RunConfig, name: str, position: int, shared: dict[tuple[str, int], str], prompts: Sequence[Prompt]
) -> Problem:
    example = shared[min(shared)]
    short = example if len(example) <= NUM_EXAMPLE_CHARACTERS else f"{example[:NUM_EXAMPLE_CHARACTERS]}…"
    remedy = (
        f"{len(shared)} of its {len(prompts)} items are in the training set {config.data.train.name!r} as well, for example "
        f"{short!r}: leave them out of the training set, or evaluate another split"
    )
    return Problem(key=f"data.evaluation.{position}", value=name, remedy=remedy)
