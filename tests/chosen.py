"""Parameters of the tests that a session has chosen: a fixture that makes many things at once makes no others."""

from collections.abc import Iterator
from typing import Any

import pytest

LONG = [pytest.mark.long]


def given_parameters(session: pytest.Session) -> Iterator[tuple[pytest.Function, dict[str, Any]]]:
    """The chosen tests that have parameters, with these."""
    for item in session.items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            yield item, item.callspec.params


def values(session: pytest.Session, module: Any, *names: str) -> list[Any]:
    """The different values of a parameter in the chosen tests of a module, or tuples of several, in the tests' order."""
    found: dict[Any, None] = {}
    for item, given in given_parameters(session):
        if item.module is module and set(names) <= set(given):
            found[given[names[0]] if len(names) == 1 else tuple(given[name] for name in names)] = None
    return list(found)


def parameters(all_of_them: Any, long: Any) -> list[Any]:
    """Parameters of a test, those among `long` with the mark of long tests; tuples are several arguments."""
    return [
        pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=LONG if each in long else []) for each in all_of_them
    ]
