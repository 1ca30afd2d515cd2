"""The WebSocket to one kernel: sends messages, and hands each answer to whoever waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

Message = dict[str, Any]

_LARGEST_MESSAGE = 1 << 30
_CLOSE_PATIENCE = 2.0


@dataclass(frozen=True)
class Ended:
    """Nothing more will be heard, and why."""

    words: str


Inbox = Callable[[Message | Ended], None]


class Connection:
    """One connection, open until the kernel, the gateway or we end it.

    ``explain`` is asked why a kernel has ended; its words go to everyone who waits.
    """

    def __init__(self, explain: Callable[[], Awaitable[str]]) -> None:
        self.ended: Ended | None = None
        self.restarts = 0
        """How often the interpreter was said to begin anew."""
        self._explain = explain
        # Messages carry this name into the kernel, so it opens nothing: not the one in the address.
        self._session = uuid.uuid4().hex
        self._inboxes: dict[str, Inbox] = {}
        self._socket: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None

    async def open(self, address: str, headers: dict[str, str], ping_interval: float) -> None:
        # Without compression, which costs more time on loopback than the bytes do; and not by way
        # of a proxy, which the environment may ask for.
        self._socket = await connect(
            f"{address}?session_id={uuid.uuid4().hex}",
            additional_headers=headers,
            ping_interval=ping_interval,
            close_timeout=_CLOSE_PATIENCE,
            max_size=_LARGEST_MESSAGE,
            compression=None,
            proxy=None,
        )
        self._reader = asyncio.create_task(self._read(self._socket))

    async def close(self, words: str) -> None:
        self._end(Ended(words))
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
            await asyncio.wait({reader})
        if self._socket is not None:
            with contextlib.suppress(WebSocketException, OSError):
                await self._socket.close()

    async def ask(self, kind: str, content: Message, inbox: Inbox) -> str:
        """Send a request; what is said about it goes to ``inbox``, until :meth:`forget`."""
        request = uuid.uuid4().hex
        self._inboxes[request] = inbox
        try:
            await self._send(kind, "shell", content, parent={}, name=request)
        except BaseException:
            self.forget(request)
            raise
        return request

    async def reply(self, content: Message, question: Message) -> None:
        """Answer a question of the kernel."""
        parent = question["header"]
        await self._send("input_reply", "stdin", content, parent=parent, name=uuid.uuid4().hex)

    def forget(self, request: str) -> None:
        self._inboxes.pop(request, None)

    async def _send(
        self, kind: str, channel: str, content: Message, *, parent: Message, name: str
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
            "metadata": {},
            "content": content,
            "buffers": [],
        }
        assert self._socket is not None
        # ASCII, so that lone surrogates in the code arrive as they are.
        text = json.dumps(message)
        if self.ended is None:
            try:
                await self._socket.send(text)
                return
            except WebSocketException:
                # The reader knows more about it, and says so to every inbox.
                assert self._reader is not None
                await asyncio.wait({self._reader})
        if (inbox := self._inboxes.get(name)) is not None and self.ended is not None:
            inbox(self.ended)

    async def _read(self, socket: ClientConnection) -> None:
        words = "the gateway closed the connection"
        try:
            async for frame in socket:
                if isinstance(frame, bytes):
                    continue  # buffers of widgets, which nobody here looks at
                message: Message = json.loads(frame)
                state = _state(message)
                if state == "dead":
                    words = await self._explain()
                    break
                self.restarts += state == "restarting"
                inbox = self._inboxes.get((message.get("parent_header") or {}).get("msg_id", ""))
                if inbox is not None:
                    inbox(message)
        except (WebSocketException, OSError) as error:
            words = f"the connection to the gateway broke: {error}"
        finally:
            self._end(Ended(words))

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
