"""The documentation of every setting, taken from the fields of the configuration: `python -m vime.run --help trainer.lr`."""

import ast
import dataclasses
import difflib
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from vime.config import RunConfig
from vime.config.ranges import range_in
from vime.errors import ConfigError, Problem
from vime.preflight.compose import register_schemas

WIDTH = 120
NAME = "NAME"
"""Placeholder in a key for the name of an entry of a dictionary, or for the number of an entry of a list."""
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", list: "a list", dict: "a dictionary"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One key of the configuration.

    Example: `Setting(key="trainer.lr", default="1e-06", values="a number, more than 0", text="Learning rate.")`.
    """

    key: str
    default: str | None
    """The default value; None for a group of settings."""
    values: str
    text: str


def help_topics(words: list[str]) -> list[str]:
    """The words of a command line that are only keys, as in `--help trainer.lr`: no flags and nothing with `=`."""
    return [word for word in words if "=" not in word and not word.startswith(("-", "+"))]


def show_documentation(topics: list[str]) -> str:
    """Key, default, allowed values and documentation of every setting under the topics, which are keys or groups of keys.

    Raises `ConfigError` for a topic that is not a key.
    """
    every = list(settings())
    chosen = {topic: [setting for setting in every if _is_under(setting.key, topic)] for topic in topics}
    if unknown := [topic for topic, found in chosen.items() if not found]:
        raise ConfigError([Problem(key="--help", value=topic, remedy=_remedy(topic, every)) for topic in unknown])
    return "\n".join(_paragraph(setting) for found in chosen.values() for setting in found)


def settings() -> Iterator[Setting]:
    """All settings of a run, and those of every installed method."""
    register_schemas()
    yield from _settings_of(RunConfig, "")
    base = {field.name for field in dataclasses.fields(RunConfig().method)}
    stored = ConfigStore.instance().repo.get("schema", {}).get("method", {})
    for file, node in sorted(stored.items()):
        choice = f"With +method={file.removesuffix('.yaml')}: "
        for setting in _settings_of(OmegaConf.get_type(node.node), "method."):
            if setting.key.split(".")[1] not in base:
                yield dataclasses.replace(setting, text=choice + setting.text)


def _settings_of(schema: Any, prefix: str) -> Iterator[Setting]:
    texts, hints = field_documentation(schema), get_type_hints(schema, include_extras=True)
    for field in dataclasses.fields(schema):
        hint, key = hints[field.name], f"{prefix}{field.name}"
        group = _dataclass_in(hint)
        default = None if group else _default_of(field)
        yield Setting(key=key, default=default, values=_values_of(hint), text=texts.get(field.name, ""))
        if group is not None:
            yield from _settings_of(group, f"{key}." if group is hint else f"{key}.{NAME}.")


@cache
def field_documentation(schema: type) -> dict[str, str]:
    """The string under each field of a dataclass, those of its base classes included."""
    found: dict[str, str] = {}
    for owner in reversed([each for each in schema.__mro__ if dataclasses.is_dataclass(each)]):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(definition, ast.ClassDef), owner
        for line, following in zip(definition.body, definition.body[1:]):
            match line, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text)):
                    found[name] = " ".join(str(text).split())
                case _:
                    pass
    return found


def _values_of(hint: Any) -> str:
    """The values of a type in words. Example: `a number, more than 0, or null`."""
    parts = [part for part in get_args(hint) if part is not type(None)]
    if type(None) in get_args(hint):
        return f"{_values_of(parts[0])}, or null"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return ", ".join(str(choice.value) for choice in hint)
    if _dataclass_in(hint) is not None:
        return "settings" if not parts else f"{WORDS[get_origin(hint)]} of settings"
    allowed = range_in(hint)
    if allowed is not None and get_origin(hint) is not list:
        return f"{WORDS[parts[0]]}, {allowed}" if allowed.bounds else WORDS[parts[0]]
    if get_origin(hint) is list:
        return f"a list; each entry is {_values_of(parts[0])}"
    return WORDS[get_origin(hint) or hint]


def _dataclass_in(hint: Any) -> Any:
    """The dataclass that a field, the entries of its list or the values of its dictionary are made of."""
    return next((part for part in (hint, *get_args(hint)) if isinstance(part, type) and dataclasses.is_dataclass(part)), None)


def _default_of(field: dataclasses.Field[Any]) -> str:
    value = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    plain = value.value if isinstance(value, Enum) else value
    return {None: "null", True: "true", False: "false"}[plain] if plain is None or isinstance(plain, bool) else str(plain)


def _is_under(key: str, topic: str) -> bool:
    """True if a key is the topic or below it; NAME in a key matches any name in the topic."""
    names, wanted = key.split("."), topic.split(".")
    return len(names) >= len(wanted) and all(name in (NAME, word) for name, word in zip(names, wanted))


def _remedy(topic: str, every: list[Setting]) -> str:
    similar = difflib.get_close_matches(topic, [setting.key for setting in every], n=3, cutoff=0.5)
    groups = ", ".join(setting.key for setting in every if "." not in setting.key)
    hint = f"; did you mean {', '.join(similar)}?" if similar else "."
    return f"there is no such setting{hint} Keys begin with one of: {groups}"


def _paragraph(setting: Setting) -> str:
    head = setting.key if setting.default is None else f"{setting.key}={setting.default or repr('')}  ({setting.values})"
    return f"{head}\n{textwrap.fill(setting.text, WIDTH, initial_indent='    ', subsequent_indent='    ')}\n"
