"""A task folder in Harbor's layout, read as far as a workspace can carry it out; the rest is refused with its place in the file.

hello/
├── task.toml               limits, variables
├── instruction.md          the agent's task
├── environment/Dockerfile  the files that the agent finds, and the packages
├── tests/test.sh           writes the reward to /logs/verifier/reward.txt or reward.json
└── solution/solve.sh       the reference solution, if there is one
"""

import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from posixpath import normpath
from typing import Any

from agentic.harbor.compose_file import context_of
from agentic.harbor.dockerfile import Image, place_of, read_dockerfile
from agentic.harbor.shell_commands import (
    CannotBeDoneError,
    Installs,
    Refusal,
    Requested,
    commands_of,
    logical_lines,
    missing_system_package,
    pip_words,
    read_apt,
    read_pip,
    requirement_of,
    requirements_in,
    without_assignments,
)

TASK = "task"
"""Column of a row, and key of a sample's metadata: the task's folder."""
CONFIG, SCRIPT = "task.toml", "tests/test.sh"
TESTS_SECONDS = 600.0
"""Limit of the tests if the task names none, as in Harbor."""
_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
_UNSUPPORTED: dict[str, str] = {
    "steps": "tasks of several steps are not supported",
    "environment.gpus": "a workspace has no GPU",
    "environment.tpu": "a workspace has no TPU",
    "environment.mcp_servers": "MCP servers are not started",
    "environment.healthcheck": "nothing is started that could be checked",
    "environment.skills_dir": "the agent reads no skills",
    "verifier.environment": "the tests run in the agent's workspace",
    "verifier.collect": "the tests run in the agent's workspace",
}
"""Keys of task.toml that must be empty."""
_ALLOWED: dict[str, tuple[Any, str]] = {
    "environment.os": ("linux", "a workspace has Linux"),
    "verifier.environment_mode": ("shared", "the tests run in the agent's workspace"),
    "environment.allow_internet": (False, "a workspace has no network"),
    **{f"{part}.network_mode": ("no-network", "a workspace has no network") for part in ("environment", "agent", "verifier")},
}
"""Keys of task.toml with the only value that they may have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HarborTask:
    """A task that a workspace can carry out, `HarborTask.read(Path("tasks/hello"))`."""

    folder: Path
    instruction: str
    image: Image
    workdir: str
    """Commands start here."""
    agent_seconds: float | None
    """Limit of the agent's work; None for no limit of the task's own."""
    tests_seconds: float
    environment: dict[str, str]
    """Variables of all commands; values may refer to `$PATH`."""
    tests_environment: dict[str, str]
    solution_environment: dict[str, str]
    tests: Installs
    """The packages that the tests' script installs."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def agent_limit(self) -> float:
        """`agent_seconds`, infinity for none."""
        return math.inf if self.agent_seconds is None else self.agent_seconds

    @classmethod
    def read(cls, folder: Path, *, host_variables: Sequence[str] = ()) -> "HarborTask":
        """Reads a task's folder; `host_variables` are the names of this machine's variables that it may read.

        Raises RefusedError with everything in it that cannot be done.
        """
        refused = [
            Refusal(file=name, reason="does not exist")
            for name in (CONFIG, "instruction.md", "environment/Dockerfile", SCRIPT)
            if not (folder / name).is_file()
        ]
        context, problems = context_of(folder)
        refused += [*problems, *_links_outside(folder, context)]
        if (folder / "trajectory.json").exists():
            refused.append(Refusal(file="trajectory.json", reason="the agent continues no earlier conversation"))
        config, problems = _read_config(folder)
        refused += problems
        image = Image()
        if (folder / "environment/Dockerfile").is_file():
            image, problems = read_dockerfile(_text(folder / "environment/Dockerfile"), context)
            refused += problems
        tests = Installs()
        if (folder / SCRIPT).is_file():
            tests, problems = read_script(_text(folder / SCRIPT), folder / "tests")
            refused += problems
        parts = ("environment", "verifier", "solution")
        variables = {part: _variables(config, part, host_variables, refused) for part in parts}
        workdir = normpath(str(_value(config, "environment.workdir") or image.workdir))
        try:
            image.places.add(place_of(workdir) or workdir)
        except CannotBeDoneError as error:
            reason = f"{error}: name a working folder, WORKDIR /app" if workdir == "/" else str(error)
            refused.append(Refusal(file="environment/Dockerfile", text=f"WORKDIR {workdir}", reason=reason))
        if refused:
            raise RefusedError(folder, refused)
        return cls(
            folder=folder.absolute(),
            instruction=_text(folder / "instruction.md"),
            image=image,
            workdir=workdir,
            agent_seconds=_value(config, "agent.timeout_sec"),
            tests_seconds=float(_value(config, "verifier.timeout_sec") or TESTS_SECONDS),
            environment={**image.environment, **variables["environment"]},
            tests_environment=variables["verifier"],
            solution_environment=variables["solution"],
            tests=tests,
        )


class RefusedError(ValueError):
    """A task that a workspace cannot carry out, with all reasons."""

    def __init__(self, folder: Path, refusals: list[Refusal]) -> None:
        """`refusals` is not empty."""
        super().__init__(folder, refusals)
        self.folder, self.refusals = folder, refusals

    def __str__(self) -> str:
        return "; ".join(map(str, self.refusals))


def read_script(text: str, folder: Path) -> tuple[Installs, list[Refusal]]:
    """The packages that a tests' script installs, and its lines that cannot be done; `folder` is that of the tests."""
    installs, refused = Installs(), list[Refusal]()
    for line, words in logical_lines(text, comments_within=False):
        if not re.search(r"\b(uvx?|pip3?|apt(-get)?)\b", words):
            continue
        try:
            for command in commands_of(words):
                _read_command(command, installs, line, words)
        except CannotBeDoneError as error:
            refused.append(Refusal(file=SCRIPT, line=line, text=words, reason=str(error)))
        except ValueError:  # quotes over several lines, as programs in other languages have them
            continue
    for package in installs.system:
        if package.name.partition("=")[0] != "curl" and (reason := missing_system_package(package.name)):
            refused.append(Refusal(file=SCRIPT, line=package.line, text=package.text, reason=reason))
    for file in installs.files:
        path = folder / Path(file.name).name
        if Path(file.name).parent.as_posix() not in ("/tests", "$TEST_DIR", "${TEST_DIR}") or not path.is_file():
            reason = f"only a requirements file in /tests can be read before the tests run, not {file.name}"
            refused.append(Refusal(file=SCRIPT, line=file.line, text=file.text, reason=reason))
            continue
        found, problems = requirements_in(_text(path), file=f"tests/{path.name}")
        installs.python += [Requested(name=wanted.name, line=file.line, text=file.text) for wanted in found]
        refused += problems
    return installs, refused


def _read_command(command: list[str], installs: Installs, line: int, text: str) -> None:
    """Adds what one command of a script installs."""
    to_file = [bool(re.fullmatch(r"\d*[<>]+", word)) for word in ["", *command]]
    command = [word for word, is_target in zip(command, to_file) if not is_target and not re.match(r"\d*[<>]", word)]
    while command and command[0] in ("if", "then", "else", "!", "do", "sudo", "time", "{", "exec"):
        command = command[1:]
    command = without_assignments(command)
    if (words := pip_words(command)) is not None:
        if words[:1] == ["install"]:
            read_pip(words, installs, line=line, text=text)
    elif command[:1] in (["apt-get"], ["apt"]):
        read_apt(command, installs, line=line, text=text)
    elif command[:1] == ["uvx"] or command[:2] in (["uv", "run"], ["uv", "add"]) or command[:3] == ["uv", "tool", "run"]:
        _read_uv(command, installs, line, text)


def _read_uv(command: list[str], installs: Installs, line: int, text: str) -> None:
    """Adds the packages of `uvx --with PACKAGE … PROGRAM`, `uv run --with PACKAGE …` and `uv add PACKAGE …`."""
    words = iter(command[{"run": 2, "add": 2, "tool": 3}.get(command[1], 1) if len(command) > 1 else 1 :])
    named, from_, adds = list[str](), False, command[1:2] == ["add"]
    for word in words:
        option, is_set, value = word.partition("=")
        if option in ("-w", "--with", "--from") and (is_set or option == word):
            named += (value if is_set and option != "-w" else next(words, "")).split(",")
            from_ = from_ or option == "--from"
        elif option in ("-p", "--python", "--index-strategy"):
            value if is_set else next(words, "")
        elif word.startswith("-"):
            if not adds and option in ("--with-requirements", "--index", "--index-url", "--with-editable", "--extra-index-url"):
                raise CannotBeDoneError(f"uv's option {option} is not supported")
        elif adds:
            named.append(word)
        else:
            if command[0] == "uvx" or command[1] == "tool":
                named += [] if from_ else [word.replace("@", "==") if "@" in word else word]
            break
    installs.python += [Requested(name=requirement_of(name), line=line, text=text) for name in named]


def _read_config(folder: Path) -> tuple[dict[str, Any], list[Refusal]]:
    """The content of task.toml, and the keys of it that cannot be done."""
    if not (folder / CONFIG).is_file():
        return {}, []
    try:
        config = tomllib.loads(_text(folder / CONFIG))
    except tomllib.TOMLDecodeError as error:
        return {}, [Refusal(file=CONFIG, reason=f"is no TOML: {error}")]
    refused = [
        Refusal(file=CONFIG, text=f"{key} = {value!r}", reason=reason)
        for key, reason in _UNSUPPORTED.items()
        if (value := _value(config, key))
    ]
    for key, (allowed, reason) in _ALLOWED.items():
        value = _value(config, key)
        if value is not None and (value.lower() if isinstance(value, str) else value) != allowed:
            refused.append(Refusal(file=CONFIG, text=f"{key} = {value!r}", reason=reason))
    if (image := _value(config, "environment.docker_image")) and not (folder / "environment/Dockerfile").is_file():
        refused.append(Refusal(file=CONFIG, text=f"environment.docker_image = {image!r}", reason="an image is not pulled"))
    for key in ("agent.timeout_sec", "verifier.timeout_sec"):
        value = _value(config, key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0):
            refused.append(Refusal(file=CONFIG, text=f"{key} = {value!r}", reason="is no positive number of seconds"))
    return config, refused


def _value(config: Mapping[str, Any], key: str) -> Any:
    """The value of a key with points, None if it is not there."""
    found: Any = config
    for name in key.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _links_outside(folder: Path, context: Path) -> Iterable[Refusal]:
    """Links that lead outside of the task's folder, or out of the folder from which the Dockerfile copies."""
    whole = Path(os.path.realpath(folder))
    copied = whole / context.relative_to(folder)
    for path in sorted(whole.rglob("*")):
        bound = copied if path.is_relative_to(copied) else whole
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(bound):
            outside = "the task's folder" if bound == whole else f"{copied.name}/"
            yield Refusal(file=path.relative_to(whole).as_posix(), reason=f"leads outside of {outside}")


def _variables(config: Mapping[str, Any], part: str, readable: Sequence[str], refused: list[Refusal]) -> dict[str, str]:
    """The variables `PART.env`, with those of this machine in place of `${NAME}` and `${NAME:-default}`."""
    found = dict[str, str]()
    for name, value in (_value(config, f"{part}.env") or {}).items():
        template, reason = _TEMPLATE.fullmatch(str(value)), ""
        resolved = os.environ.get(template[1], template[2]) if template else str(value)
        if template and template[1] not in readable:
            reason = f"{template[1]} of this machine would be in rollouts: allow it with method.host_variables=[{template[1]}]"
        elif resolved is None:
            reason = "this machine has no such variable"
        if reason:
            refused.append(Refusal(file=CONFIG, text=f"{part}.env.{name} = {value!r}", reason=reason))
        else:
            found[name] = str(resolved)
    return found


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
