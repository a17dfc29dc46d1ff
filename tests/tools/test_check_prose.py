"""The reader of docstrings finds those that begin with a question word, wherever a docstring may stand."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from check_prose import problems

SOURCE = '''"""Numbers."""

LIMIT = 3
"""How many there may be."""


class Box:
    """A box."""

    size: int = 0
    """Howitzers in it."""

    def full(self):
        r"""Whether it is full."""
        return "Why not"
'''


def test_docstrings_of_all_kinds_are_read(tmp_path: Path):
    (tmp_path / "vime").mkdir()
    (tmp_path / "vime" / "box.py").write_text(SOURCE)
    assert problems(tmp_path) == ["vime/box.py:4: How many there may be.", "vime/box.py:14: Whether it is full."]
