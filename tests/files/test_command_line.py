"""A command survives being pasted into a shell, and Hydra reads every value as it was meant."""

import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from vime.files.command_line import command, quoted, setting

TEXTS = [
    "a b",
    "a,b",
    "it's",
    "[x]",
    "{a: 1}",
    "(x)",
    "a\\b",
    "a\\",
    "a\\'b",
    "a=b",
    "null",
    "TRUE",
    "1",
    "1e-3",
    "~/x",
    "#x",
    "",
    "ä",
    "x ",
    "x\ny",
]


@pytest.mark.parametrize("text", [*TEXTS, "sweep_2026-01-01_00-00-00", "/data/runs/3"])
def test_a_pasted_text_is_read_as_it_was(text: str):
    for word in (setting("name", text), f"name={quoted(text)}"):
        pasted = shlex.split(command([word]))
        assert pasted[:3] == ["python", "-m", "vime.run"]
        assert OverridesParser.create().parse_override(pasted[3]).value() == text


def test_quotes_stand_only_where_hydra_needs_them():
    assert command([setting("output_dir", "/data/runs/3"), "lr=1"]) == "python -m vime.run output_dir=/data/runs/3 lr=1"
