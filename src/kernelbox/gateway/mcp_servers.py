"""MCP servers whose tools a kernel can call: each is a module below ``tools``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from inspect import Signature
from typing import Any

from kernelbox.gateway.apart import finished
from kernelbox.gateway.schemas import function_name, signature_from, wraps_result
from kernelbox.gateway.tools import Tool, check_name

try:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client
except ImportError as error:
    raise ImportError(
        f"mcp_servers needs {error.name}, which is not installed. In a checkout, this line "
        'installs it: pip install "./kernelbox[mcp]"',
        name=error.name,
    ) from error

_START_PATIENCE = 60.0
_END_PATIENCE = 10.0
_KEYS = {
    "command": {"command", "args", "env", "cwd", "type"},
    "url": {"url", "headers", "type"},
}
_TYPES = {
    "command": {"stdio"},
    "url": {"http", "streamable-http", "streamable_http", "sse"},
}


class Servers:
    """The servers of one client: opened with its kernel, closed with it."""

    def __init__(self, given: Mapping[str, Mapping[str, Any]]) -> None:
        self._servers = [Server(name, wanted) for name, wanted in given.items()]

    async def open(self) -> dict[str, Tool]:
        """Start or find all of them; their tools by name."""
        opening = [asyncio.ensure_future(server.open()) for server in self._servers]
        try:
            found = await asyncio.gather(*opening)
        finally:
            # The first that fails is the error; nobody waits for those that still begin.
            for one in opening:
                one.cancel()
            await asyncio.gather(*opening, return_exceptions=True)
        return {tool.name: tool for tools in found for tool in tools}

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self._servers))


class Server:
    """One server, spoken to for as long as it is open."""

    def __init__(self, name: str, wanted: Mapping[str, Any]) -> None:
        check_name(name)
        _check(name, wanted)
        self.name = name
        self._wanted = wanted
        self._session: ClientSession | None = None
        self._life: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()

    async def open(self) -> list[Tool]:
        ready: asyncio.Future[list[Tool]] = asyncio.get_running_loop().create_future()
        self._leave.clear()
        # In a task of its own: its context managers must be left where they were entered.
        life = self._life = asyncio.create_task(self._live(ready))
        try:
            async with asyncio.timeout(_START_PATIENCE):
                either: set[asyncio.Future[Any]] = {ready, life}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            await finished(self.close())
            raise RuntimeError(
                f"the MCP server {self.name!r} did not answer within {_START_PATIENCE:g} s; look "
                f"at {self._wanted.get('url') or self._wanted.get('command')!r}"
            ) from None
        except BaseException:
            await finished(self.close())
            raise
        if not ready.done():
            failure = None if life.cancelled() else life.exception()
            await finished(self.close())
            raise RuntimeError(
                f"the MCP server {self.name!r} could not be started: {_innermost(failure)}; look "
                f"at {self._wanted.get('url') or self._wanted.get('command')!r}"
            ) from failure
        return ready.result()

    async def close(self) -> None:
        life, self._life = self._life, None
        begun, self._session = self._session is not None, None
        if life is None:
            return
        self._leave.set()
        # One that has not begun does not look whether it is to leave; it waits for the server.
        if begun:
            await asyncio.wait({life}, timeout=_END_PATIENCE)
        for _ in range(2):
            if not life.done():
                life.cancel()
                await asyncio.wait({life}, timeout=_END_PATIENCE)
        if life.done() and not life.cancelled():
            life.exception()  # seen: whoever called it meanwhile was told

    async def _live(self, ready: asyncio.Future[list[Tool]]) -> None:
        async with AsyncExitStack() as stack:
            streams = await stack.enter_async_context(self._transport())
            session = await stack.enter_async_context(ClientSession(streams[0], streams[1]))
            await session.initialize()
            described = await self._described(session)
            self._session = session
            ready.set_result(self._tools(described))
            await self._leave.wait()

    def _transport(self) -> Any:
        if "url" in self._wanted:
            return self._far(str(self._wanted["url"]))
        server = StdioServerParameters(
            command=str(self._wanted["command"]),
            args=[str(argument) for argument in self._wanted.get("args") or ()],
            env=dict(self._wanted.get("env") or {}) or None,
            cwd=self._wanted.get("cwd"),
        )
        # What it logs is for whoever runs us, also where somebody has put something over stderr.
        return stdio_client(server, errlog=sys.__stderr__ or sys.stderr)

    @asynccontextmanager
    async def _far(self, url: str) -> AsyncIterator[Any]:
        headers = dict(self._wanted.get("headers") or {})
        if self._wanted.get("type") == "sse":
            from mcp.client.sse import sse_client

            async with sse_client(url, headers=headers) as streams:
                yield streams
        else:
            from mcp.client.streamable_http import streamable_http_client
            from mcp.shared._httpx_utils import create_mcp_http_client

            async with (
                create_mcp_http_client(headers=headers) as client,
                streamable_http_client(url, http_client=client) as streams,
            ):
                yield streams

    async def _described(self, session: ClientSession) -> list[dict[str, Any]]:
        from mcp.types import PaginatedRequestParams

        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            params = PaginatedRequestParams(cursor=cursor) if cursor else None
            page = (await session.list_tools(params=params)).model_dump(by_alias=True)
            found.extend(page["tools"])
            cursor = page.get("nextCursor")
            if not cursor:
                return found

    def _tools(self, described: list[dict[str, Any]]) -> list[Tool]:
        found: dict[str, Tool] = {}
        for one in described:
            own = function_name(str(one["name"]), found)
            returns = one.get("outputSchema")
            signature = signature_from(one.get("inputSchema") or {}, returns)
            found[own] = Tool(
                f"{self.name}.{own}",
                _Caller(self, str(one["name"]), signature, unwrap=wraps_result(returns)),
                signature,
                str(one.get("description") or one.get("title") or ""),
            )
        return list(found.values())

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The answer as JSON; an error if the server is gone, and not a wait for ever."""
        session, life = self._session, self._life
        if session is None or life is None:
            raise RuntimeError(f"the MCP server {self.name!r} is not running")
        asked = asyncio.ensure_future(session.call_tool(tool, arguments))
        try:
            await asyncio.wait({asked, life}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                raise RuntimeError(f"the MCP server {self.name!r} ended")
            answer: dict[str, Any] = asked.result().model_dump(by_alias=True)
            return answer
        finally:
            asked.cancel()


def _check(name: str, wanted: Mapping[str, Any]) -> None:
    """What nobody would heed is refused: it may have been meant to keep others out."""
    if ("command" in wanted) == ("url" in wanted):
        raise ValueError(
            f"the MCP server {name!r} is either {{'command': …, 'args': […], 'env': {{…}}}} or "
            "{'url': …, 'headers': {…}}"
        )
    kind = "command" if "command" in wanted else "url"
    if unknown := set(wanted) - _KEYS[kind]:
        raise ValueError(
            f"the MCP server {name!r} has a {kind}, and then {sorted(unknown)} means nothing; "
            f"there are {sorted(_KEYS[kind])}"
        )
    if wanted.get("type") is not None and wanted["type"] not in _TYPES[kind]:
        raise ValueError(
            f"the MCP server {name!r} has a {kind}, and then its type is one of "
            f"{sorted(_TYPES[kind])}, not {wanted['type']!r}"
        )
    headers = wanted.get("headers") or {}
    if not isinstance(headers, Mapping) or not all(
        isinstance(part, str) for pair in headers.items() for part in pair
    ):
        raise ValueError(f"the headers of the MCP server {name!r} map names to values, all text")


class _Caller:
    """A tool of a server, as a function."""

    def __init__(self, server: Server, tool: str, signature: Signature, *, unwrap: bool) -> None:
        self._server = server
        self._tool = tool
        self._signature = signature
        self._unwrap = unwrap

    async def __call__(self, *positional: Any, **named: Any) -> Any:
        arguments: dict[str, Any] = {}
        for name, value in self._signature.bind(*positional, **named).arguments.items():
            if (
                self._signature.parameters[name].kind
                is self._signature.parameters[name].VAR_KEYWORD
            ):
                arguments |= value
            else:
                arguments[name] = value
        answer = await self._server.call(self._tool, arguments)
        value = content_of(answer)
        if answer.get("isError"):
            raise RuntimeError(str(value))
        structured = answer.get("structuredContent")
        if structured is None:
            return value
        return structured["result"] if self._unwrap and "result" in structured else structured


def content_of(answer: Mapping[str, Any]) -> Any:
    """What a tool said: its text, or a list where it said more than text."""
    parts = answer.get("content") or []
    if all(part.get("type") == "text" for part in parts):
        return "\n".join(str(part.get("text", "")) for part in parts)
    return [part["text"] if part.get("type") == "text" else part for part in parts]


def _innermost(failure: BaseException | None) -> str:
    """The cause in words: task groups wrap it in groups."""
    while isinstance(failure, BaseExceptionGroup) and failure.exceptions:
        failure = failure.exceptions[0]
    return f"{type(failure).__name__}: {failure}" if failure is not None else "it ended at once"
