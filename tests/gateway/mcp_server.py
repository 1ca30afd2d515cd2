"""A small MCP server for the tests, over standard input and output or over HTTP."""

from __future__ import annotations

import os
import sys
from typing import Any

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


class Guarded:
    """Answers nobody who does not show the token."""

    def __init__(self, app: Any, token: str) -> None:
        self._app = app
        self._shown = f"Bearer {token}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        shown = dict(scope.get("headers") or ()).get(b"authorization")
        if scope["type"] == "http" and shown != self._shown:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"a token is needed"})
            return
        await self._app(scope, receive, send)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        import uvicorn

        app: Any = server.sse_app() if "sse" in sys.argv else server.streamable_http_app()
        if token := os.environ.get("SMALL_TOKEN"):
            app = Guarded(app, token)
        uvicorn.run(app, fd=int(sys.argv[1]), log_level="warning")
    else:
        server.run("stdio")
