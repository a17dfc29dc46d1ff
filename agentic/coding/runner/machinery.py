"""The judging machinery, as it was before any code of the repository ran, so that later replacements in it are found.

Functions and classes of pytest, pluggy, unittest and builtins are compared by identity, and functions by their code and their
defaults as well.
"""

import builtins
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter, is_
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

COMPARED_WITH = ("math", "cmath", "operator", "difflib", "collections", "copy", "decimal", "fractions", "statistics")
"""Modules of the standard library with which tests compare a program's results."""
JUDGES = ("builtins", "pytest", "_pytest", "pluggy", "unittest", "agentic", *COMPARED_WITH)
"""Packages that decide whether a test passes."""
_CALLED = (FunctionType, BuiltinFunctionType, type, staticmethod, classmethod, property)
_ADDS_OLD_NAMES = "_pytest.legacypath"
_STATE = tuple(attrgetter(name) for name in ("__code__", "__defaults__", "__kwdefaults__"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Names:
    """The functions and classes of one module or class, and how many entries a class has (-1 for a module, which may get more).

    Example: `Names(owner="unittest.case.TestCase", now=mappingproxy(…), keys=["run", …], values=(<function run>, …), size=70)`.
    """

    owner: str
    now: Mapping[str, Any]
    keys: list[str]
    values: tuple[Any, ...]
    size: int

    def differ(self) -> bool:
        """True if an entry is new, gone or another; quick, because it is asked after every test."""
        if self.size not in (-1, len(self.now)):
            return True
        missing = object()
        return not all(map(is_, map(self.now.get, self.keys, repeat(missing)), self.values))

    def changes(self, is_allowed: Callable[[Any], bool]) -> list[str]:
        """The entries that differ."""
        before, found = dict(zip(self.keys, self.values, strict=True)), []
        for key in {**before, **(self.now if self.size >= 0 else {})}:
            value = self.now.get(key)
            if value is not before.get(key) and not is_allowed(value) and (key in before or isinstance(value, _CALLED)):
                found.append(f"{self.owner}.{key}")
        return found


class Machinery:
    """The code that judges.

    Example: `Machinery().changed()` is `[]`, and after `TestCase.run = mine` it is `["unittest.case.TestCase.run"]`.
    """

    def __init__(self) -> None:
        self._modules: dict[str, ModuleType] = {}
        self._names: list[Names] = []
        self._functions: list[FunctionType] = []
        self._states: list[list[Any]] = [[], [], []]
        self._builtins = list(vars(builtins).items())
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] in JUDGES:
                self.add(name, module)

    def add(self, name: str, module: ModuleType) -> None:
        """Takes one more module as it is now."""
        self._modules[name] = module
        self._take(name, vars(module), is_class=False)
        for value in list(vars(module).values()):
            if isinstance(value, type) and value.__module__ == name and name != "builtins":
                self._take(f"{name}.{value.__qualname__}", vars(value), is_class=True)

    def changed(self) -> list[str]:
        """The names of all objects that have changed."""
        now = builtins.__dict__
        for name, value in self._builtins:  # first, and without calling one of them
            if name not in now or now[name] is not value:
                return [f"builtins.{name}"]
        found = [f"sys.modules[{name!r}]" for name, module in self._modules.items() if sys.modules.get(name) is not module]
        for names in self._names:
            if names.differ():
                found += names.changes(self._is_old_name)
        for read, states in zip(_STATE, self._states, strict=True):
            if not all(map(is_, map(read, self._functions), states)):
                pairs = zip(self._functions, states, strict=True)
                found += [
                    f"{function.__module__}.{function.__qualname__}" for function, state in pairs if read(function) is not state
                ]
        return found

    def _take(self, owner: str, now: Mapping[str, Any], *, is_class: bool) -> None:
        kept = {key: value for key, value in now.items() if isinstance(value, _CALLED)}
        size = len(now) if is_class else -1
        self._names.append(Names(owner=owner, now=now, keys=list(kept), values=tuple(kept.values()), size=size))
        for value in kept.values():
            function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            if isinstance(function, FunctionType):
                self._functions.append(function)
                for read, states in zip(_STATE, self._states, strict=True):
                    states.append(read(function))

    def _is_old_name(self, value: Any) -> bool:
        """True if pytest itself has put this in place when it started, for old names of its attributes."""
        function = value.fget if isinstance(value, property) else value
        return isinstance(function, FunctionType) and function.__globals__ is vars(self._modules[_ADDS_OLD_NAMES])
