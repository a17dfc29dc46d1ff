"""Composes `conf/` word by word, so that one wrong override does not hide the others.

Hydra's own `compose` raises at the first mistake. Here choices of groups are checked against the files that exist, the tree is
composed from those that do, and every other override is applied separately; each failure becomes a `Problem`.
"""

import difflib
import re

from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from vime.errors import ConfigError, Problem
from vime.preflight.launchers import refused
from vime.preflight.search_path import CONF, KEY, why_unread
from vime.preflight.tree import (
    in_named_item,
    node_at,
    open_path,
    unknown_key_remedy,
    unknown_keys,
    value_remedy,
    values_missing,
)

_TWICE = re.compile(r"Multiple values for (?P<group>[\w/]+)\. To override a value use 'override [\w/]+: (?P<option>[^']+)'")
_FULL_KEY = re.compile(r"full_key: (?P<key>\S+)")
LISTED_GROUPS = ("algorithm", "preset", "cluster", "model", "logger")
"""Groups that the root lists: their choice is replaced. The others (method, experiment, sweep, users' own) need a plus."""


class Composition:
    """The overrides of one command line on their way to a tree; `problems` collects the mistakes in them."""

    def __init__(self, words: list[str]) -> None:
        self.problems: list[Problem] = []
        self._search_path = [word for word in words if word.startswith(f"{KEY}=")]
        self._overrides = [override for word in words if (override := self._parse(word)) is not None]

    def compose(self) -> DictConfig:
        """Composes the tree without the words that are wrong.

        Raises `ConfigError` if the files themselves do not compose.
        """
        groups = [override for override in self._overrides if self._is_group(override)]
        values = [override for override in self._overrides if not self._is_group(override)]
        early = [override for override in values if override.is_hydra_override() and not self._is_refused(override)]
        tree = self._compose_groups([found for group in groups if (found := self._existing(group)) is not None], early)
        for override in values:
            if not override.is_hydra_override():
                self._apply(override, tree)
        self._prefer_paths(values, tree)
        self.problems += unknown_keys(tree) + values_missing(tree)
        return tree

    def _prefer_paths(self, values: list[Override], tree: DictConfig) -> None:
        """Lets a data path that a word gives replace the generator, and its number of rows, that an option has set."""
        given = {override.key_or_group for override in values if not override.is_delete()}
        for key in given:
            dataset = node_at(tree, key.removesuffix(".path"))
            if (
                not (key.startswith("data.") and key.endswith(".path"))
                or not OmegaConf.is_dict(dataset)
                or not dataset.get("path")
            ):
                continue
            above = key.removesuffix("path")
            if dataset.get("generator") and f"{above}generator" not in given:
                dataset["generator"] = None
                if f"{above}num_items" not in given:
                    dataset["num_items"] = None

    @property
    def has_wrong_choice(self) -> bool:
        """True if an option of a group is among the problems."""
        return any(self._options(problem.key) for problem in self.problems)

    def _options(self, group: str) -> list[str]:
        """The choices of a group in all folders of options; none if there is no such group."""
        return GlobalHydra.instance().config_loader().get_group_options(group, overrides=self._search_path)

    def _parse(self, word: str) -> Override | None:
        try:
            override = OverridesParser.create().parse_override(word)
        except HydraException as error:
            key, _, value = word.partition("=")
            reason = str(error).splitlines()[0] if "=" in word else "there is no equals sign"
            remedy = f"cannot be read as key=value ({reason}): quote spaces and special characters, 'key=\"a b\"'"
            self.problems.append(Problem(key=key, value=value, remedy=remedy))
            return None
        if override.is_sweep_override():
            remedy = "has several values, which is a sweep: add --multirun, or write a list as [a,b]"
            self.problems.append(Problem(key=override.key_or_group, value=_text(override), remedy=remedy))
            return None
        return override

    def _is_group(self, override: Override) -> bool:
        if override.is_hydra_override() or isinstance(override.value(), dict):
            return False
        return "." not in override.key_or_group and bool(self._options(override.key_or_group))

    def _is_refused(self, override: Override) -> bool:
        """True if a word chooses a launcher or sweeper that vime does not run."""
        problems = refused({override.key_or_group: override.value()})
        self.problems += problems
        return bool(problems)

    def _existing(self, override: Override) -> Override | None:
        """Returns the choice, with its plus corrected so that the rest can be checked; None if there is no such option."""
        group, choice = override.key_or_group, override.value()
        options = self._options(group)
        added = override.is_add() or override.is_force_add()
        if not override.is_delete() and choice not in options:
            hint = why_unread(f"{group}/{choice}") or _of_checkpoint(group, str(choice), options)
            hint = hint or _did_you_mean(group, str(choice), options)
            remedy = f"there is no such {group}{hint}"
            self.problems.append(Problem(key=group, value=choice, remedy=remedy))
            return None
        if group not in LISTED_GROUPS and not added:
            word = f"+{group}={choice}"
            self.problems.append(Problem(key=group, value=choice, remedy=f"write it with a plus: {word}"))
        elif group in LISTED_GROUPS and override.is_add():
            word = f"{group}={choice}"
            self.problems.append(Problem(key=group, value=choice, remedy=f"write it without the plus: {word}"))
        else:
            return override
        return OverridesParser.create().parse_override(word)

    def _compose_groups(self, groups: list[Override], early: list[Override]) -> DictConfig:
        while True:
            words = [override.input_line or "" for override in [*groups, *early]]
            try:
                return compose("config", overrides=words, return_hydra_config=True)
            except (HydraException, OmegaConfBaseException) as error:
                message = str(error)
                if self._note_second_choice(message, groups):
                    continue
                culprit = next((override for override in [*early, *groups] if override.key_or_group in message), None)
                if culprit is None:
                    remedy = " ".join(message.split())
                    raise ConfigError([*self.problems, Problem(key="", value=" ".join(words), remedy=remedy)]) from error
                self.problems.append(Problem(key=culprit.key_or_group, value=_text(culprit), remedy=" ".join(message.split())))
                (early if culprit in early else groups).remove(culprit)

    def _note_second_choice(self, message: str, groups: list[Override]) -> bool:
        """True if an option chooses for a group what a word chooses differently; the word is then left out and reported."""
        found = _TWICE.search(message)
        word = next((each for each in groups if found and each.key_or_group == found["group"]), None)
        if found is None or word is None:
            return False
        group, chosen = found["group"], found["option"]
        remedy = (
            f"another of your options, an experiment for example, chooses {group}={chosen}: leave out +{group}={word.value()}"
        )
        self.problems.append(Problem(key=group, value=word.value(), remedy=remedy))
        groups.remove(word)
        return True

    def _apply(self, override: Override, tree: DictConfig) -> None:
        try:
            _change(tree, override)
        except (OmegaConfBaseException, ValueError, TypeError, IndexError) as error:
            remedy = self._remedy(override, tree, error)
            self.problems.append(Problem(key=override.key_or_group, value=_text(override), remedy=remedy))

    def _remedy(self, override: Override, tree: DictConfig, error: Exception) -> str:
        key, reason = override.key_or_group, str(error)
        node = node_at(tree, key)
        if OmegaConf.is_dict(node) and not isinstance(override.value(), dict):
            names = [f"{key}.{name}" for name in node]
            return f"is a group of settings: set one of {', '.join(names)}" if names else f"has keys: write {key}={{name: value}}"
        if override.is_delete():
            return "cannot be removed: set it to a value"
        if node is not None and "not in" in reason:
            inside = _FULL_KEY.search(reason)
            return unknown_key_remedy(tree, inside["key"]) if inside else reason.splitlines()[0]
        if isinstance(error, ConfigAttributeError | ConfigKeyError):
            return unknown_key_remedy(tree, key)
        return value_remedy(reason.splitlines()[0], tree, key)


def _change(tree: DictConfig, override: Override) -> None:
    """Applies one override to a tree. Raises an error of OmegaConf, ValueError, TypeError or IndexError if that cannot be."""
    key, value, node = override.key_or_group, override.value(), node_at(tree, override.key_or_group)
    add = override.is_add() or override.is_force_add()
    if override.package is not None:
        raise ConfigKeyError(f"there is no group {key}")
    if override.is_add() and not (node is None or isinstance(value, dict | list) or in_named_item(tree, key)):
        raise ValueError(f"is set already: write it without the plus ({key}={_text(override)})")
    # a dictionary goes into the one that is there, whose keys may be free: `unknown_keys` finds those that are not
    whole = isinstance(value, dict) and OmegaConf.is_dict(node)
    root, rest = open_path(tree, key, add=add)
    if not override.is_delete():
        OmegaConf.update(root, rest, value, merge=True, force_add=add or whole)
    elif node is None or value not in (None, node):
        raise ValueError(f"{key} is {node}")
    else:
        above, _, name = rest.rpartition(".")
        with open_dict(root):
            del (OmegaConf.select(root, above) if above else root)[name]


def _of_checkpoint(group: str, choice: str, options: list[str]) -> str:
    """The option whose model has this checkpoint, or how to name one without an option."""
    if group != "model" or "/" not in choice:
        return ""
    for option in options:
        file = CONF / "model" / f"{option}.yaml"
        if file.exists() and f"checkpoint: {choice}\n" in file.read_text(encoding="utf-8"):
            return f": this checkpoint is model={option}"
    named = difflib.get_close_matches(choice.rpartition("/")[2].lower(), options, n=1, cutoff=0.5)
    near = f"model={named[0]} model.checkpoint={choice}" if named else f"model=NAME model.checkpoint={choice}"
    return f": options have short names, and a checkpoint of the same shape is chosen by {near}. Available: {', '.join(options)}"


def _did_you_mean(group: str, choice: str, options: list[str]) -> str:
    match = difflib.get_close_matches(choice, options, n=1, cutoff=0.5)
    plus = "" if group in LISTED_GROUPS else "+"
    return f"{f'; did you mean {plus}{group}={match[0]}?' if match else '.'} Available: {', '.join(options)}"


def _text(override: Override) -> str:
    _, separator, value = (override.input_line or "").partition("=")
    return value if separator else ""
