"""The WebSocket to one kernel: sends messages, and hands each answer to whoever waits for it.

A connection may break while the kernel lives: the network did, or the caller's loop stood still for
so long that the gateway gave us up. Then we come back under the same name, and the gateway tells
what we have missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from kernelbox.gateway.dialling import dial

Message = dict[str, Any]

LINE = "kernelbox-line"
"""The door's header that says whether it has kept what we missed: ``kept``, or ``new``. Doors of
others do not say."""
AGAIN = {"kernelbox_again": True}
"""The metadata of a message that may have arrived before: the door passes it on if it has not."""

_LARGEST_MESSAGE = 1 << 30
_CLOSE_PATIENCE = 2.0
_PONG_STEPS = 20
_PAUSES = (0.0, 0.1, 0.3, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each attempt to come back."""


@dataclass(frozen=True)
class Ended:
    """Nothing more will be heard, and why."""

    words: str


@dataclass(frozen=True)
class Missed:
    """What was said about a request is lost; the kernel lives, and so does the connection."""

    words: str


Inbox = Callable[[Message | Ended | Missed], None]


class Connection:
    """One connection, open until the kernel, the gateway or we end it.

    ``explain`` is asked what became of the kernel, with whether it is known to be dead; its words
    go to everyone who waits.
    """

    def __init__(self, explain: Callable[[bool], Awaitable[str]]) -> None:
        self.ended: Ended | None = None
        self.restarts = 0
        """How often the interpreter was said to begin anew."""
        self._explain = explain
        # Messages carry this name into the kernel, so it opens nothing: not the one in the address.
        self._session = uuid.uuid4().hex
        self._inboxes: dict[str, Inbox] = {}
        self._unheard: dict[str, Message] = {}
        """What may not have arrived, by the request that it belongs to."""
        self._last_heard = ""
        self._socket: ClientConnection | None = None
        self._connect: Callable[[], Awaitable[ClientConnection]] | None = None
        self._ping_interval = 10.0
        self._life: asyncio.Task[None] | None = None

    async def open(
        self, host: str, port: int, path: str, *, headers: dict[str, str], ping_interval: float
    ) -> None:
        name = f"[{host}]" if ":" in host else host
        address = f"ws://{name}:{port}{path}?session_id={uuid.uuid4().hex}"

        async def connected() -> ClientConnection:
            sock = await dial(host, port)
            try:
                # Without compression, which costs more time on loopback than the bytes do; and
                # without its pings: it takes our own lateness for the gateway's.
                return await connect(
                    address,
                    sock=sock,
                    additional_headers=headers,
                    ping_interval=None,
                    close_timeout=_CLOSE_PATIENCE,
                    max_size=_LARGEST_MESSAGE,
                    compression=None,
                )
            except BaseException:
                sock.close()
                raise

        self._connect = connected
        self._ping_interval = ping_interval
        self._socket = await connected()
        self._life = asyncio.create_task(self._live(self._socket))

    async def close(self, words: str) -> None:
        self._end(Ended(words))
        life, self._life = self._life, None
        if life is not None:
            life.cancel()
            await asyncio.wait({life})
        if self._socket is not None:
            with contextlib.suppress(WebSocketException, OSError):
                await self._socket.close()

    async def ask(
        self, request: str, content: Message, inbox: Inbox, *, metadata: Message | None = None
    ) -> None:
        """Send code to run, under a name of its own; what is said about it goes to ``inbox``, until
        :meth:`forget`: also if we are cancelled, for it may have been sent."""
        self._inboxes[request] = inbox
        kind = "execute_request"
        await self._send(
            request, kind, "shell", content, parent={}, name=request, metadata=metadata
        )

    async def reply(self, content: Message, question: Message) -> None:
        """Answer a question of the kernel."""
        request = (question.get("parent_header") or {}).get("msg_id", "")
        parent = question["header"]
        name = uuid.uuid4().hex
        await self._send(request, "input_reply", "stdin", content, parent=parent, name=name)

    def forget(self, request: str) -> None:
        self._inboxes.pop(request, None)
        self._unheard.pop(request, None)

    async def _send(
        self,
        request: str,
        kind: str,
        channel: str,
        content: Message,
        *,
        parent: Message,
        name: str,
        metadata: Message | None = None,
    ) -> None:
        message = {
            "channel": channel,
            "header": {
                "msg_id": name,
                "msg_type": kind,
                "session": self._session,
                "username": "kernelbox",
                "date": "",
                "version": "5.4",
            },
            "parent_header": parent,
            "metadata": metadata or {},
            "content": content,
            "buffers": [],
        }
        if self.ended is not None:
            if (inbox := self._inboxes.get(request)) is not None:
                inbox(self.ended)
            return
        self._unheard[request] = message
        assert self._socket is not None
        # If it fails, it is sent again when we have come back; and if we cannot, that is said to
        # every inbox.
        with contextlib.suppress(WebSocketException):
            # ASCII, so that lone surrogates in the code arrive as they are.
            await self._socket.send(json.dumps(message))

    # -- what comes in --------------------------------------------------------------------------

    async def _live(self, socket: ClientConnection) -> None:
        words = "the connection was left"
        try:
            while True:
                watch = asyncio.create_task(self._look_after(socket))
                try:
                    broke = await self._read(socket)
                finally:
                    watch.cancel()
                if broke is None:
                    words = await self._explain(True)
                    return
                found = await self._come_back(broke)
                if isinstance(found, str):
                    words = found
                    return
                socket = self._socket = found
        finally:
            self._end(Ended(words))

    async def _read(self, socket: ClientConnection) -> str | None:
        """Hand out all that is said; how the connection broke, or None if the kernel died."""
        try:
            async for frame in socket:
                if isinstance(frame, bytes):
                    continue  # buffers of widgets, which nobody here looks at
                message: Message = json.loads(frame)
                state = _state(message)
                if state == "dead":
                    return None
                if message["header"]["msg_id"] == self._last_heard:
                    continue  # told again: the gateway could not know that it had arrived
                self._last_heard = message["header"]["msg_id"]
                self.restarts += state == "restarting"
                request = (message.get("parent_header") or {}).get("msg_id", "")
                inbox = self._inboxes.get(request)
                if inbox is not None:
                    if self._unheard and message["header"]["msg_type"] != "input_request":
                        self._heard(request)
                    inbox(message)
        except (WebSocketException, OSError) as error:
            return f"the connection to the gateway broke: {error}"
        return "the gateway closed the connection"

    async def _look_after(self, socket: ClientConnection) -> None:
        """Show signs of life, and break the connection if the gateway shows none. Counted in small
        steps: a loop that stands still for long takes one of them, and then hears what came."""
        with contextlib.suppress(WebSocketException):
            while True:
                await asyncio.sleep(self._ping_interval)
                pong = asyncio.ensure_future(await socket.ping())
                for _ in range(_PONG_STEPS):
                    if not pong.done():
                        await asyncio.wait({pong}, timeout=1.0)
                if not pong.done():
                    socket.transport.abort()
                    return

    def _heard(self, request: str) -> None:
        """A request of which something is heard has arrived. An answer is kept: what is heard
        after it may have been said before."""
        sent = self._unheard.get(request)
        if sent is not None and sent["header"]["msg_id"] == request:
            del self._unheard[request]

    async def _come_back(self, broke: str) -> ClientConnection | str:
        """The same connection, made again; in words why not, if that cannot be."""
        assert self._connect is not None
        cause = ""
        for pause in _PAUSES:
            await asyncio.sleep(pause)
            try:
                socket = await self._connect()
            except ConnectionRefusedError:
                break  # there is no gateway any more
            except InvalidStatus as error:
                cause = str(error)
                if error.response.status_code != 503:
                    break
            except (WebSocketException, OSError, TimeoutError) as error:
                cause = str(error) or type(error).__name__
            else:
                await self._catch_up(socket, broke)
                return socket
        again = f"it cannot be made again ({cause}); " if cause else ""
        return f"{broke}; {again}{await self._explain(False)}"

    async def _catch_up(self, socket: ClientConnection, broke: str) -> None:
        line = socket.response.headers.get(LINE) if socket.response is not None else None
        if line == "kept":
            with contextlib.suppress(WebSocketException):  # then we come back once more
                for message in list(self._unheard.values()):
                    metadata = {**message["metadata"], **AGAIN}
                    await socket.send(json.dumps({**message, "metadata": metadata}))
            return
        lost = list(self._inboxes) if line == "new" else list(self._unheard)
        for request in lost:
            if (inbox := self._inboxes.get(request)) is not None:
                self.forget(request)
                inbox(
                    Missed(
                        f"{broke}. The connection was made again, and the kernel lives, but what "
                        "became of this cell is not known: it may have run, and was interrupted"
                    )
                )

    def _end(self, ended: Ended) -> None:
        if self.ended is None:
            self.ended = ended
            for inbox in list(self._inboxes.values()):
                inbox(ended)


def _state(message: Message) -> str | None:
    if message["header"]["msg_type"] != "status":
        return None
    state: str | None = message["content"].get("execution_state")
    return state
