"""An MCP server over stdio with a row's database as its tool: python -m agentic.database.mcp_server ROW.json

`rows` and `score` are what `method.environment=mcp` needs beside it: the questions, and the judgement of the last reply.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

from mcp.server import MCPServer

from agentic.database.agents import database
from agentic.database.task import Row, sample_question
from vime.data.split import split_of


def rows(num_items: int, seed: int) -> list[Row]:
    """Questions of both splits, each under a key that belongs to its split: people of the evaluation occur in no training row."""
    keys = [f"{seed}/{number}" for number in range(num_items)]
    return [{"key": key, **sample_question(random.Random(key), split=split_of(key)).row} for key in keys]


def score(row: Row, text: str) -> float:
    """1 for the answer alone, as `reward.py` has it."""
    return float(text.strip() == row["answer"])


def serve(row: dict[str, Any]) -> None:
    """Serves the tool until its client has gone."""
    server = MCPServer("database")

    @server.tool(name=database.TOOL)
    def query(sql: str) -> str:
        """Asks the database."""
        return database.query(row, sql)

    server.run()


if __name__ == "__main__":
    serve(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
