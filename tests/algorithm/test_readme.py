"""The README's tables of algorithms say what the files in `conf/algorithm/` make of them."""

import re
from pathlib import Path

import pytest

from vime.algorithm.description import describe
from vime.config import AlgorithmName
from vime.preflight.compose import CONF, compose_run
from vime.preflight.rules.objective import NAMED

README = (Path(__file__).resolve().parents[2] / "vime" / "algorithm" / "README.md").read_text()
METHODS = sorted(file.stem for file in (CONF / "method").glob("*.yaml"))
ARXIV = re.compile(r"\b\d{4}\.\d{5}\b")


def cells(first: str) -> list[str]:
    """The other cells of the table row with this first one."""
    (row,) = [line for line in README.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def described(*words: str) -> str:
    return describe(compose_run([*words, "mode=plan"]).config.algorithm)


@pytest.mark.parametrize("name", [*NAMED, AlgorithmName.sft])
def test_a_named_algorithm_is_described_as_a_run_would(name: AlgorithmName):
    paper, objective = cells(f"`{name.value}`")
    assert objective == re.sub(
        r"divided by \d+ tokens", "divided by `max_model_len` tokens", described(f"algorithm={name.value}")
    )
    assert set(ARXIV.findall(paper)) <= set(ARXIV.findall((CONF / "algorithm" / f"{name.value}.yaml").read_text()))


@pytest.mark.parametrize("method", METHODS)
def test_a_methods_own_objectives_are_described_as_a_run_would(method: str):
    assert cells(method) == [
        described(f"+method={method}", "model=qwen2.5-7b", f"algorithm={name}") for name in ("paper", "slime_agentic")
    ]
