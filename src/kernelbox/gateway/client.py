"""KernelClient: one kernel of a gateway, over Jupyter's REST and WebSocket protocol."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from websockets.exceptions import WebSocketException

from kernelbox.gateway import rest
from kernelbox.gateway.apart import finished
from kernelbox.gateway.connection import Connection
from kernelbox.gateway.execution import AnotherInterpreter, Execution, Item
from kernelbox.gateway.results import Collected, ExecutionError, ExecutionResult, KernelDied
from kernelbox.gateway.stubs import installation
from kernelbox.gateway.tools import ApprovalRequest, Approve, Desk, Tool, Tools, collect

if TYPE_CHECKING:
    from kernelbox.gateway.mcp_servers import Servers

_PREPARATION_PATIENCE = 60.0
_CLEAN_UP_PATIENCE = 30.0
_BEGINNINGS = 5
"""Interpreters that may die before a cell, until that is an error."""


class KernelClient:
    """A kernel of its own behind a gateway. It is made by :meth:`connect` and ended by
    :meth:`disconnect`; ``async with`` does both.

    - ``images_dir``: where pictures are saved (default: ``images`` in the current folder)
    - ``ping_interval``: seconds between signs of life on the connection
    - ``working_dir``: the folder that every cell starts in, wherever the one before has gone
    - ``token``: what the gateway asks for (default: ``KERNELBOX_API_TOKEN``)
    - ``env``: variables of this kernel, besides the gateway's
    - ``tools``: functions, sync or async, that code in the kernel can call: ``import tools``
    - ``mcp_servers``: MCP servers whose tools it can call: ``import tools.NAME``. Each is
      ``{"command": …, "args": […], "env": {…}}`` or ``{"url": …, "headers": {…}}``
    - ``approve``: asked before each call of a tool, with an :class:`ApprovalRequest`; in a thread,
      or on the event loop if it is async. Without it every call of a registered tool is approved.
      ``approve="stream"``: :meth:`stream` yields the requests
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 8888,
        images_dir: Path | None = None,
        ping_interval: float = 10,
        *,
        working_dir: str | os.PathLike[str] | None = None,
        token: str | None = None,
        env: Mapping[str, str] | None = None,
        tools: Tools = (),
        mcp_servers: Mapping[str, Mapping[str, Any]] | None = None,
        approve: Approve | Literal["stream"] | None = None,
    ) -> None:
        if isinstance(approve, str) and approve != "stream":
            raise ValueError(f"approve is a function, None or 'stream', not {approve!r}")
        self.host = host
        self.port = port
        self.images_dir = Path("images") if images_dir is None else Path(images_dir)
        self._ping_interval = ping_interval
        self._working_dir = None if working_dir is None else os.path.abspath(working_dir)
        self._env = dict(env or {})
        self._service = rest.Service(host, port, token or os.environ.get("KERNELBOX_API_TOKEN"))
        self._own_tools = collect(tools)
        self._servers = _servers(mcp_servers, self._own_tools)
        self._streams_approvals = approve == "stream"
        self._approve = None if isinstance(approve, str) else approve
        self._desk: Desk | None = None
        self._kernel_id: str | None = None
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()
        self._prepared: tuple[int, int | None] | None = None

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.disconnect()

    @property
    def kernel_id(self) -> str:
        """The id of the kernel; ``RuntimeError`` if there is none yet."""
        if self._kernel_id is None:
            raise RuntimeError("not connected to a kernel; call connect() first")
        return self._kernel_id

    async def connect(self, retries: int = 10, retry_interval: float = 1.0) -> None:
        """Make a kernel and connect to it. ``RuntimeError`` if no gateway answers in time."""
        if self._kernel_id is not None:
            raise RuntimeError(f"already connected to kernel {self._kernel_id}")
        made = await self._make_kernel(retries, retry_interval)
        self._kernel_id = made
        try:
            tools = {**self._own_tools, **await self._tools_of_servers()}
            self._desk = Desk(tools, self._approve) if tools else None
            self._connection = Connection(self._why_it_ended)
            try:
                await self._connection.open(
                    self.host,
                    self.port,
                    f"/api/kernels/{made}/channels",
                    headers=self._service.headers,
                    ping_interval=self._ping_interval,
                )
            except (OSError, WebSocketException, TimeoutError) as error:
                raise RuntimeError(
                    f"kernel {made} of the gateway at {self.host}:{self.port} cannot be connected "
                    f"to: {error}"
                ) from None
            await self._prepare()
        except BaseException:
            await self.disconnect()
            raise

    async def disconnect(self) -> None:
        """End the kernel and the connection to it."""
        # To the end, also if somebody does not want to wait for it: nobody would end it later.
        await finished(self._disconnect())

    async def _disconnect(self) -> None:
        kernel_id, self._kernel_id = self._kernel_id, None
        connection, self._connection = self._connection, None
        self._prepared = None
        try:
            if connection is not None:
                await connection.close("the client was disconnected")
            if kernel_id is not None:
                await self._end_kernel(kernel_id)
        finally:
            if self._servers is not None:
                await self._servers.close()

    async def reset(self) -> None:
        """A clean state: the kernel is ended, and another takes its place."""
        async with self._turn:
            await self.disconnect()
            await self.connect()

    async def interrupt(self) -> None:
        """Interrupt what runs; variables are kept."""
        await self._service.ask("POST", f"/api/kernels/{self.kernel_id}/interrupt")

    async def execute(self, code: str, timeout: float | None = 120) -> ExecutionResult:
        """Run code and wait for its result.

        Raises :class:`ExecutionError` if the code raises an error, and ``TimeoutError`` if it takes
        longer than ``timeout`` seconds: then it is interrupted, and the kernel and its variables
        are there as before. Waiting for approval is not counted. Calls queue in order.
        """
        if self._streams_approvals:
            raise RuntimeError("approve='stream' needs stream(), which yields the requests")
        async with aclosing(self._run(code, timeout)) as items:
            async for item in items:
                if isinstance(item, ExecutionResult):
                    return item
        raise AssertionError("an execution ends with a result or an error")

    def stream(
        self, code: str, timeout: float | None = 120
    ) -> AsyncIterator[str | ExecutionResult | ApprovalRequest]:
        """Run code and yield what it prints as it prints it, and its :class:`ExecutionResult` last.

        Raises what :meth:`execute` raises. Leaving early interrupts the code.
        """
        return self._run(code, timeout)

    # -- one execution --------------------------------------------------------------------------

    async def _run(self, code: str, timeout: float | None) -> AsyncGenerator[Item, None]:
        async with self._turn:
            self.kernel_id  # noqa: B018 - says that we are not connected
            told = None
            for left in reversed(range(_BEGINNINGS)):
                if (loss := await self._prepare()) is not None and told is None:
                    told = f"The kernel's variables are gone: {loss}.\n"
                    yield told
                execution = self._execution(told)
                expected = self._prepared[1] if self._prepared is not None else None
                try:
                    items = execution.items(code, timeout, expect_epoch=expected)
                    async with aclosing(items):
                        async for item in items:
                            yield item
                    return
                except AnotherInterpreter as error:
                    # It died while nothing ran: its successor has neither tools nor folder yet.
                    if not left:
                        words = f"interpreters die before they can run anything: {error}"
                        raise KernelDied(
                            f"KernelDied: {words}", ename="KernelDied", evalue=words
                        ) from None
                    self._prepared = None
                finally:
                    await finished(execution.leave())

    def _execution(self, told: str | None = None) -> Execution:
        """With what was told before as a part of its output."""
        assert self._connection is not None
        output = Collected(self.images_dir)
        if told is not None:
            output.stream(told)
        return Execution(
            self._connection,
            output,
            desk=self._desk,
            interrupt=self._interrupt_quietly,
            restart=self._restart_quietly,
            shows_approvals=self._streams_approvals,
        )

    async def _prepare(self) -> str | None:
        """Stubs of tools and the like, in every new interpreter: they die with the old one. Why
        that is gone, if we are the first to hear of it."""
        connection = self._connection
        assert connection is not None
        tools = self._desk.tools if self._desk is not None else {}
        program = installation(tools, self._working_dir)
        restarts = connection.restarts
        if not program or (self._prepared is not None and self._prepared[0] == restarts):
            return None
        execution = self._execution()
        try:
            items = execution.items(program, _PREPARATION_PATIENCE, silent=True)
            async with aclosing(items):
                async for _ in items:
                    pass
        except ExecutionError as error:
            if error.ename in ("FileNotFoundError", "NotADirectoryError", "PermissionError"):
                raise RuntimeError(
                    f"the working_dir {self._working_dir!r} cannot be entered where the gateway "
                    f"runs: {error.evalue}"
                ) from None
            raise
        finally:
            await finished(execution.leave())
        self._prepared = restarts, execution.epoch
        return execution.loss

    async def _interrupt_quietly(self) -> None:
        with contextlib.suppress(rest.NobodyThere, rest.Refused, RuntimeError):
            await self.interrupt()

    async def _restart_quietly(self) -> None:
        self._prepared = None
        with contextlib.suppress(rest.NobodyThere, rest.Refused, RuntimeError):
            await self._service.ask("POST", f"/api/kernels/{self.kernel_id}/restart")

    # -- the gateway ----------------------------------------------------------------------------

    async def _make_kernel(self, retries: int, retry_interval: float) -> str:
        body: dict[str, Any] = {"name": "python3"}
        if self._env:
            body["env"] = self._env
        if self._working_dir is not None:
            body["cwd"] = self._working_dir
        for left in reversed(range(max(retries, 1))):
            try:
                return await self._made(body)
            except rest.NobodyThere as error:
                if not left:
                    raise RuntimeError(
                        f"no gateway answers at {self.host}:{self.port} ({error}); start one with "
                        "KernelGateway, or look at host and port"
                    ) from None
                await asyncio.sleep(retry_interval)
        raise AssertionError("the last attempt returns or raises")

    async def _made(self, body: dict[str, Any]) -> str:
        asked = asyncio.ensure_future(self._service.ask("POST", "/api/kernels", body))
        try:
            return str((await asyncio.shield(asked))["id"])
        except asyncio.CancelledError:
            # The gateway makes it all the same, and nobody would know of it.
            await finished(self._unmake(asked))
            raise

    async def _unmake(self, asked: asyncio.Future[Any]) -> None:
        with contextlib.suppress(rest.NobodyThere, rest.Refused, TimeoutError):
            async with asyncio.timeout(_CLEAN_UP_PATIENCE):
                await self._end_kernel(str((await asked)["id"]))

    async def _end_kernel(self, kernel_id: str) -> None:
        # Gone already, or its gateway is, which takes it along.
        with contextlib.suppress(rest.NobodyThere, rest.Refused, TimeoutError):
            async with asyncio.timeout(_CLEAN_UP_PATIENCE):
                await self._service.ask("DELETE", f"/api/kernels/{kernel_id}")

    async def _why_it_ended(self, dead: bool) -> str:
        """What the gateway knows about the end of our kernel, if it is at its end."""
        words = f"kernel {self._kernel_id} has ended"
        try:
            await self._service.ask("GET", f"/kernels/{self._kernel_id}")
            if not dead:
                words = f"kernel {self._kernel_id} lives, but cannot be connected to"
        except rest.Refused as refusal:
            if refusal.error == "KernelLost":
                words = refusal.message
        except rest.NobodyThere as error:
            words = f"the gateway at {self.host}:{self.port} has ended ({error})"
        return f"{words}; reset() makes a new kernel"

    async def _tools_of_servers(self) -> dict[str, Tool]:
        return {} if self._servers is None else await self._servers.open()


def _servers(
    given: Mapping[str, Mapping[str, Any]] | None, tools: Mapping[str, Tool]
) -> Servers | None:
    if not given:
        return None
    from kernelbox.gateway.mcp_servers import Servers

    for name in given:
        if name in tools:
            raise ValueError(f"{name!r} is both a tool and an MCP server; give one another name")
    return Servers(given)
