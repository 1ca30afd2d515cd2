"""The tools of real MCP servers, called from a kernel."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from processes import wait_until

from kernelbox.gateway import ApprovalRequest, ExecutionError, KernelClient, KernelGateway

pytest.importorskip("mcp", reason="mcp is not installed")

PROGRAM = str(Path(__file__).with_name("mcp_server.py"))
STDIO = {"small": {"command": sys.executable, "args": [PROGRAM], "env": {"GIVEN": "to the server"}}}


async def test_tools_of_a_server_are_typed_functions_of_a_module(connected: Any) -> None:
    async with connected(mcp_servers=STDIO) as client:
        assert (await client.execute("import tools\nprint(tools.small.add(1))")).text == "3"
        code = "from tools.small import add, describe\nprint(add(1, b=5), describe('Rome'))"
        assert (await client.execute(code)).text == "6 {'city': 'Rome', 'tags': []}"
        code = "import tools.small\nprint(tools.small.read_variable('GIVEN'))"
        assert (await client.execute(code)).text == "to the server"
        # Typed and documented, from their schemas.
        await client.execute("import inspect, tools")
        signature = await client.execute("print(inspect.signature(tools.small.add))")
        assert signature.text == "(a: int, b: int = 2) -> int"
        signature = await client.execute("print(inspect.signature(tools.small.describe))")
        assert signature.text.startswith("(city: str, tags: list[str] | None = None)")
        assert (await client.execute("print(tools.small.add.__doc__)")).text == "Add two numbers."
        assert "small" in (await client.execute("print(tools.__all__)")).text


async def test_calls_of_servers_are_approved_like_any_other(connected: Any) -> None:
    asked: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> None:
        asked.append(request)
        if request.tool == "small.add":
            request.accept({**request.arguments, "b": 100})
        else:
            request.reject()

    async with connected(mcp_servers=STDIO, approve=approve) as client:
        assert (await client.execute("import tools\nprint(tools.small.add(1))")).text == "101"
        with pytest.raises(ExecutionError, match="PermissionError"):
            await client.execute("tools.small.describe('Rome')")
    assert [request.tool for request in asked] == ["small.add", "small.describe"]


async def test_a_tool_that_fails_and_a_server_that_ends_are_said(connected: Any) -> None:
    async with connected(mcp_servers=STDIO) as client:
        with pytest.raises(ExecutionError, match=r"ToolError: .*fail"):
            await client.execute("import tools\ntools.small.fail()")
        with pytest.raises(ExecutionError, match="TypeError"):
            await client.execute("tools.small.add()")
        async with asyncio.timeout(60):
            for tool in ("end", "fail"):
                with pytest.raises(ExecutionError, match="ToolError"):
                    await client.execute(f"import tools\ntools.small.{tool}()")
        assert (await client.execute("print('alive')")).text == "alive"
        await client.reset()
        assert (await client.execute("import tools\nprint(tools.small.add(1))")).text == "3"


async def test_servers_end_with_their_client(connected: Any) -> None:
    def servers() -> list[psutil.Process]:
        return [c for c in psutil.Process().children(recursive=True) if PROGRAM in c.cmdline()]

    async with connected(mcp_servers=STDIO) as client:
        await client.execute("1")
        assert len(servers()) == 1
    await asyncio.to_thread(wait_until, lambda: not servers(), what="the server to end")


async def test_functions_and_several_servers_live_side_by_side(connected: Any) -> None:
    both = {**STDIO, "other": {**STDIO["small"], "env": {"GIVEN": "to the other"}}}
    async with connected(tools={"double": lambda x: 2 * x}, mcp_servers=both) as client:
        await client.execute("import tools")
        code = "print(tools.double(2), tools.small.add(1), tools.other.read_variable('GIVEN'))"
        assert (await client.execute(code)).text == "4 3 to the other"


@asynccontextmanager
async def served(*how: str, **env: str) -> AsyncIterator[str]:
    """The server over HTTP, and where it is."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        process = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, PROGRAM, str(listening.fileno()), *how],
            pass_fds=[listening.fileno()],
            env={**os.environ, **env},
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)


async def test_a_server_behind_a_url(connected: Any) -> None:
    async with (
        served() as address,
        connected(mcp_servers={"far": {"url": f"{address}/mcp"}}) as client,
    ):
        assert (await client.execute("import tools\nprint(tools.far.add(2, 3))")).text == "5"


@pytest.mark.parametrize("kind", ["http", "sse"])
async def test_a_server_behind_a_token(connected: Any, kind: str) -> None:
    async with served(kind, SMALL_TOKEN="open-sesame") as address:
        url = f"{address}/sse" if kind == "sse" else f"{address}/mcp"
        far = {"url": url, "type": kind, "headers": {"Authorization": "Bearer open-sesame"}}
        async with connected(mcp_servers={"far": far}) as client:
            assert (await client.execute("import tools\nprint(tools.far.add(2, 3))")).text == "5"
        with pytest.raises(RuntimeError, match="'far' could not be started"):
            async with connected(mcp_servers={"far": {"url": url, "type": kind}}):
                pass


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({"command": "no-such-program-anywhere"}, "no-such-program-anywhere"),
        ({"command": sys.executable, "args": ["-c", "pass"]}, "could not be started"),
        ({"url": "http://127.0.0.1:9/mcp"}, "could not be started"),
    ],
)
async def test_a_server_that_does_not_start_is_said(
    connected: Any, server: dict[str, Any], words: str
) -> None:
    with pytest.raises(RuntimeError, match="the MCP server 'broken'") as caught:
        async with connected(mcp_servers={"broken": server}):
            pass
    assert words in str(caught.value)


async def test_a_server_that_says_nothing_is_said_in_time(
    connected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleepers() -> list[psutil.Process]:
        return [c for c in psutil.Process().children(recursive=True) if "4321" in c.cmdline()]

    silent = {"command": "sleep", "args": ["4321"]}
    monkeypatch.setattr("kernelbox.gateway.mcp_servers._START_PATIENCE", 1.0)
    async with asyncio.timeout(60):
        with pytest.raises(RuntimeError, match="'silent' did not answer within 1 s"):
            async with connected(mcp_servers={"silent": silent}):
                pass
    # Nor does anybody wait for it if another fails.
    monkeypatch.setattr("kernelbox.gateway.mcp_servers._START_PATIENCE", 600.0)
    broken = {"command": "no-such-program-anywhere"}
    async with asyncio.timeout(60):
        with pytest.raises(RuntimeError, match="'broken' could not be started"):
            async with connected(mcp_servers={"silent": silent, "broken": broken}):
                pass
    # Nor if its caller does not want to wait any longer.
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2), connected(mcp_servers={"silent": silent}):
            pass
    await asyncio.to_thread(wait_until, lambda: not sleepers(), what="the servers to end")


def test_servers_are_described_in_one_of_two_ways() -> None:
    for server in ({}, {"command": "a", "url": "b"}, {"program": "a"}):
        with pytest.raises(ValueError, match="'broken' is either"):
            KernelClient(mcp_servers={"broken": server})
    for server, words in (
        ({"command": "a", "headers": {"X": "y"}}, "headers"),
        ({"url": "a", "args": ["b"]}, "args"),
        ({"url": "a", "type": "stdio"}, "'sse'"),
        ({"command": "a", "type": "sse"}, "'stdio'"),
        ({"url": "a", "headers": {"X": 1}}, "all text"),
    ):
        with pytest.raises(ValueError, match=words):
            KernelClient(mcp_servers={"broken": server})
    with pytest.raises(ValueError, match="name"):
        KernelClient(mcp_servers={"not a name": {"url": "x"}})
    with pytest.raises(ValueError, match="both a tool and an MCP server"):
        KernelClient(tools={"small": len}, mcp_servers=STDIO)


def test_without_the_package_the_error_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "mcp.py").write_text("raise ImportError('not here', name='mcp')")
    program = (
        "from kernelbox.gateway import KernelClient\nKernelClient(mcp_servers={'a': {'url': 'b'}})"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert 'pip install "./kernelbox[mcp]"' in done.stderr
    assert KernelGateway  # the gateway itself needs none of it
