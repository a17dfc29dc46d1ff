"""Stands in for apt-get, curl, uv, uvx and pip while tests run, in a workspace, which has no network: a program of its own.

It is called by the name of the program. Each succeeds only for what was installed at preparation, which the variable
PREPARED_PACKAGES names line by line, and says so otherwise. curl and wget are those of the system, except for uv's installer.
"""

import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(sys.argv[0]))
PREPARED = "PREPARED_PACKAGES"
NOT_PREPARED = "/logs/verifier/not_prepared.txt"
"""The requests that were refused, a line each."""
SYSTEM = "PREPARED_SYSTEM_PACKAGES"
UV_INSTALLER = r"https://astral\.sh/uv/(\S+/)?install\.sh"
ACTIVATE = "export VIRTUAL_ENV='{folder}'\ndeactivate() {{ unset VIRTUAL_ENV; }}\n"
UV_SCRIPT = """\
mkdir -p "$HOME/.local/bin" && rm -rf "$HOME/.local/bin/env" && echo 'export PATH="{here}:$PATH"' > "$HOME/.local/bin/env"
"""
WITH_VALUE = ("-w", "--with", "--from", "-p", "--python", "--index-strategy")


def main(name: str, words: list[str]) -> int:
    """Does what a program of this name is asked to do."""
    if name in ("apt-get", "apt"):
        return apt(words)
    if name in ("curl", "wget"):
        return download(name, words)
    if name in ("pip", "pip3"):
        return pip(words)
    return uvx(words) if name == "uvx" else uv(words)


def apt(words: list[str]) -> int:
    """Accepts updates and cleanings, and packages that this machine has."""
    rest = [word for word in words if not word.startswith("-")]
    if rest[:1] != ["install"]:
        known = rest[:1] and rest[0] in ("update", "clean", "autoclean", "autoremove")
        return 0 if known else refused(f"apt-get {' '.join(rest)}")
    return prepared(rest[1:], SYSTEM, "apt-get install")


def download(name: str, words: list[str]) -> int:
    """Prints the installer of uv; everything else is the system's own program."""
    if any(re.fullmatch(UV_INSTALLER, word) for word in words):
        sys.stdout.write(UV_SCRIPT.format(here=HERE))
        return 0
    paths = [folder for folder in os.environ.get("PATH", "").split(":") if os.path.abspath(folder) != HERE]
    program = next((found for folder in paths if os.access(found := os.path.join(folder, name), os.X_OK)), None)
    if program is None:
        return refused(name)
    os.execv(program, [program, *words])


def pip(words: list[str]) -> int:
    """Accepts packages that were prepared."""
    if words[:1] != ["install"]:
        return 0 if words[:1] in (["--version"], ["list"], ["freeze"], ["check"]) else refused(f"pip {' '.join(words)}")
    names, rest = [], iter(words[1:])
    for word in rest:
        if word in ("-r", "--requirement"):
            names += requirements(next(rest, ""))
        elif word in ("--progress-bar", "--root-user-action", "--python", "-p"):
            next(rest, "")
        elif not word.startswith("-"):
            names.append(word)
    return prepared(names, PREPARED, "pip install")


def uv(words: list[str]) -> int:
    """uv's commands pip, venv, init, add, run, tool run."""
    rest = [word for word in words if not word.startswith("-")]
    if words[:1] == ["pip"]:
        return pip(words[1:])
    if words[:1] == ["run"]:
        return uvx(words[1:])
    if words[:2] == ["tool", "run"]:
        return uvx(words[2:])
    if words[:1] == ["add"]:
        return prepared(rest[1:], PREPARED, "uv add")
    if words[:1] == ["venv"]:
        folder = os.path.abspath(rest[1] if len(rest) > 1 else ".venv")
        os.makedirs(f"{folder}/bin", exist_ok=True)
        with open(f"{folder}/bin/activate", "w") as file:
            file.write(ACTIVATE.format(folder=folder))
        return 0
    return 0 if words[:1] in (["init"], ["--version"]) else refused(f"uv {' '.join(words)}")


def uvx(words: list[str]) -> int:
    """Runs a program of the prepared packages; pytest by this machine's Python."""
    names, rest = [], list(words)
    while rest and rest[0].startswith("-"):
        option, is_set, value = rest.pop(0).partition("=")
        if option in WITH_VALUE:
            value = value if is_set else (rest.pop(0) if rest else "")
            names += value.split(",") if option in ("-w", "--with", "--from") else []
    if code := prepared(names, PREPARED, "uvx --with"):
        return code
    if not rest:
        return refused("uvx without a program")
    program = re.split(r"[@=<>]", rest[0])[0]
    found = ["python", "-P", "-m", "pytest", *rest[1:]] if program == "pytest" else [program, *rest[1:]]
    sys.stdout.flush()
    try:
        os.execvp(found[0], found)
    except OSError as error:
        return refused(f"{program} ({error.strerror})")


def prepared(names: list[str], variable: str, what: str) -> int:
    """0 if all packages were prepared, by their names with or without a version."""
    known = {plain(line) for line in os.environ.get(variable, "").splitlines()}
    known |= {re.split(r"[\[=<>!~;@]", name)[0] for name in known}
    missing = [name for name in names if plain(name) not in known]
    return refused(f"{what} {' '.join(missing)}") if missing else 0


def requirements(path: str) -> list[str]:
    """The lines of a requirements file."""
    try:
        with open(path) as file:
            return [text for line in file if (text := re.sub(r"(^|\s)#.*", "", line).strip())]
    except OSError:
        return [path]


def plain(requirement: str) -> str:
    """A requirement without blanks, in small letters, with hyphens."""
    return re.sub(r"[\s\"']", "", requirement).lower().replace("_", "-")


def refused(what: str) -> int:
    """Says that something was not prepared, also to the reader of the reward."""
    try:
        with open(NOT_PREPARED, "a") as file:
            file.write(f"{what}\n")
    except OSError:
        pass
    sys.stderr.write(f"{what}: was not prepared before the tests, and a workspace has no network\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(os.path.basename(sys.argv[0]), sys.argv[1:]))
