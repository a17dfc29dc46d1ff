"""Words of a command line: quoted for Hydra, which reads their values, and for the shell, which cuts the line into words."""

import re
import shlex

_PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)\Z)[A-Za-z/][\w./@%+-]*", re.ASCII | re.IGNORECASE)
"""Texts that Hydra reads as they are, without quotes."""
_BEFORE_QUOTE = re.compile(r"(\\+)(?='|\Z)")
"""Backslashes that Hydra takes for an escape; it reads all others as they are."""


def quoted(text: str) -> str:
    """Quotes a text so that Hydra reads it as one value, with any characters."""
    escaped = _BEFORE_QUOTE.sub(r"\1\1", text).replace("'", "\\'")
    return f"'{escaped}'"


def setting(key: str, text: str) -> str:
    """The word that sets a key to a text, with quotes only where Hydra needs them: `name=run`, `name='a, b'`."""
    return f"{key}={text if _PLAIN.fullmatch(text) else quoted(text)}"


def command(words: list[str]) -> str:
    """The command that starts vime with these words, to be pasted into a shell."""
    return shlex.join(["python", "-m", "vime.run", *words])
