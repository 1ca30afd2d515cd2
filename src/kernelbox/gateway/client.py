"""KernelClient: one kernel of a gateway, over Jupyter's REST and WebSocket protocol."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import websockets

from kernelbox.gateway import rest
from kernelbox.gateway.results import (
    Collected,
    ExecutionError,
    ExecutionResult,
    KernelDied,
    error_of,
)
from kernelbox.gateway.tools import ApprovalRequest, Approve, Desk, Tools, collect, stubs

Message = dict[str, Any]

_STOP_PATIENCE = 5.0
_LARGEST_MESSAGE = 512 << 20


class KernelClient:
    """A kernel of its own behind a gateway. It is made by :meth:`connect` and ended by
    :meth:`disconnect`; ``async with`` does both.

    - ``images_dir``: where pictures are saved (default: ``images`` in the current folder)
    - ``ping_interval``: seconds between signs of life on the connection
    - ``working_dir``: the folder that every cell starts in, wherever the one before has gone
    - ``token``: what the gateway asks for (default: ``KERNELBOX_API_TOKEN``)
    - ``tools``: functions, sync or async, that code in the kernel can call: ``import tools``
    - ``approve``: asked before each call of a tool, with an :class:`ApprovalRequest`; without it
      every call of a registered tool is approved. ``approve="stream"``: :meth:`stream` yields the
      requests
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
        approve: Approve | str | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.images_dir = Path("images") if images_dir is None else Path(images_dir)
        self._ping_interval = ping_interval
        self._working_dir = None if working_dir is None else os.fspath(working_dir)
        self._env = dict(env or {})
        self._service = rest.Service(host, port, token or os.environ.get("KERNELBOX_API_TOKEN"))
        self._tools = collect(tools)
        self._streams_approvals = approve == "stream"
        self._requests: asyncio.Queue[ApprovalRequest] | None = None
        if isinstance(approve, str) and not self._streams_approvals:
            raise ValueError(f"approve is a function, None or 'stream', not {approve!r}")
        chosen = self._show_request if self._streams_approvals else approve
        self._desk = Desk(self._tools, chosen)  # type: ignore[arg-type]
        self._session = uuid.uuid4().hex
        self._kernel_id: str | None = None
        self._socket: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._inboxes: dict[str, asyncio.Queue[Message | None]] = {}
        self._turn = asyncio.Lock()
        self._end = ""

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
        body: dict[str, Any] = {"name": "python3"}
        if self._env:
            body["env"] = self._env
        if self._working_dir is not None:
            body["cwd"] = self._working_dir
        for left in reversed(range(max(retries, 1))):
            try:
                answer = await self._service.ask("POST", "/api/kernels", body)
                break
            except rest.NobodyThere as error:
                if not left:
                    raise RuntimeError(
                        f"no gateway answers at {self.host}:{self.port} ({error}); start one with "
                        "KernelGateway, or look at host and port"
                    ) from None
                await asyncio.sleep(retry_interval)
        self._kernel_id = str(answer["id"])
        try:
            await self._open()
        except BaseException:
            await self.disconnect()
            raise

    async def disconnect(self) -> None:
        """End the kernel and the connection to it."""
        kernel_id, self._kernel_id = self._kernel_id, None
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
            await asyncio.wait({reader})
        if self._socket is not None:
            with contextlib.suppress(Exception):
                await self._socket.close()
            self._socket = None
        if kernel_id is not None:
            with contextlib.suppress(rest.NobodyThere, rest.Refused):
                await self._service.ask("DELETE", f"/api/kernels/{kernel_id}")

    async def reset(self) -> None:
        """A clean state: the kernel is ended, and another takes its place."""
        async with self._turn:
            await self.disconnect()
            await self.connect()

    async def interrupt(self) -> None:
        """Interrupt what runs; variables are kept."""
        await self._service.ask("POST", f"/api/kernels/{self.kernel_id}/interrupt")

    async def execute(self, code: str, timeout: float = 120) -> ExecutionResult:
        """Run code and wait for its result.

        Raises :class:`ExecutionError` if the code raises an error, and ``TimeoutError`` if it takes
        longer than ``timeout`` seconds: then it is interrupted, and the kernel and its variables
        are there as before. Waiting for approval is not counted. Calls queue in order.
        """
        if self._streams_approvals:
            raise RuntimeError("approve='stream' needs stream(), which yields the requests")
        async for item in self._run(code, timeout):
            if isinstance(item, ExecutionResult):
                return item
        raise AssertionError("an execution ends with a result or an error")

    def stream(
        self, code: str, timeout: float = 120
    ) -> AsyncIterator[str | ExecutionResult | ApprovalRequest]:
        """Run code and yield what it prints as it prints it, and its :class:`ExecutionResult` last.

        Raises what :meth:`execute` raises. Leaving early interrupts the code.
        """
        return self._run(code, timeout)

    # -- one execution --------------------------------------------------------------------------

    async def _run(
        self, code: str, timeout: float
    ) -> AsyncGenerator[str | ExecutionResult | ApprovalRequest, None]:
        async with self._turn:
            self.kernel_id  # noqa: B018 - says that we are not connected
            running = _Running(self, code, timeout)
            try:
                async for item in running.items():
                    yield item
            finally:
                await running.leave()

    async def _open(self) -> None:
        path = f"/api/kernels/{self.kernel_id}/channels?session_id={self._session}"
        self._end = ""
        self._socket = await websockets.connect(
            self._service.websocket(path),
            additional_headers=self._service.headers,
            ping_interval=self._ping_interval,
            max_size=_LARGEST_MESSAGE,
            proxy=None,
        )
        self._reader = asyncio.create_task(self._read(self._socket))
        if self._tools:
            await self._install(stubs(self._tools))
        if self._working_dir is not None:
            await self._install(_KEEP_FOLDER.format(folder=self._working_dir))

    async def _install(self, program: str) -> None:
        running = _Running(self, program, 60, silent=True)
        async for _ in running.items():
            pass

    async def _read(self, socket: Any) -> None:
        """Hand each message to the execution that it is about."""
        try:
            async for frame in socket:
                if isinstance(frame, bytes):
                    continue  # buffers of widgets, which nobody here looks at
                message: Message = json.loads(frame)
                if _state(message) == "dead":
                    self._end = "the kernel has ended"
                    break
                inbox = self._inboxes.get((message.get("parent_header") or {}).get("msg_id", ""))
                if inbox is not None:
                    inbox.put_nowait(message)
        except websockets.WebSocketException as error:
            self._end = f"the connection to the gateway broke: {error}"
        finally:
            self._end = self._end or "the connection to the gateway has ended"
            for inbox in self._inboxes.values():
                inbox.put_nowait(None)

    async def _send(self, kind: str, channel: str, content: Message, parent: Message) -> str:
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": kind,
            "session": self._session,
            "username": "kernelbox",
            "date": "",
            "version": "5.4",
        }
        message = {
            "channel": channel,
            "header": header,
            "parent_header": parent,
            "metadata": {},
            "content": content,
            "buffers": [],
        }
        if channel == "shell":
            self._inboxes[header["msg_id"]] = asyncio.Queue()
        try:
            await self._socket.send(json.dumps(message))
        except websockets.WebSocketException as error:
            self._inboxes.pop(header["msg_id"], None)
            raise KernelDied(f"KernelDied: {self._end or error}", ename="KernelDied") from None
        return header["msg_id"]

    async def _show_request(self, request: ApprovalRequest) -> None:
        assert self._requests is not None
        self._requests.put_nowait(request)
        await asyncio.wait({request._answer})


class _Running:
    """One execution: it is over when both its reply and the idle status are here."""

    def __init__(
        self, client: KernelClient, code: str, timeout: float, *, silent: bool = False
    ) -> None:
        self._client = client
        self._code = code
        self._timeout = timeout
        self._silent = silent
        self._id = ""
        self._reply: Message | None = None
        self._idle = False
        self._output = Collected(client.images_dir)
        self._calls: set[asyncio.Task[None]] = set()

    @property
    def over(self) -> bool:
        return self._reply is not None and self._idle

    async def items(self) -> AsyncGenerator[str | ExecutionResult | ApprovalRequest, None]:
        client = self._client
        client._requests = asyncio.Queue()
        content = {
            "code": self._code,
            "silent": self._silent,
            "store_history": not self._silent,
            "user_expressions": {},
            "allow_stdin": bool(client._tools),
            "stop_on_error": False,
        }
        self._id = await client._send("execute_request", "shell", content, {})
        left = self._timeout
        loop = asyncio.get_running_loop()
        while not self.over:
            began = loop.time()
            # The clock stands still while somebody thinks about a call of a tool.
            message, request = await self._next(None if self._calls else left)
            if not self._calls:
                left -= loop.time() - began
            if request is not None:
                yield request
            elif message is not None and (text := self._take(message)) is not None:
                yield text
        assert self._reply is not None
        result = self._output.result()
        if self._reply.get("status") != "ok":
            raise error_of(self._reply, result)
        yield result

    async def _next(self, patience: float | None) -> tuple[Message | None, ApprovalRequest | None]:
        """What comes next: a message, a request for approval, or (None, None): a call was answered,
        and the clock goes on."""
        client = self._client
        inbox = client._inboxes[self._id]
        assert client._requests is not None
        waits: set[asyncio.Future[Any]] = {asyncio.ensure_future(inbox.get())}
        message_wait = next(iter(waits))
        request_wait = asyncio.ensure_future(client._requests.get())
        try:
            done, _ = await asyncio.wait(
                {message_wait, request_wait, *self._calls},
                timeout=patience,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for wait in (message_wait, request_wait):
                if not wait.done():
                    wait.cancel()
        if message_wait in done:
            if request_wait in done:
                client._requests.put_nowait(request_wait.result())
            message = message_wait.result()
            if message is None:
                raise KernelDied(
                    f"KernelDied: {client._end}",
                    ename="KernelDied",
                    evalue=client._end,
                    result=self._output.result(),
                )
            return message, None
        if request_wait in done:
            return None, request_wait.result()
        if not done:
            await self._stop()
            raise TimeoutError(f"the code took longer than {self._timeout:g} s and was interrupted")
        self._calls = {call for call in self._calls if not call.done()}
        return None, None

    def _take(self, message: Message) -> str | None:
        content = message["content"]
        match message["header"]["msg_type"]:
            case "execute_reply":
                self._reply = content
            case "status":
                self._idle = self._idle or content.get("execution_state") == "idle"
            case "stream":
                return self._output.stream(str(content.get("text", "")))
            case "display_data" | "execute_result":
                return self._output.display(content)
            case "update_display_data":
                self._output.update(content)
            case "clear_output":
                self._output.clear(wait=bool(content.get("wait")))
            case "input_request":
                call = asyncio.create_task(self._answer(message))
                self._calls.add(call)
        return None

    async def _answer(self, question: Message) -> None:
        client = self._client
        prompt = str(question["content"].get("prompt", ""))
        if client._desk.is_call(prompt):
            value = await client._desk.answer(prompt)
        else:
            value = ""  # input() has nobody to answer it here
        await client._send("input_reply", "stdin", {"value": value}, question["header"])

    async def _stop(self) -> None:
        """Interrupt it and wait until it has stopped, so that the next one finds a free kernel."""
        client = self._client
        with contextlib.suppress(rest.NobodyThere, rest.Refused, RuntimeError):
            await client.interrupt()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_PATIENCE):
                while not self.over:
                    message = await client._inboxes[self._id].get()
                    if message is None:
                        return
                    self._take(message)

    async def leave(self) -> None:
        """However it ended, nothing of it goes on."""
        for call in self._calls:
            call.cancel()
        if self._id in self._client._inboxes:
            if not self.over and self._client._kernel_id is not None and not self._client._end:
                await self._stop()
            self._client._inboxes.pop(self._id, None)


def _state(message: Message) -> str | None:
    if message.get("header", {}).get("msg_type") != "status":
        return None
    state: str | None = message["content"].get("execution_state")
    return state


_KEEP_FOLDER = """
def _keep_folder(folder):
    import os
    os.chdir(folder)
    def back(*_):
        try:
            os.chdir(folder)
        except OSError:
            pass
    get_ipython().events.register("post_run_cell", back)
_keep_folder({folder!r})
del _keep_folder
"""

__all__ = ["ExecutionError", "KernelClient"]
