"""Reads a Dockerfile that copies files and installs packages, and refuses every line that does more, with its number."""

import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from posixpath import normpath

from agentic.harbor.shell_commands import (
    CannotBeDoneError,
    Installs,
    Refusal,
    Requested,
    commands_of,
    expanded,
    logical_lines,
    missing_system_package,
    pip_words,
    read_apt,
    read_pip,
    requirements_in,
    without_assignments,
)
from vime.agent.bubblewrap import interpreter

FILE = "environment/Dockerfile"
_SILENT = {"CMD", "ENTRYPOINT", "LABEL", "EXPOSE", "USER", "MAINTAINER", "STOPSIGNAL"}
"""Instructions that change nothing here: commands come from the agent, and a workspace has one user."""
_HOST = {"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "proc", "sys", "dev", "boot", "packages", "testbed"}
"""Folders that a workspace shows as its host has them, or that are its own."""
_DEEP = {"home", "root", "run", "var", "opt", "mnt", "srv", "media"}
"""Folders below which a task has folders of its own, so that a place is two names long."""
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")
_LISTS = ("/var/lib/apt/lists", "/var/cache/apt", "/root/.cache", *_TEMPORARY)
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_OPERATOR = re.compile(r"\|\||(?<!&)&(?!&)|(?<!\|)\|(?!\|)|[<>](?!=)")
"""Operators of the shell other than && and ;, outside of quotes."""
_PYTHON_TAG = re.compile(r"(\d+\.\d+)(\.\d+)?(-[\w.-]+)?")
_MACHINES = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Copied:
    """A file or folder of the build's context and its place. Example: `Copied(source=Path("…/app"), target="/app", line=3)`."""

    source: Path
    target: str
    """A folder's content lies here."""
    line: int

    def entries(self) -> Iterable[tuple[Path, str]]:
        """The file or folder and all that is in it, folders first, with their places; links in it stay links."""
        yield self.source, self.target
        for found, folders, files in os.walk(self.source):
            for path in (Path(found, name) for name in (*folders, *files)):
                yield path, f"{self.target}/{path.relative_to(self.source).as_posix()}"

    def is_folder(self, path: Path) -> bool:
        """True if an entry's path is a folder, and no link in the source that stays one."""
        return path.is_dir() and (path == self.source or not path.is_symlink())


@dataclass(kw_only=True, slots=True)
class Image:
    """The content of a Dockerfile that was read.

    Example: `Image(copies=[Copied(…)], commands=[["mkdir", "-p", "/app"]], environment={"LANG": "C"}, workdir="/app", …)`.
    """

    copies: list[Copied] = field(default_factory=list)
    """In their order: a later one replaces files of an earlier one."""
    commands: list[list[str]] = field(default_factory=list)
    """mkdir and chmod, for a workspace that has just been opened."""
    environment: dict[str, str] = field(default_factory=dict)
    """Values may refer to `$PATH`, the path without this image."""
    workdir: str = "/"
    python: list[Requested] = field(default_factory=list)
    """Requirements for Python, as pip reads them."""
    places: set[str] = field(default_factory=set)
    """Top folders, or folders one below them, that the image has besides those of its system."""

    def source_of(self, path: str) -> Path | None:
        """The file of the context that lies at a path of the image."""
        for copied in reversed(self.copies):
            if path == copied.target and copied.source.is_file():
                return copied.source
            below = copied.source / PurePosixPath(path).relative_to(copied.target) if _is_below(path, copied.target) else None
            if below is not None and below.is_file():
                return below
        return None


def read_dockerfile(text: str, context: Path) -> tuple[Image, list[Refusal]]:
    """The image of a Dockerfile with its context folder, and the lines that cannot be done here."""
    reader = _Reader(context)
    lines = iter(logical_lines(text, comments_within=True))
    if re.match(r"\s*#\s*escape\s*=\s*[^\\\s]", text):
        reader.refuse(1, text.splitlines()[0], "another escape character than a backslash is not supported")
    for number, line in lines:
        reader.read(number, line)
        if found := _HEREDOC.search(line):
            for _, inner in lines:
                if inner == found[1]:
                    break
    if not reader.bases:
        reader.refuse(0, "", "has no FROM")
    return reader.image, reader.refusals


def place_of(path: str) -> str:
    """The place that a path of a task needs in the workspace, "" for a temporary one.

    Raises CannotBeDoneError if there can be none.
    """
    path = normpath(path)
    if not path.startswith("/"):
        raise CannotBeDoneError(f"{path} does not begin with /")
    names = [name for name in path.split("/") if name]
    if any(path == folder or _is_below(path, folder) for folder in _TEMPORARY):
        return ""
    if not names:
        raise CannotBeDoneError("a workspace has no files of a task in / itself")
    place = "/".join(["", *names[: 2 if names[0] in _DEEP else 1]])
    if names[0] in _HOST or place == "/run/workspace" or (names[0] in _DEEP and len(names) < 2):
        raise CannotBeDoneError(f"a workspace shows its host's /{names[0]}, which a task cannot change")
    if any(shown == place or _is_below(shown, place) for shown in (interpreter(), sys.base_prefix)):
        raise CannotBeDoneError(f"{place} holds this machine's Python")
    return place


class _Reader:
    """Reads instructions one after the other."""

    def __init__(self, context: Path) -> None:
        self.image, self.refusals, self.bases = Image(), list[Refusal](), 0
        self._context, self._shown, self._arguments = context, context.name, dict[str, str]()
        self._folders, self._files = {"/"}, set[str]()
        """Folders that are known to exist at this line, and places of files and links."""

    def refuse(self, number: int, text: str, reason: str) -> None:
        self.refusals.append(Refusal(file=FILE, line=number, text=text, reason=reason))

    def read(self, number: int, line: str) -> None:
        name, _, rest = line.partition(" ")
        name, rest = name.upper(), rest.strip()
        if name in _SILENT:
            return
        instructions: dict[str, Callable[[str, int, str], None]] = {
            "FROM": self._from,
            "WORKDIR": self._workdir,
            "COPY": self._copy,
            "ADD": self._copy,
            "ENV": self._env,
            "ARG": self._arg,
            "RUN": self._run,
            "SHELL": self._shell,
        }
        try:
            if name not in instructions:
                raise CannotBeDoneError(f"{name} is not supported")
            if _HEREDOC.search(line):
                raise CannotBeDoneError("a text within the Dockerfile (<<) is not supported")
            instructions[name](rest, number, line)
        except (CannotBeDoneError, ValueError) as error:
            self.refuse(number, line, str(error))

    def _variables(self) -> dict[str, str]:
        return {**self._arguments, **self.image.environment}

    def _from(self, rest: str, number: int, line: str) -> None:
        self.bases += 1
        words = expanded(rest, self._variables()).split()
        asked = words.pop(0).partition("=")[2] if words[:1] and words[0].startswith("--platform=") else ""
        if asked and asked != _MACHINES.get(platform.machine()):
            raise CannotBeDoneError(f"this machine is {platform.machine()}")
        if self.bases > 1:
            raise CannotBeDoneError("several stages are not supported")
        named = (words or [""])[0].partition("@")[0]
        image, _, tag = named.removeprefix("docker.io/").removeprefix("library/").partition(":")
        if image in ("debian", "ubuntu"):
            return
        if image != "python":
            raise CannotBeDoneError(f"the image {named} cannot be had without containers: only python:X.Y, debian and ubuntu can")
        found, own = _PYTHON_TAG.fullmatch(tag), f"{sys.version_info.major}.{sys.version_info.minor}"
        if found is None or "alpine" in tag or "windows" in tag:
            raise CannotBeDoneError(f"python:{tag or 'latest'} names no version X.Y on Debian")
        if found[1] != own:
            raise CannotBeDoneError(f"this Python is {own}: run vime with Python {found[1]}")

    def _workdir(self, rest: str, number: int, line: str) -> None:
        folder = self._path(expanded(_unquoted(rest), self._variables()))
        self._add_place(folder)
        self.image.workdir = folder
        self._folders.add(folder)
        self.image.commands.append(["mkdir", "-p", folder])

    def _env(self, rest: str, number: int, line: str) -> None:
        name, _, value = rest.partition(" ")
        pairs = [word.partition("=") for word in shlex.split(rest)] if "=" in name else [(name, "=", value.strip())]
        known = {"PATH": "$PATH", **self._variables()}
        self.image.environment |= {name: expanded(value, known) for name, _, value in pairs}

    def _arg(self, rest: str, number: int, line: str) -> None:
        for word in shlex.split(rest):
            name, is_set, value = word.partition("=")
            if not is_set and name not in self._arguments:
                raise CannotBeDoneError(f"the argument {name} has no default")
            if is_set:
                self._arguments[name] = expanded(value, self._variables())

    def _shell(self, rest: str, number: int, line: str) -> None:
        words = json.loads(rest)
        if not words or Path(words[0]).name not in ("bash", "sh"):
            raise CannotBeDoneError("the shell must be bash")

    def _copy(self, rest: str, number: int, line: str) -> None:
        words = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
        words = [expanded(word, self._variables()) for word in words]
        mode = ""
        while words and words[0].startswith("--"):
            option, _, value = words.pop(0).partition("=")
            if option == "--chmod":
                mode = value
            elif option not in ("--chown", "--link"):
                raise CannotBeDoneError(f"the option {option} is not supported")
        if len(words) < 2:
            raise CannotBeDoneError("names no files and their place")
        if (self._context / ".dockerignore").exists() or (self._context / "Dockerfile.dockerignore").exists():
            raise CannotBeDoneError("a .dockerignore is not supported")
        *sources, target = words
        folder = self._path(target)
        self._add_place(folder)
        if folder in _TEMPORARY or any(_is_below(folder, place) for place in _TEMPORARY):
            raise CannotBeDoneError(f"{folder} is empty when a workspace opens")
        found = [path for source in sources for path in self._found(source, adds=line[:3].upper() == "ADD")]
        into = target.endswith("/") or len(found) > 1 or folder in self._folders
        for path in found:
            place = folder if path.is_dir() or not into else normpath(f"{folder}/{path.name}")
            self._lay_out(Copied(source=path, target=place, line=number))
        if mode:
            self.image.commands += [["chmod", "-R", mode, copied.target] for copied in self.image.copies[-len(found) :]]

    def _lay_out(self, copied: Copied) -> None:
        """Adds a copy. Raises CannotBeDoneError if it would write through a link, or if files and folders replace each other."""
        entries = list(copied.entries())
        folders = {place for path, place in entries if copied.is_folder(path)}
        files = {place for _, place in entries} - folders
        folders |= {str(place) for place in PurePosixPath(copied.target).parents}
        if through := folders & self._files:
            raise CannotBeDoneError(f"{min(through)} is no folder, but a file or link that an earlier line has put there")
        if replaced := files & self._folders:
            raise CannotBeDoneError(f"{min(replaced)} is a folder of an earlier line")
        self._folders |= folders
        self._files |= files
        self.image.copies.append(copied)

    def _found(self, source: str, *, adds: bool) -> list[Path]:
        """The files and folders of the context that a word of COPY names."""
        if re.match(r"\w+://|git@", source):
            raise CannotBeDoneError(f"{source} lies outside of the task's folder")
        relative = normpath(source.lstrip("/") or ".")
        if relative.split("/")[0] == "..":
            raise CannotBeDoneError(f"{source} lies outside of {self._shown}/")
        paths = sorted(self._context.glob(relative)) if re.search(r"[*?\[]", relative) else [self._context / relative]
        context = Path(os.path.realpath(self._context))
        hidden = [context / name for name in ("tests", "solution") if (context / "task.toml").exists()]
        for path in paths:
            real = Path(os.path.realpath(path))
            if not real.is_relative_to(context):
                raise CannotBeDoneError(f"{self._shown}/{relative} leads outside of {self._shown}/")
            if not path.exists():
                raise CannotBeDoneError(f"{self._shown}/{relative} does not exist")
            if any(real in (folder, *folder.parents) or folder in real.parents for folder in hidden):
                raise CannotBeDoneError("the agent would see the tests or the solution")
            if adds and path.is_file() and re.search(r"\.(tar|tgz|tar\.\w+|tbz2?|txz)$", path.name):
                raise CannotBeDoneError("an archive that ADD unpacks is not supported")
        if not paths:
            raise CannotBeDoneError(f"no file of {self._shown}/ is named {relative}")
        return paths

    def _run(self, rest: str, number: int, line: str) -> None:
        rest = re.sub(r"^(--mount=type=cache\S*\s+)+", "", rest)
        if rest.startswith("["):
            commands = [json.loads(rest)]
        else:
            bare = _QUOTED.sub("", rest)
            if _OPERATOR.search(bare) or "$(" in rest or "`" in rest:
                raise CannotBeDoneError(
                    "only mkdir, chmod, apt-get, pip and the removal of package lists can be done, one after another (&& or ;)"
                )
            commands = commands_of(rest)
        for command in commands:
            self._command([expanded(word, self._variables()) for word in command], number, line)

    def _command(self, command: list[str], number: int, line: str) -> None:
        command, installs = without_assignments(command), Installs()
        if not command or command[0] in ("true", ":", "set"):
            return
        if command[0] in ("apt-get", "apt"):
            read_apt(command, installs, line=number, text=line)
            for package in installs.system:
                if reason := missing_system_package(package.name):
                    raise CannotBeDoneError(reason)
        elif (words := pip_words(command)) is not None:
            read_pip(words, installs, line=number, text=line)
            self.image.python += installs.python
            for file in installs.files:
                self._requirements(file)
        elif command[0] in ("mkdir", "chmod"):
            paths = [word for word in command[1:] if not word.startswith("-")]
            paths = paths[1:] if command[0] == "chmod" or "-m" in command else paths
            whole = [self._path(path) if path in paths else path for path in command[1:]]
            for path in paths:
                self._add_place(self._path(path))
            self._folders |= {self._path(path) for path in paths if command[0] == "mkdir"}
            self.image.commands.append([command[0], *whole])
        elif command[0] == "rm" and all(
            any(path == folder or _is_below(path, folder) for folder in _LISTS)
            for path in command[1:]
            if not path.startswith("-")
        ):
            return
        else:
            raise CannotBeDoneError(
                f"{' '.join(command[:3])}: only mkdir, chmod, apt-get, pip and the removal of package lists can be done"
            )

    def _requirements(self, file: Requested) -> None:
        path = self._path(file.name)
        source = self.image.source_of(path)
        if source is None:
            raise CannotBeDoneError(f"no COPY before it has put a file at {path}")
        name = os.path.relpath(source, self._context.parent)
        found, refused = requirements_in(source.read_text(encoding="utf-8"), file=name)
        self.image.python += [Requested(name=wanted.name, line=file.line, text=file.text) for wanted in found]
        self.refusals += refused

    def _path(self, path: str) -> str:
        return normpath(f"{self.image.workdir}/{path}" if not path.startswith("/") else path).replace("//", "/")

    def _add_place(self, path: str) -> None:
        if place := place_of(path):
            self.image.places.add(place)


def _unquoted(text: str) -> str:
    return text.strip().strip("\"'")


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(f"{folder.rstrip('/')}/")
