"""A small MCP server for the tests, over standard input and output or over HTTP."""

from __future__ import annotations

import os
import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("small")


@server.tool()
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def describe(city: str, tags: list[str] | None = None) -> dict[str, object]:
    """Say something about a city."""
    return {"city": city, "tags": tags or []}


@server.tool(name="read-variable")
def read_variable(name: str) -> str:
    """A variable of the server's environment."""
    return os.environ.get(name, "")


@server.tool()
def fail() -> str:
    """Never works."""
    raise ValueError


@server.tool()
def end() -> str:
    """Ends the server."""
    os._exit(3)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        import uvicorn

        uvicorn.run(server.streamable_http_app(), fd=int(sys.argv[1]), log_level="warning")
    else:
        server.run("stdio")
