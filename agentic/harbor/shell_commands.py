"""Commands of a shell script or of a Dockerfile's RUN as far as they install packages; everything else is refused or passed over.

A `Refusal` names a line that cannot be done here, and the reason.
"""

import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from packaging.requirements import InvalidRequirement, Requirement

SHOWN_CHARACTERS = 100
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SEPARATORS = {"&&", ";", "||", "|", "&", "\n"}
_PIP_FLAGS = {
    *("--no-cache-dir", "--upgrade", "-U", "--quiet", "-q", "-qq", "--break-system-packages", "--user", "--system", "--no-input"),
    *("--disable-pip-version-check", "--prefer-binary", "--no-warn-script-location", "--root-user-action=ignore", "--no-cache"),
    *("--only-binary=:all:", "--force-reinstall", "--verbose", "-v"),
}
_APT_FLAGS = {"-y", "-q", "-qq", "-yq", "-yqq", "-qy", "-qqy", "--yes", "--assume-yes", "--no-install-recommends", "--quiet"}
_APT_NOTHING = {"update", "clean", "autoclean", "autoremove"}
"""Commands of apt-get after which a workspace is as before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """Part of a task that cannot be done here.

    Example: `Refusal(file="environment/Dockerfile", line=7, text="RUN make", reason="make is not run at preparation")`.
    """

    file: str
    """Path below the task's folder."""
    line: int = 0
    """The line's number, 0 for a whole file."""
    text: str = ""
    """The line, or the key with its value."""
    reason: str

    def __str__(self) -> str:
        at = f"{self.file}:{self.line}" if self.line else self.file
        text = self.text if len(self.text) <= SHOWN_CHARACTERS else f"{self.text[:SHOWN_CHARACTERS]}…"
        return f"{at}: {f'`{text}`: ' if text else ''}{self.reason}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Requested:
    """Something that a line installs. Example: `Requested(name="pytest==8.4.1", line=18, text="-w pytest==8.4.1 \\\\")`."""

    name: str
    line: int
    text: str


@dataclass(kw_only=True, slots=True)
class Installs:
    """Everything that a script installs, by the kind of its source."""

    python: list[Requested] = field(default_factory=list)
    """Requirements for Python, as pip reads them."""
    files: list[Requested] = field(default_factory=list)
    """Requirement files (`pip install -r`)."""
    system: list[Requested] = field(default_factory=list)
    """Packages of Debian."""


class CannotBeDoneError(ValueError):
    """A command is none of those that can be done here; the text is the reason."""


def logical_lines(text: str, *, comments_within: bool) -> Iterable[tuple[int, str]]:
    """The lines of a file with their numbers from 1; a backslash at the end joins the next, and comments are left out.

    With `comments_within` a comment between two joined lines is left out too, as in a Dockerfile.
    """
    first, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        is_comment = line.lstrip().startswith("#")
        if is_comment and (comments_within or not parts):
            continue
        if comments_within and parts and not line.strip():
            continue
        first = first or number
        parts.append(line.rstrip().removesuffix("\\"))
        if not line.rstrip().endswith("\\"):
            if joined := " ".join(part.strip() for part in parts).strip():
                yield first, joined
            first, parts = 0, []
    if joined := " ".join(part.strip() for part in parts).strip():
        yield first, joined


def commands_of(line: str) -> list[list[str]]:
    """The commands of a line of the shell, each as words; operators between them are dropped, redirections stay as words.

    Raises ValueError for quotes that do not end.
    """
    words = shlex.shlex(line, posix=True, punctuation_chars="&|;")
    words.whitespace_split, words.commenters = True, ""
    found: list[list[str]] = [[]]
    for word in words:
        if word in _SEPARATORS:
            found.append([])
        else:
            found[-1].append(word)
    return [command for command in found if command]


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """A text with the values of `$NAME`, `${NAME}` and `${NAME:-default}`; unknown ones are empty, as Docker has it."""
    return _VARIABLE.sub(lambda found: variables.get(found[1] or found[3]) or (found[2] or ""), text)


def without_assignments(command: list[str]) -> list[str]:
    """A command without variables that are set before it, `DEBIAN_FRONTEND=noninteractive apt-get update`."""
    while command and _ASSIGNMENT.match(command[0]):
        command = command[1:]
    return command


def pip_words(command: list[str]) -> list[str] | None:
    """The words after `pip` of a command that is pip in one of its forms; None for another command."""
    for prefix in (["python", "-m", "pip"], ["python3", "-m", "pip"], ["uv", "pip"], ["pip"], ["pip3"]):
        if command[: len(prefix)] == prefix:
            return command[len(prefix) :]
    return None


def read_pip(words: list[str], installs: Installs, *, line: int, text: str) -> None:
    """Adds what `pip WORDS` installs. Raises CannotBeDoneError for anything but packages of the registry."""
    if words[:1] != ["install"]:
        raise CannotBeDoneError(f"of pip's commands only install can be done, not {' '.join(words[:1]) or 'none'}")
    rest = iter(words[1:])
    for word in rest:
        if word in ("-r", "--requirement"):
            installs.files.append(Requested(name=next(rest, ""), line=line, text=text))
        elif word.startswith("--requirement="):
            installs.files.append(Requested(name=word.partition("=")[2], line=line, text=text))
        elif word in ("--progress-bar", "--root-user-action", "--python", "-p"):
            next(rest, "")
        elif word not in _PIP_FLAGS:
            installs.python.append(Requested(name=requirement_of(word), line=line, text=text))


def requirement_of(word: str) -> str:
    """A requirement of a package of the registry. Raises CannotBeDoneError for options, paths, addresses and repositories."""
    if word.startswith("-"):
        raise CannotBeDoneError(f"pip's option {word} is not supported")
    try:
        found = Requirement(word)
    except InvalidRequirement:
        raise CannotBeDoneError(f"{word} is no package of the registry") from None
    if found.url:
        raise CannotBeDoneError(f"{found.name} comes from an address, and not from the registry")
    return word


def requirements_in(text: str, *, file: str) -> tuple[list[Requested], list[Refusal]]:
    """The requirements of a requirements file, and its lines that cannot be installed from the registry."""
    found, refused = list[Requested](), list[Refusal]()
    for line, words in logical_lines(text, comments_within=True):
        word = re.sub(r"\s#.*", "", words).strip()
        try:
            found.append(Requested(name=requirement_of(word), line=line, text=words))
        except CannotBeDoneError as error:
            refused.append(Refusal(file=file, line=line, text=words, reason=str(error)))
    return found, refused


def read_apt(command: list[str], installs: Installs, *, line: int, text: str) -> None:
    """Adds what an `apt-get` command installs. Raises CannotBeDoneError for anything but an update, an install or a cleaning."""
    words = [word for word in command[1:] if word not in _APT_FLAGS]
    if words[:1] and words[0] in _APT_NOTHING:
        return
    if words[:1] != ["install"]:
        raise CannotBeDoneError(f"{' '.join(command[:2])} is not supported")
    for word in words[1:]:
        if word.startswith("-"):
            raise CannotBeDoneError(f"the option {word} of apt-get is not supported")
        installs.system.append(Requested(name=word, line=line, text=text))


def missing_system_package(name: str) -> str:
    """The reason why a package of Debian, `NAME` or `NAME=VERSION`, counts as missing on this machine; "" if it is there."""
    package, _, version = name.partition("=")
    installed = system_packages()
    if package not in installed:
        return f"the package {package} is not installed on this machine: apt-get install {package}"
    if version and version != installed[package]:
        return f"this machine has version {installed[package]} of {package}"
    return ""


@lru_cache(maxsize=1)
def system_packages() -> dict[str, str]:
    """The packages of Debian that are installed on this machine, with their versions; empty on another system."""
    words = ["dpkg-query", "--show", "--showformat=${db:Status-Abbrev} ${Package} ${Version}\n"]
    try:
        lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return {}
    return {name: version for state, name, version in map(str.split, lines) if state == "ii"}
