"""The page "From slime or vllm-project/vime": every key, hook and field of ours that it names exists."""

import dataclasses
import re
from enum import Enum
from functools import cache
from pathlib import Path

import pytest

from vime.config import RunConfig
from vime.hooks import HOOKS
from vime.preflight.documentation import settings
from vime.preflight.rules.numbers import value_at
from vime.types import Sample

README = Path(__file__).resolve().parents[2] / "vime" / "config" / "README.md"
PAGE = README.read_text().split("## From slime or vllm-project/vime")[1]
KEY = re.compile(r"[a-z_]+(?:\.[a-z_]+)*")
GROUPS = re.compile(r"(algorithm|cluster|data|method|reward_service|rollout|serving|trainer)\.")
FREE = ("serving.models.actor.vllm_args.",)


def tables() -> dict[str, list[list[str]]]:
    """The rows of each table, as cells, by the first cell of its head."""
    found: dict[str, list[list[str]]] = {}
    for block in re.findall(r"(?:^\|.*\n?)+", PAGE, re.M):
        head, _, *rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines()]
        found[head[0]] = rows
    return found


FLAGS, HOOK_ROWS, FIELDS = tables().values()


def named(cell: str) -> list[str]:
    return re.findall(r"`\+?([^`]*)`", cell)


@cache
def keys_of_settings() -> frozenset[str]:
    return frozenset(setting.key for setting in settings())


def exists(key: str) -> bool:
    return key.replace(".models.actor.", ".models.NAME.") in keys_of_settings()


@pytest.mark.parametrize("row", [*FLAGS, *HOOK_ROWS], ids=lambda row: row[0])
def test_every_key_of_ours_is_a_setting_and_every_value_one_that_it_takes(row: list[str]):
    keys = named(row[1])
    assert keys or row[1] == "–"
    mentioned = [key for key in named(row[2]) if GROUPS.match(key)]
    for key, _, value in (word.partition("=") for word in [*keys, *mentioned]):
        assert KEY.fullmatch(key) and (exists(key) or key.startswith(FREE)), key
        if value and not key.startswith(FREE):
            current = value_at(RunConfig(), key)
            assert not isinstance(current, Enum) or value in {choice.value for choice in type(current)}, f"{key}={value}"


@pytest.mark.parametrize("row", HOOK_ROWS, ids=lambda row: row[0])
def test_every_hook_of_ours_is_one_or_an_option_that_replaces_it(row: list[str]):
    for key in named(row[1]):
        assert key in HOOKS or "option" in row[2] or key == "reward_service.url", key


def test_every_hook_of_ours_is_on_the_page():
    assert {key for key in HOOKS if f"`{key}`" not in PAGE} == {"data.demonstrations"}  # slime's sft reads its prompt data


def test_the_fields_of_a_sample_are_exactly_those_on_the_page():
    on_page = [name for row in FIELDS for name in named(row[1])]
    assert sorted(on_page) == sorted(f"Sample.{field.name}" for field in dataclasses.fields(Sample))


def test_the_flags_are_written_as_slime_writes_them():
    flags = [flag for row in [*FLAGS, *HOOK_ROWS] for flag in named(row[0])]
    assert len(flags) > 60 and len(set(flags)) == len(flags)
    assert [flag for flag in flags if not re.fullmatch(r"--[a-z][a-z0-9-]*(-…| \w+)?", flag)] == []
