"""Says where in a user's code an error arose: a hook is a few lines among many of vime's and of libraries.

A user's file is one outside vime, Python and the installed packages. An agent that is installed has none, and there the last
place counts.
"""

import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

MOST_CHARACTERS = 10_000
"""An error may have a whole document for its text."""
_VIME = str(Path(__file__).parent) + "/"
_LIBRARIES = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def blamed(error: BaseException) -> str:
    """Class, text and place of an error: `AttributeError: 'list' object has no attribute 'first' (my_agent.py:8)`."""
    text, where = f"{type(error).__name__}: {error}".removesuffix(": "), place(error)
    return f"{text} ({where})" if where else text


def place(error: BaseException) -> str:
    """The last place in a user's file, `my_agent.py:8`, or in any; empty for an error that was never raised.

    A file in the current folder or below it has its path from there.
    """
    frames = [frame for each in _chain(error) for frame in traceback.extract_tb(each.__traceback__)]
    own = [frame for frame in frames if is_users(frame.filename)]
    found = (own or frames)[-1:]
    return f"{_short(found[0].filename)}:{found[0].lineno}" if found else ""


def users_traceback(error: BaseException) -> str:
    """The traceback without the frames of vime before the user's first one; at most its last `MOST_CHARACTERS`."""
    frames = traceback.extract_tb(error.__traceback__)
    first = next((number for number, frame in enumerate(frames) if is_users(frame.filename)), 0)
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    before = f"{users_traceback(cause)}\nwhich led to:\n" if cause is not None else ""
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames[first:])]
    return (before + "".join([*lines, *traceback.format_exception_only(type(error), error)]).rstrip())[-MOST_CHARACTERS:]


def is_users(file: str) -> bool:
    """True if a file is neither vime's nor Python's nor an installed package's."""
    return not file.startswith((_VIME, "<", *_LIBRARIES))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The causes of an error, the first one first, then the error itself."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        yield from _chain(cause)
    yield error


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
