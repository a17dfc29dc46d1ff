"""BFCL: calls read from text and from tools, the values that are allowed, and the published files."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentic.benchmarks.function_calling import CATEGORIES, NO_ANSWERS, Bfcl, as_tool
from agentic.benchmarks.function_calls import calls_in, matches
from agentic.benchmarks.published import Source
from tests.agentic.benchmarks.asking import folder_with, rewards, rows_of, written
from vime.data.dataset import load_rows
from vime.environments.environment import Reply
from vime.errors import ConfigError
from vime.preflight.compose import compose_run

AREA = {
    "name": "shapes.area",
    "description": "The area of a triangle.",
    "parameters": {
        "type": "dict",
        "properties": {
            "base": {"type": "integer", "description": "in cm"},
            "height": {"type": "float", "description": "in cm"},
            "unit": {"type": "string", "description": "unit"},
            "points": {"type": "array", "items": {"type": "integer"}, "description": "corners"},
            "style": {"type": "dict", "properties": {"color": {"type": "string"}}, "description": "style"},
        },
        "required": ["base", "height"],
    },
}
ALLOWED = {
    "shapes.area": {
        "base": [10],
        "height": [5.0],
        "unit": ["", "square cm"],
        "points": ["", [1, 2]],
        "style": ["", {"color": ["red", ""]}],
    }
}
ITEM = {"id": "simple_python_0", "question": [[{"role": "user", "content": "How large is it?"}]], "function": [AREA]}


@pytest.mark.parametrize(
    ("said", "is_right"),
    [
        ("[shapes.area(base=10, height=5)]", True),  # an integer is a float
        ("shapes.area(base=10, height=5.0, unit='Square-cm.')", True),
        ("`[shapes.area(base=5*2, height=5, points=[1, 2], style={'color': 'Red'})]`", True),
        ("[shapes.area(base=10, height=5, style={})]", True),
        ("[shapes.area(base=10.0, height=5)]", False),
        ("[shapes.area(base='10', height=5)]", False),
        ("[shapes.area(base=10)]", False),
        ("[shapes.area(base=10, height=5, colour=1)]", False),
        ("[shapes.area(base=10, height=5, points=[2, 1])]", False),
        ("[shapes.area(base=10, height=5, style={'size': 1})]", False),
        ("[area(base=10, height=5)]", False),
        ("[shapes.area(base=10, height=5), shapes.area(base=10, height=5)]", False),
        ("It is 25.", False),
        ("[1, 2]", False),
        ("", False),
    ],
)
def test_a_call_is_compared_with_the_allowed_values(said: str, is_right: bool):
    try:
        calls = calls_in(said)
    except ValueError:
        calls = []
    assert matches(calls, [AREA], [ALLOWED]) is is_right


def test_several_calls_match_in_any_order():
    other = {"shapes.area": {**ALLOWED["shapes.area"], "base": [20]}}
    calls = calls_in("[shapes.area(base=20, height=5), shapes.area(base=10, height=5)]")
    assert matches(calls, [AREA], [ALLOWED, other]) and not matches(calls, [AREA], [ALLOWED, ALLOWED])


def files(folder: Path, version: str = "v4") -> str:
    """Two files of questions, with an answer file for the one that has answers."""
    simple = "simple_python" if version == "v4" else "simple"
    written(folder, f"BFCL_{version}_{simple}.json", [ITEM])
    written(folder, f"possible_answer/BFCL_{version}_{simple}.json", [{"id": ITEM["id"], "ground_truth": [ALLOWED]}])
    return written(folder, f"BFCL_{version}_irrelevance.json", [{**ITEM, "id": "irrelevance_0"}])


@pytest.mark.parametrize("version", ["v4", "v3"])
def test_the_published_layout_is_read_and_scored(version: str, tmp_path: Path):
    benchmark = Bfcl(folder=files(tmp_path, version), categories=["simple_python", "irrelevance"])
    found = rows_of(benchmark)
    assert [message["role"] for message in found[0]["prompt"]] == ["system", "user"]
    assert '"name": "shapes.area"' in found[0]["prompt"][0]["content"]
    assert rewards(benchmark, found, lambda row: "[shapes.area(base=10, height=5)]") == [1.0, 0.0]
    assert rewards(benchmark, found, lambda row: "None of them fits.") == [0.0, 1.0]


def test_each_category_is_a_data_set_of_its_own(tmp_path: Path):
    files(tmp_path)
    words = ["+benchmark=bfcl", "mode=plan", f"method.settings.folder={tmp_path}", "method.settings.calls=tools"]
    found = compose_run(words).config.data.evaluation
    assert [dataset.name for dataset in found] == [f"bfcl_{category}" for category in CATEGORIES]
    assert sum(dataset.num_items or 0 for dataset in found) == 1240
    for dataset in (found[0], found[-1]):
        (row,) = load_rows(dataset)
        assert dataset.name == f"bfcl_{row['item']['category']}" and len(row["prompt"]) == 1


def test_a_model_with_tools_gets_the_functions_as_tools(tmp_path: Path):
    benchmark = Bfcl(folder=files(tmp_path), categories=["simple_python", "irrelevance"], calls="tools")
    found = rows_of(benchmark)
    (tool,) = benchmark.observation(found[0]["item"]).tools
    assert tool == as_tool(AREA) and tool["function"]["name"] == "shapes_area"
    assert tool["function"]["parameters"]["type"] == "object" and found[0]["prompt"] == ITEM["question"][0]
    arguments = tool["function"]["parameters"]["properties"]
    assert [arguments[name]["type"] for name in ("height", "style")] == ["number", "object"]

    def called(arguments: str) -> Reply:
        call = {"type": "function", "function": {"name": "shapes_area", "arguments": arguments}}
        return Reply(seat="agent", text="", tool_calls=[call])

    assert rewards(benchmark, found, lambda row: called('{"base": 10, "height": 5}')) == [1.0, 0.0]
    assert rewards(benchmark, found, lambda row: called('{"base": 10, "hei')) == [0.0, 1.0]


def test_what_cannot_be_asked_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="simple_python"):
        Bfcl(categories=["multi_turn_base"])
    with pytest.raises(ConfigError, match="text or tools"):
        Bfcl(calls="json")
    folder = files(tmp_path)
    written(tmp_path, "possible_answer/BFCL_v4_simple_python.json", [{"id": "simple_python_7", "ground_truth": []}])
    with pytest.raises(ConfigError, match="take both files of one version"):
        rows_of(Bfcl(folder=folder, categories=["simple_python"]))


WRONG_IN_THE_FILE = {"simple_python_17", "simple_python_200", "parallel_88", "parallel_multiple_87", "parallel_multiple_119"}
"""Items whose answers have other types than the function's description; the leaderboard's own checker refuses them as well."""


def gold(item: dict[str, Any]) -> str:
    """A call with an allowed value for each parameter that may not be left out."""

    def value(options: Any) -> Any:
        if isinstance(options, dict):
            return {key: value(next(each for each in inner if each != "")) for key, inner in options.items() if "" not in inner}
        return [value(each) for each in options] if isinstance(options, list) else options

    calls = []
    for answer in item["ground_truth"]:
        ((name, allowed),) = answer.items()
        given = {key: value(options[0]) for key, options in allowed.items() if "" not in options}
        calls.append(f"{name}({', '.join(f'{key}={item!r}' for key, item in given.items())})")
    return f"[{', '.join(calls)}]"


def test_allowed_answers_of_the_published_files_score_1():
    names = ("BFCL_v4_simple_python.json", "bfcl/BFCL_v4_simple_python.json")
    source = Source(files=names, get="run `pip download --no-deps bfcl-eval==2026.3.23` and unzip bfcl_eval/data from the wheel")
    benchmark = Bfcl(folder=folder_with(source))
    found = rows_of(benchmark)
    assert len(found) == 1240 and {row["item"]["category"] for row in found} == set(CATEGORIES)
    answered = [row for row in found if row["item"]["category"] not in NO_ANSWERS]
    given = rewards(benchmark, answered, lambda row: gold(row["item"]))
    refused = {row["item"]["id"] for row, reward in zip(answered, given, strict=True) if reward < 1}
    assert refused <= WRONG_IN_THE_FILE
    assert sum(rewards(benchmark, answered, lambda row: "[nothing()]")) == 0
    silent = [row for row in found if row["item"]["category"] in NO_ANSWERS]
    assert rewards(benchmark, silent, lambda row: "None fits.") == [1.0] * 240
    assert json.dumps(found)


@pytest.mark.parametrize("said", [f"[area(base=1{'0' * 400}/3)]", "[area(base={[]: 1})]", "[" * 500])
def test_a_reply_that_python_cannot_compute_is_no_call(said: str):
    with pytest.raises(ValueError, match="no function calls"):
        calls_in(said)
