"""An MCP server whose tools do what tools do: answer, refuse, raise, hang, die, and return what is no text."""

import os
import sys
import time

from mcp.server import MCPServer
from mcp.server.mcpserver import Image
from mcp_types import ToolAnnotations

server = MCPServer("odd")
SAFE = ToolAnnotations(read_only_hint=True)


@server.tool(annotations=SAFE)
def add(first: int, second: int = 1) -> int:
    """Adds two numbers."""
    return first + second


@server.tool()
def divide(first: float, second: float) -> float:
    """Divides two numbers."""
    return first / second


@server.tool()
def hang() -> str:
    """Takes a minute."""
    time.sleep(60)
    return "done"


@server.tool()
def die() -> str:
    """Ends the server."""
    os._exit(3)


@server.tool()
def picture() -> Image:
    """Draws a picture."""
    return Image(data=b"\x89PNG123", format="png")


@server.tool()
def megabyte() -> str:
    """Says much."""
    return "a" * 2**20


@server.tool()
def process() -> str:
    """The id of the server's process."""
    return str(os.getpid())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run(transport="streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
