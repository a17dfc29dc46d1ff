"""Patches in the format of git, between two versions of a repository of texts."""

import difflib
import re
from collections.abc import Iterator, Mapping

NO_NEWLINE = "\\ No newline at end of file\n"
_HUNK = re.compile(r"^@@ -(\S+) \+(\S+) @@(.*)$")
_SWAPPED = {
    "new file mode": "deleted file mode",
    "deleted file mode": "new file mode",
    "old mode": "new mode",
    "new mode": "old mode",
}
_PAIRS = (("rename from ", "rename to "), ("copy from ", "copy to "))


def patch_between(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """The patch that makes `after` of `before`; both map paths to texts."""
    return "".join("".join(_file(path, before.get(path), after.get(path))) for path in sorted({*before, *after}))


def changed_paths(patch: str) -> frozenset[str]:
    """The paths that a patch names in its headers, of old and of new files."""
    found: set[str] = set()
    for line in patch.splitlines():
        if line.startswith(("--- a/", "+++ b/")):
            found.add(line[6:].partition("\t")[0])
        elif line.startswith("diff --git a/"):
            old, separator, new = line.removeprefix("diff --git a/").partition(" b/")
            found.update((old, new) if separator and " b/" not in new else ())
    return frozenset(found)


def after_patch(files: Mapping[str, str], patch: str) -> dict[str, str]:
    """The texts of the files that a patch changes or adds, after it. Raises ValueError if it does not fit exactly."""
    found: dict[str, list[str]] = {}
    old: list[str] = []
    path, place = "", 0
    for number, line in enumerate(lines := patch.splitlines(keepends=True)):
        in_hunk = bool(path) and place >= 0
        if line.startswith("+++ b/") and lines[number - 1].startswith("--- "):
            path, place = line[6:].rstrip("\n").partition("\t")[0], -1
            old, found[path] = files.get(path, "").splitlines(keepends=True), []
        elif path and (hunk := _HUNK.match(line.rstrip("\n"))):
            start, _, length = hunk[1].partition(",")
            begin = int(start) - (length != "0")
            found[path] += old[max(place, 0) : begin]
            place = begin
        elif in_hunk and line[0] in " -":
            if old[place : place + 1] != [line[1:]] and old[place : place + 1] != [line[1:-1]]:
                raise ValueError(f"{path}: line {place + 1} is not {line[1:].rstrip()!r}")
            found[path] += [old[place]] if line[0] == " " else []
            place += 1
        elif in_hunk and line[0] == "+":
            found[path].append(line[1:])
        elif in_hunk and line.startswith("\\") and lines[number - 1][0] in "+":
            found[path][-1] = found[path][-1].removesuffix("\n")
        elif line.startswith("diff --git ") and path:
            found[path] += old[max(place, 0) :]
            path = ""
    if path:
        found[path] += old[max(place, 0) :]
    return {name: "".join(text) for name, text in found.items()}


def reverse(patch: str) -> str:
    """The patch that takes back a patch of texts, for data sets whose patch plants a bug.

    Raises ValueError for a patch with binary files.
    """
    if "\nGIT binary patch\n" in patch:
        raise ValueError("a binary patch cannot be reversed")
    return "".join(_reversed(patch.splitlines(keepends=True)))


def _file(path: str, before: str | None, after: str | None) -> Iterator[str]:
    if before == after:
        return
    yield f"diff --git a/{path} b/{path}\n"
    if before is None:
        yield "new file mode 100644\n"
    if after is None:
        yield "deleted file mode 100644\n"
    old, new = (text.splitlines(keepends=True) if text else [] for text in (before, after))
    names = "/dev/null" if before is None else f"a/{path}", "/dev/null" if after is None else f"b/{path}"
    for line in difflib.unified_diff(old, new, *names):
        yield line if line.endswith("\n") else f"{line}\n{NO_NEWLINE}"


def _reversed(lines: list[str]) -> Iterator[str]:
    """Lines of a reversed patch: in each run of changes the added lines come first, as removed ones."""
    added: list[str] = []
    removed: list[str] = []
    old_name, in_hunk = "", False
    for number, line in enumerate(lines):
        if in_hunk and line[0] in "+-\\":
            if line[0] == "\\":
                (added if lines[number - 1][0] == "+" else removed if lines[number - 1][0] == "-" else []).append(line)
            else:
                (added if line[0] == "+" else removed).append(("-" if line[0] == "+" else "+") + line[1:])
            continue
        yield from (*added, *removed)
        added, removed = [], []
        hunk = _HUNK.match(line.rstrip("\n"))
        if hunk:
            in_hunk = True
            yield f"@@ -{hunk[2]} +{hunk[1]} @@{hunk[3]}\n"
        elif in_hunk and line[0] == " ":
            yield line
        elif line.startswith("--- "):
            old_name = line[4:]
        elif line.startswith("+++ "):
            yield from (f"--- {_prefixed(line[4:], 'a')}", f"+++ {_prefixed(old_name, 'b')}")
        else:
            in_hunk = False
            yield _header(line)
    yield from (*added, *removed)


def _prefixed(name: str, prefix: str) -> str:
    return name if name.startswith("/dev/null") else f"{prefix}{name[1:]}"


def _header(line: str) -> str:
    for word, other in _SWAPPED.items():
        if line.startswith(f"{word} "):
            return f"{other}{line.removeprefix(word)}"
    if line.startswith("index "):
        old, _, new = line.split()[1].partition("..")
        return f"index {new}..{old}{line.partition(old)[2].removeprefix(f'..{new}')}"
    for old_word, new_word in _PAIRS:
        for word, other in ((old_word, new_word), (new_word, old_word)):
            if line.startswith(word):
                return f"{other}{line.removeprefix(word)}"
    return line
