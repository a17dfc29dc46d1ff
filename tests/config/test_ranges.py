"""Ranges are part of the fields, and every number has one."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, get_args, get_type_hints

import pytest
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from vime.config import DatasetConfig, RunConfig, ServedModelConfig, ServerGroupConfig, ServingConfig
from vime.config.ranges import Count, Positive, Range, Share, numbers_of, range_in
from vime.preflight.compose import register_schemas
from vime.preflight.rules.numbers import ranges

EDGES = (-1e9, -2, -1, -0.5, 0, 0.5, 1, 2, 8, 31, 1024, 1e6, 1e12, float("nan"), float("inf"))


def numeric_fields(schema: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Key and type of every field that holds a number, a list or a dictionary of numbers, in all dataclasses below one."""
    for name, hint in get_type_hints(schema, include_extras=True).items():
        parts = list(inner(hint))
        if any(part in (int, float) for part in parts):
            yield f"{prefix}{name}", hint
        for part in parts:
            if isinstance(part, type) and dataclasses.is_dataclass(part):
                yield from numeric_fields(part, f"{prefix}{name}.")


def inner(hint: Any) -> Iterator[Any]:
    """A type and all types within it."""
    yield hint
    for part in get_args(hint):
        if not isinstance(part, Range):
            yield from inner(part)


def methods() -> list[Any]:
    """The settings of every installed method."""
    register_schemas()
    return [OmegaConf.get_type(node.node) for node in ConfigStore.instance().repo["schema"]["method"].values()]


def test_every_number_of_a_run_and_of_a_method_has_a_range():
    keys = dict(numeric_fields(RunConfig))
    assert len(keys) > 100
    for method in methods():
        keys |= dict(numeric_fields(method, f"{method.__name__}."))
    assert {key.split(".")[0] for key in keys} >= {"AgentFlowConfig", "MemAgentConfig", "ToolOrchestraConfig"}
    assert [key for key, hint in keys.items() if range_in(hint) is None] == []


def test_a_range_without_bounds_says_why():
    with pytest.raises(AssertionError, match="says why"):
        Range()
    unbounded = [key for key, hint in numeric_fields(RunConfig) if not (found := range_in(hint)) or not found.bounds]
    assert sorted(unbounded) == ["algorithm.entropy_coefficient", "data.curriculum.hopeless_at", "data.curriculum.solved_at"]


@pytest.mark.parametrize(
    ("allowed", "words", "inside", "outside"),
    [
        (Range(least=1), "at least 1", [1, 5], [0, -1]),
        (Range(above=0), "more than 0", [1e-9, 5], [0, -1]),
        (Range(least=0, most=1), "from 0 to 1", [0, 0.5, 1], [-0.1, 1.1]),
        (Range(above=0, most=1), "more than 0 and at most 1", [0.1, 1], [0, 1.1]),
        (Range(least=0, below=1), "at least 0 and less than 1", [0, 0.999], [1, -0.1]),
        (Range(least=1, most=1), "1", [1.0], [0.9, 1.1]),
        (Range(why="anything goes"), "a finite number", [-5, 0, 7], []),
    ],
)
def test_a_range_says_its_bounds_and_keeps_them(allowed: Range, words: str, inside: list[float], outside: list[float]):
    assert str(allowed) == words
    assert all(value in allowed for value in inside)
    assert not any(value in allowed for value in [*outside, float("nan"), float("inf"), -float("inf")])


@dataclass
class Inner:
    share: Share = 0.5


@dataclass
class Outer:
    count: Count | None = None
    rates: list[Positive] = field(default_factory=list)
    prices: dict[str, Annotated[float, Range(least=2)]] = field(default_factory=dict)
    items: list[Inner] = field(default_factory=list)
    named: dict[str, Inner] = field(default_factory=dict)
    free: dict[str, Any] = field(default_factory=dict)
    flag: bool = True


def test_numbers_are_found_in_lists_and_dictionaries_and_null_is_left_out():
    assert list(numbers_of(Outer())) == []
    tree = Outer(count=0, rates=[0.1], prices={"a": 3}, items=[Inner()], named={"b": Inner(share=2)}, free={"size": -1})
    found = {key: (value, str(allowed)) for key, value, allowed in numbers_of(tree)}
    assert found == {
        "count": (0, "at least 1"),
        "rates.0": (0.1, "more than 0"),
        "prices.a": (3, "at least 2"),
        "items.0.share": (0.5, "from 0 to 1"),
        "named.b.share": (2, "from 0 to 1"),
    }


def wide_config() -> RunConfig:
    """A configuration with an entry in each of its lists and dictionaries."""
    config = RunConfig(serving=ServingConfig(models={"actor": ServedModelConfig(groups={"one": ServerGroupConfig()})}))
    config.data.evaluation = [DatasetConfig(num_items=4)]
    config.evaluation.extra_temperatures, config.evaluation.pass_at = [0.5], [1]
    return config


@pytest.mark.parametrize("key", [key for key, _, _ in numbers_of(wide_config())])
def test_one_rule_refuses_every_number_outside_its_range_with_key_value_and_range(key: str):
    config = wide_config()
    *path, last = key.split(".")
    owner: Any = config
    for name in path:
        owner = owner[int(name)] if isinstance(owner, list) else owner[name] if isinstance(owner, dict) else getattr(owner, name)
    allowed = {found: each for found, _, each in numbers_of(config)}[key]
    refused = 0
    for value in EDGES:
        if isinstance(owner, list):
            owner[int(last)] = value
        else:
            setattr(owner, last, value)
        problems = {problem.key: problem for problem in ranges(config)}
        assert (key in problems) == (value not in allowed), f"{key}={value}: {allowed}"
        if key in problems:
            refused += 1
            assert problems[key].value is value and str(allowed) in problems[key].remedy and allowed.why in problems[key].remedy
    assert refused >= 2
