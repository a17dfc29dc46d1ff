"""The check finds docstrings that begin with a question word or contain a listed phrase, wherever a docstring may be."""

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
PHRASES = '''"""Boxes, some of
which are full. The user `nobody` is one."""

MOST = 3
"""Nobody opens so many."""
'''


def test_docstrings_of_all_kinds_are_read(tmp_path: Path):
    (tmp_path / "vime").mkdir()
    (tmp_path / "vime" / "box.py").write_text(SOURCE)
    assert problems(tmp_path) == ["vime/box.py:4: How many there may be.", "vime/box.py:14: Whether it is full."]


def test_phrases_are_found_outside_of_code_and_across_lines(tmp_path: Path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "boxes.py").write_text(PHRASES)
    assert problems(tmp_path) == [
        'tools/boxes.py:1: "of which" in: Boxes, some of which are full. The user `…` is one.',
        'tools/boxes.py:5: "Nobody" in: Nobody opens so many.',
        'tools/boxes.py:5: "so many" in: Nobody opens so many.',
    ]
