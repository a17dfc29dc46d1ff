"""Values of `method.generate`: a function that returns samples, a function that takes a client of its model, or a command line.

async def generate(context, sample, sampling)     my_agent.py:generate        vime's own interface
async def solve(openai_client, sample)            my_agent.py:solve           openai.AsyncOpenAI, of the rollout's session
def solve(openai_client, sample)                  my_agent.py:solve           openai.OpenAI, in a thread
async def solve(anthropic_client, sample)         my_agent.py:solve           anthropic.AsyncAnthropic; def: Anthropic
run env/bin/python my_agent.py {question}                                     a program with OPENAI_BASE_URL and the like
"""

import importlib.util
import inspect
import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vime.errors import Problem, SampleError
from vime.hooks import check_hook, load_hook

KEY = "method.generate"
RUN = "run "
CLIENTS = {"openai_client": "openai", "anthropic_client": "anthropic"}
"""Packages of the clients that a function can take, by the name of its first parameter."""
FIELD = re.compile(r"\{(\w+)\}")


def client_of(function: Callable[..., Any]) -> str:
    """The name of the client that a function takes as its first argument; "" if it takes none."""
    try:
        first = next(iter(inspect.signature(function).parameters), "")
    except (TypeError, ValueError):
        return ""
    return first if first in CLIENTS else ""


def words_of(path: str) -> list[str] | None:
    """The words of a command line, with places for fields of the row; None if a function is named.

    Raises ValueError for a quotation mark without its partner, or no words.
    """
    if not path.startswith(RUN):
        return None
    words = shlex.split(path.removeprefix(RUN))
    if not words:
        raise ValueError("no program is named")
    return words


def filled(words: list[str], fields: Mapping[str, Any]) -> list[str]:
    """The words with the row's own fields in place of `{field}`. Raises SampleError for a field that the row does not have."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in fields:
            raise SampleError(f"{KEY}: the row has no field {match[0]}; it has {', '.join(sorted(fields))}")
        return str(fields[match[1]])

    return [FIELD.sub(value, word) for word in words]


def entry_problems(path: str) -> list[Problem]:
    """Problems of the function or program that `method.generate` names."""
    try:
        words = words_of(path)
    except ValueError as error:
        return [Problem(key=KEY, value=path, remedy=f"is no command line ({error}): write run PROGRAM ARGUMENTS")]
    if words is not None:
        if FIELD.search(words[0]) or shutil.which(words[0]):
            return []
        remedy = f"there is no program {words[0]!r}: give a name on PATH, or a path from {Path.cwd()}"
        return [Problem(key=KEY, value=path, remedy=remedy)]
    try:
        function = load_hook(path)
    except ImportError:
        return check_hook(KEY, path)  # which says so
    client = client_of(function)
    if not client:
        return check_hook(KEY, path)
    if importlib.util.find_spec(CLIENTS[client]) is None:
        return [Problem(key=KEY, value=path, remedy=f"needs the package {CLIENTS[client]}: pip install {CLIENTS[client]}")]
    try:
        inspect.signature(function).bind(client, "sample")
    except TypeError as error:
        definition = f"async def {path.rpartition('.')[2].rpartition(':')[2]}({client}, sample)"
        return [Problem(key=KEY, value=path, remedy=f"has the wrong signature ({error}): define it as {definition}")]
    return []
