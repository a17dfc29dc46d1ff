"""No option is silently ignored: every field of every configuration dataclass is read somewhere."""

import ast
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CONFIG_MODULES = [*sorted((ROOT / "vime" / "config").glob("*.py")), *sorted((ROOT / "agentic").rglob("config.py"))]
NOT_READERS = (
    "vime/preflight/",
    "vime/memory/",
)
"""Checking or printing a value is not using it."""


def fields_of(file: Path) -> list[tuple[str, str]]:
    """(class, field) of every dataclass in a module."""
    found = []
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.dump(decorator) for decorator in node.decorator_list):
            targets = [line.target for line in node.body if isinstance(line, ast.AnnAssign)]
            found += [(node.name, target.id) for target in targets if isinstance(target, ast.Name)]
    return found


CHECKS = [
    *sorted((ROOT / "vime" / "preflight" / "rules").glob("*.py")),
    *sorted((ROOT / "vime" / "preflight" / "plan").glob("*.py")),
    *sorted((ROOT / "vime" / "memory").glob("*.py")),
]
CHECKED_ONLY = {"gpu_memory_gib", "num_server_gpus"}
"""What a machine has, given so that the plan and the checks can be made without it; placement follows `num_replicas`."""
FIELDS = [(file.parent.name, name, field) for file in CONFIG_MODULES for name, field in fields_of(file)]


@lru_cache(maxsize=1)
def attributes_read() -> frozenset[str]:
    """Names of all attributes that vime and the methods load, outside the configuration and its checks."""
    names: set[str] = set()
    for file in [*(ROOT / "vime").rglob("*.py"), *(ROOT / "agentic").rglob("*.py")]:
        if file in CONFIG_MODULES or file.relative_to(ROOT).as_posix().startswith(NOT_READERS):
            continue
        names |= {
            node.attr
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        }
    return frozenset(names)


@pytest.mark.parametrize(("package", "name", "field"), FIELDS, ids=[".".join(entry[1:]) for entry in FIELDS])
def test_every_field_is_read(package: str, name: str, field: str):
    if field in CHECKED_ONLY:
        assert f".{field}" in "".join(file.read_text() for file in CHECKS), f"{name}.{field}: not even checked"
        return
    assert field in attributes_read(), f"{name}.{field} ({package}) is set by nobody's reader: use it or remove it"


def test_the_configuration_has_fields_at_all():
    assert len(FIELDS) > 80
