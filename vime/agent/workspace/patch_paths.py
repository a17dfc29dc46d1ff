"""The paths that a patch would write, and the reason to refuse it, if there is one.

A patch is applied inside a workspace, so it cannot reach anything outside. It is refused all the same if it leaves the tree or
touches its `.git`, because an honest agent's patch does neither.
"""

import re
from collections.abc import Iterator

_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)")
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_NAMED = (b"--- ", b"+++ ", b"rename from ", b"rename to ", b"copy from ", b"copy to ", b"Index: ")
_NOTHING = b"/dev/null"


def paths_of(patch: bytes) -> set[bytes]:
    """All paths that the headers of a patch name, without their first folder where it is git's `a/` or `b/`."""
    found: set[bytes] = set()
    for line in _headers(patch):
        if line.startswith(b"diff --git "):
            found.update(_both(line[len(b"diff --git ") :]))
        for name in _NAMED:
            if line.startswith(name):
                path = _unquoted(line[len(name) :].split(b"\t")[0].rstrip())
                found.add(_stripped(path) if name in _NAMED[:2] else path)
    return found - {b""}


def links_of(patch: bytes) -> set[bytes]:
    """The paths of symbolic links that a patch makes or changes."""
    found: set[bytes] = set()
    current: set[bytes] = set()
    for line in _headers(patch):
        if line.startswith(b"diff --git "):
            current = _both(line[len(b"diff --git ") :])
        elif re.match(rb"(new file mode|new mode) 120000|index \S+ 120000", line):
            found |= current
    return found


def refusal(patch: bytes) -> str:
    """The reason why a patch is refused by its paths alone; "" if it is not."""
    paths, links = paths_of(patch), links_of(patch)
    for path in sorted(paths):
        shown, parts = path.decode(errors="replace"), path.split(b"/")
        if path.startswith(b"/") or b".." in parts:
            return f"{shown} is outside of the tree"
        if any(part.lower() == b".git" for part in parts):
            return f"{shown} belongs to git itself"
        for length in range(1, len(parts)):
            if b"/".join(parts[:length]) in links:
                return f"{shown} is behind a symbolic link that the patch makes"
    return ""


def _headers(patch: bytes) -> Iterator[bytes]:
    """The lines of a patch outside of its hunks."""
    old = new = 0
    for line in patch.split(b"\n"):
        if old > 0 or new > 0:
            old -= line[:1] in (b"-", b" ", b"")
            new -= line[:1] in (b"+", b" ", b"")
            continue
        if match := _HUNK.match(line):
            old, new = (int(count) if count is not None else 1 for count in match.groups())
            continue
        yield line


def _both(names: bytes) -> set[bytes]:
    """The two paths of a line `diff --git a/x b/y`; without quotes they are equal unless further lines name them."""
    quoted = [_unquoted(b'"' + name + b'"') for name in _QUOTED.findall(names)]
    rest = _QUOTED.sub(b"", names).strip()
    if not quoted and len(rest) % 2 and rest[len(rest) // 2 : len(rest) // 2 + 1] == b" ":
        halves = [rest[: len(rest) // 2], rest[len(rest) // 2 + 1 :]]
    else:
        halves = [rest] if quoted else rest.split(b" ")
    return {_stripped(path) for path in (*quoted, *halves)} - {b""}


def _stripped(path: bytes) -> bytes:
    return path[2:] if path[:2] in (b"a/", b"b/") else b"" if path == _NOTHING else path


def _unquoted(path: bytes) -> bytes:
    """A path as git quotes it, in C's notation."""
    if not (match := _QUOTED.fullmatch(path)):
        return path

    def plain(escape: re.Match[bytes]) -> bytes:
        text = escape[1]
        return bytes([int(text, 8) & 0xFF]) if len(text) == 3 else _ESCAPES.get(text, text)

    return _ESCAPE.sub(plain, match[1])
