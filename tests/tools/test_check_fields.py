"""The check of the configuration's fields finds those that nothing acts on, whatever else has an attribute of their name."""

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[2] / "tools" / "check_fields.py"
CONFIG = '''
"""A configuration."""
from dataclasses import dataclass, field

@dataclass(kw_only=True, slots=True)
class Inner:
    size: int = 1
    by_a_property: int = 2
    by_a_property_that_nobody_reads: int = 3
    of_a_namesake: int = 4
    only_set: int = 5
    only_checked: int = 6

    @property
    def doubled(self) -> int:
        return 2 * self.by_a_property

    @property
    def tripled(self) -> int:
        return 3 * self.by_a_property_that_nobody_reads

@dataclass(kw_only=True, slots=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    inners: dict[str, Inner] = field(default_factory=dict)
'''
READER = """
from vime.config import Outer

class Namesake:
    of_a_namesake = 1

def act(config: Outer) -> int:
    config.inner.only_set = 1
    return config.inner.doubled + sum(inner.size for inner in config.inners.values()) + Namesake.of_a_namesake
"""
RULE = "from vime.config import Outer\n\ndef check(config: Outer) -> bool:\n    return config.inner.only_checked > 0\n"


def test_only_reads_of_that_field_by_what_acts_on_it_count(tmp_path: Path):
    for path, text in {"config/__init__.py": CONFIG, "__init__.py": "", "reader.py": READER, "preflight/rule.py": RULE}.items():
        file = tmp_path / "sources" / "vime" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    names = ["by_a_property_that_nobody_reads", "of_a_namesake", "only_set", "only_checked"]
    assert runpy.run_path(str(PROGRAM))["unread"](tmp_path / "sources") == [f"Inner.{name}" for name in names]
