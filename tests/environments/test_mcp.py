"""Tools of a real MCP server around a row: a server for each rollout, at most so many at a time, and one that dies."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from vime.config import RunConfig
from vime.environments.environment import NoPlaceError, Reply, load_environment
from vime.errors import ConfigError, ServerError
from vime.rollout.context import Context

PROGRAM = str(Path(__file__).parents[1] / "rollout" / "odd_mcp_server.py")
COMMAND = ["{python}", PROGRAM]
ROW = {"question": "What is 2 + 3?", "answer": "5"}


def rows(num_items: int, seed: int) -> Any:
    return [{"question": f"What is {n} + {seed}?", "answer": str(n + seed)} for n in range(num_items)]


def score(row: Any, text: str) -> float:
    return float(row["answer"] in text)


def tools(**settings: Any) -> Any:
    own = {"command": COMMAND, "rows": f"{__file__}:rows", "score": f"{__file__}:score"}
    return load_environment("mcp", own | settings)


def context() -> Context:
    return Context(config=RunConfig(), evaluation=False, session_id="s", row=ROW)


def calling(name: str, **arguments: Any) -> Reply:
    call = {"id": "1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return Reply(seat="agent", text="", tool_calls=[call])


async def test_a_model_calls_tools_until_it_answers():
    episode = await tools(instruction="Compute.").open(ROW, context())
    try:
        seen = await episode.observe()
        assert seen is not None and [message["role"] for message in seen.content] == ["system", "user"]
        assert "add" in {tool["function"]["name"] for tool in seen.tools}
        await episode.act(calling("add", first=2, second=3))
        seen = await episode.observe()
        assert seen.content[0]["role"] == "tool" and seen.content[0]["content"] == "5"
        assert (await episode.outcome()).rewards == 0.0
        await episode.act(Reply(seat="agent", text="It is 5."))
        assert await episode.observe() is None
        assert (await episode.outcome()).rewards == 1.0
    finally:
        await episode.close()


async def test_each_rollout_has_its_own_server_and_few_run_at_a_time():
    environment, found = tools(num_servers=2), list[str]()
    open_now = [await environment.open(ROW, context()) for _ in range(2)]
    with pytest.raises(NoPlaceError):
        await environment.open(ROW, context())
    for episode in open_now:
        await episode.act(calling("process"))
        found.append((await episode.observe()).content[0]["content"])
        await episode.close()
    assert len(set(found)) == 2
    await (await environment.open(ROW, context())).close()


@pytest.mark.parametrize("lost", ["repeat", "tell"])
async def test_a_server_that_dies_repeats_the_rollout_or_is_told_to_the_model(lost: str):
    episode = await tools(lost=lost).open(ROW, context())
    try:
        if lost == "repeat":
            with pytest.raises(ServerError):
                await episode.act(calling("die"))
        else:
            await episode.act(calling("die"))
            assert (await episode.observe()).content[0]["content"].startswith("Error: ")
    finally:
        await episode.close()


async def test_a_server_is_given_its_row_as_a_file(tmp_path: Path):
    program = tmp_path / "server.py"
    program.write_text(
        "import json, sys\nfrom mcp.server import MCPServer\nserver = MCPServer('row')\n"
        "@server.tool()\ndef answer() -> str:\n    return json.load(open(sys.argv[1]))['answer']\nserver.run()\n"
    )
    episode = await tools(command=[sys.executable, str(program), "{row}"]).open(ROW, context())
    try:
        await episode.act(calling("answer"))
        assert (await episode.observe()).content[0]["content"] == "5"
    finally:
        await episode.close()


def test_rows_are_divided_and_settings_checked():
    train, held_out = (tools().rows(split=split, num_items=40, seed=1) for split in ("train", "eval"))
    assert len(list(train)) == len(list(held_out)) == 40, "a fifth of the rows is held out"
    assert not {row["question"] for row in train} & {row["question"] for row in held_out}
    for settings, key in (({"score": "no.such"}, "score"), ({"url": "http://h"}, "command"), ({"lost": "no"}, "lost")):
        with pytest.raises(ConfigError) as raised:
            tools(**settings)
        assert raised.value.problems[0].key == f"method.settings.{key}"
