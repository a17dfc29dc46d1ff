"""`vime new NAME` writes the folder of a new agent: its two functions, its recipe, its questions and a test."""

import keyword
import re
from importlib.util import find_spec
from pathlib import Path

from vime.errors import ConfigError, Problem
from vime.preflight.search_path import CONF, option_folders

TEMPLATE = Path(__file__).parent / "template"
PLACEHOLDER = "NAME"
NAME = re.compile(r"[a-z][a-z0-9_]*")
VALUES = ("null", "true", "false", "inf", "nan")
"""Names that `+method=NAME` would read as a value."""


def write_agent(words: list[str]) -> str:
    """Writes the folder that `vime new` is asked for; returns a text about it for the user.

    Raises `ConfigError`, and writes nothing, if the words are not one name that is free.
    """
    if len(words) != 1:
        raise ConfigError([Problem(key="new", value=" ".join(words), remedy="needs one name: use one name, vime new NAME")])
    name = words[0]
    folder = Path(name)
    if remedy := name_remedy(name):
        raise ConfigError([Problem(key="new", value=name, remedy=remedy)])
    files = sorted(file for file in TEMPLATE.rglob("*") if file.is_file())
    written = [folder / str(file.relative_to(TEMPLATE)).replace(PLACEHOLDER, name).removesuffix(".txt") for file in files]
    for file, target in zip(files, written):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file.read_text(encoding="utf-8").replace(PLACEHOLDER, name), encoding="utf-8")
    lines = [*map(str, written), "", f"Train it:  cd {name} && python -m vime.run +method={name}", "Test it:   python -m pytest"]
    return "\n".join(lines) + "\n"


def name_remedy(name: str) -> str | None:
    """The problem with the name of a new agent, None if there is none."""
    if not NAME.fullmatch(name) or keyword.iskeyword(name) or name in VALUES:
        return "is not a name for a Python module: use lower-case letters, digits and underscores, beginning with a letter"
    if Path(name).exists():
        return f"{Path(name).absolute()} exists: use another name"
    methods = {file.stem: file for folder in [CONF, *option_folders([])] for file in folder.glob("method/*.yaml")}
    if name in methods:
        return f"there already is a method of this name ({methods[name]}): use another name"
    if find_spec(name) is not None:
        return "there is a Python module of this name, which yours would hide: use another name"
    return None
