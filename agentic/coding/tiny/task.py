"""Generated repositories with one planted bug each, for a tiny model.

A repository has modules of three functions, and documents that say in words what each function returns. The problem statement
names a function whose result is wrong. Its code is in one file and its intended return value in another, so both have to be read.
A fifth of all names, and a fifth of all positions of a bug (module, place in it, kind), chosen by hash, occur in the evaluation
split only.
"""

import random
from dataclasses import dataclass
from itertools import product
from typing import Any

from agentic.coding.tiny.functions import KINDS, PARAMETERS, Function, Kind, make_function, names
from vime.data.split import Split, split_of

MODULES = ("stock", "yard", "harbor", "market", "office", "garden", "depot", "studio", "kitchen", "garage", "library", "station")
DOCUMENTS = ("guide", "notes", "manual", "rules", "handbook", "terms")
NUM_MODULES = NUM_PLACES = 3
"""Modules of a repository, and functions of a module."""
STATEMENT = "{name} returns a wrong result."
NUM_CHECKS = 2
LEAST, MOST = 2, 30
"""Arguments with which hidden tests call a function."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """The place of a bug. Position(module="stock", place=2, kind="operator")"""

    module: str
    place: int
    kind: Kind

    @property
    def split(self) -> Split:
        """The only split with a bug there."""
        return split_of(f"{self.module}/{self.place}/{self.kind}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Repository:
    """A repository with one bug."""

    position: Position
    modules: dict[str, list[Function]]
    documents: dict[str, list[Function]]
    """All functions by the documents that describe them."""

    @property
    def broken(self) -> Function:
        """The function with the bug."""
        return self.modules[self.position.module][self.position.place]

    @property
    def path(self) -> str:
        """The file with the bug."""
        return path_of(self.position.module)

    def files(self) -> dict[str, str]:
        """The repository as an agent gets it."""
        found = {path_of(name): self.source(name) for name in self.modules}
        found |= {f"docs/{name}.md": "".join(map(described, functions)) for name, functions in self.documents.items()}
        return found

    def source(self, module: str) -> str:
        """The code of a module."""
        broken = self.broken
        return "\n\n".join(function.source(has_bug=function is broken) for function in self.modules[module])

    def row(self) -> dict[str, Any]:
        """The task as a row of a data set."""
        test = "tests/test_{module}.py"
        broken, position = self.broken, self.position
        ids = {
            function.name: f"{test.format(module=module)}::test_{function.name}"
            for module, functions in self.modules.items()
            for function in functions
        }
        return {
            "instance_id": f"{broken.name}-{position.module}-{position.place}-{position.kind}",
            "prompt": statement(broken.name),
            "files": self.files(),
            "tests": {test.format(module=module): tests(module, functions) for module, functions in self.modules.items()},
            "patch": self.patch(),
            "fail_to_pass": [ids.pop(broken.name)],
            "pass_to_pass": list(ids.values()),
            "kind": position.kind,
            "answer": broken.code,
        }

    def patch(self) -> str:
        """The reference solution."""
        lines = self.source(self.position.module).splitlines()
        number = lines.index(f"    {self.broken.wrong}")
        head = f"diff --git a/{self.path} b/{self.path}\n--- a/{self.path}\n+++ b/{self.path}\n"
        return f"{head}@@ -{number + 1} +{number + 1} @@\n-{lines[number]}\n+    {self.broken.code}\n"


def path_of(module: str) -> str:
    """The file of a module."""
    return f"src/{module}.py"


def described(function: Function) -> str:
    """The line of a document about a function."""
    return f"{function.name}: {function.document}\n"


def statement(name: str) -> str:
    """The problem statement for the agent."""
    return STATEMENT.format(name=name)


def tests(module: str, functions: list[Function]) -> str:
    """Hidden tests of a module: each function is called with a few arguments, drawn by its name."""
    lines = [f"from src.{module} import {', '.join(function.name for function in functions)}\n"]
    for function in functions:
        rng = random.Random(f"{module}/{function.name}/{function.document}")
        lines.append(f"\n\ndef test_{function.name}():\n")
        for _ in range(NUM_CHECKS):
            values = rng.sample(range(LEAST, MOST), len(function.parameters))
            for arguments in (values, values[::-1])[: len(values)]:  # both ways round, so that no comparison is always true
                named = dict(zip(function.parameters, arguments, strict=True))
                expected = eval(function.code.removeprefix("return "), {"sum": sum, "range": range}, named)  # our own text
                lines.append(f"    assert {function.name}({', '.join(map(str, arguments))}) == {expected}\n")
    return "".join(lines)


def sample_repository(rng: random.Random, *, split: Split) -> Repository:
    """A random repository whose bug, and the name of whose broken function, belong to a split."""
    position = rng.choice(_POSITIONS[split])
    other = [name for name in MODULES if name != position.module]
    modules = [position.module, *rng.sample(other, NUM_MODULES - 1)]
    rng.shuffle(modules)
    num_functions = NUM_MODULES * NUM_PLACES
    broken_name = rng.choice(_NAMES[split])
    others = rng.sample([name for name in _NAMES["train"] if name != broken_name], num_functions - 1)
    parameters = rng.sample(PARAMETERS, 2 * num_functions)
    made: dict[str, list[Function]] = {}
    for module, place in product(modules, range(NUM_PLACES)):
        is_broken = (module, place) == (position.module, position.place)
        name, kind = (broken_name, position.kind) if is_broken else (others.pop(), rng.choice(KINDS))
        pair = (parameters.pop(), parameters.pop())
        made.setdefault(module, []).append(make_function(rng, name=name, kind=kind, parameters=pair))
    return Repository(position=position, modules=made, documents=_documents(rng, made))


def generate_rows(*, split: Split, num_items: int, seed: int) -> list[dict[str, Any]]:
    """`num_items` rows of a split; no two are about the same bug of the same function."""
    rng, found = random.Random(f"coding/{split}/{seed}"), dict[str, dict[str, Any]]()
    while len(found) < num_items:
        row = sample_repository(rng, split=split).row()
        found.setdefault(row["instance_id"], row)
    return list(found.values())


def _documents(rng: random.Random, modules: dict[str, list[Function]]) -> dict[str, list[Function]]:
    """The functions of all modules, mixed, in the same number of documents."""
    functions = [function for found in modules.values() for function in found]
    rng.shuffle(functions)
    chosen = rng.sample(DOCUMENTS, NUM_MODULES)
    return {name: functions[place::NUM_MODULES] for place, name in enumerate(chosen)}


_ALL = [Position(module=module, place=place, kind=kind) for module, place, kind in product(MODULES, range(NUM_PLACES), KINDS)]
_POSITIONS: dict[Split, list[Position]] = {
    split: [position for position in _ALL if position.split == split] for split in ("train", "eval")
}
_NAMES: dict[Split, list[str]] = {split: [name for name in names() if split_of(name) == split] for split in ("train", "eval")}
