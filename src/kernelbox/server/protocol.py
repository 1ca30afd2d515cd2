"""HTTP/1.1 as uvicorn speaks it, but with limits: on how long a request's head may take and how
large it may be, and on how many connections there are.

A connection that sends its headers byte by byte, or nothing at all, would otherwise stay for ever,
and enough of them would leave no descriptor for anybody else.
"""

from __future__ import annotations

import asyncio
import select
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol

from kernelbox.server.answers import to_json
from kernelbox.server.errors import error_content

_LARGEST_HEAD = 64 << 10
_LOOK_AGAIN = 0.5
"""Seconds between looks at whether a client is there while nothing is read from it."""
_HUNG_UP = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


class _HeadTooLarge(Exception):
    """Ends the parsing of a head."""


class PatientProtocol(HttpToolsProtocol):
    """Hangs up on who does not say what they want within ``patience`` seconds, or says too much."""

    patience = 30.0
    most_connections = 10_000
    _waiting: asyncio.TimerHandle | None = None
    _looking: asyncio.TimerHandle | None = None
    _served: RequestResponseCycle | None = None
    _head: int | None = None
    """Bytes of the head that is arriving, as far as the parser has told; None: none is."""
    _raw = 0
    """Bytes that have come for it: the parser holds back what is not whole."""
    _heads = 0
    _between = True
    _upgraded = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            transport.close()
            return
        # What is found out about a connection is kept here for all of its requests.
        self.app_state = {**self.app_state, "connection": {"client": self.client}}
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._looking is not None:
            self._looking.cancel()
        behind = [cycle for cycle, _ in self.pipeline]
        self.pipeline.clear()
        super().connection_lost(exc)
        # uvicorn tells the request that came last; the one that is being served may be another.
        for cycle in (self._served, *behind):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        # Then nothing of it belongs to a body: it goes on with a head, or begins one.
        no_body = self._head is not None or self._between
        expected = self._heads + self._between
        self._raw += len(data)
        super().data_received(data)
        if self._upgraded or self.transport.is_closing():
            return
        if self._head is None or not no_body or self._heads > expected:
            self._raw = 0
        elif self._raw > _LARGEST_HEAD:
            self._refuse_head()
            return
        # Any byte stops uvicorn's timer for silent connections, also one that begins no request.
        if self._waiting is None and not self._serves():
            self._wait_for_head()

    def handle_websocket_upgrade(self) -> None:
        self._upgraded = True
        super().handle_websocket_upgrade()

    # -- what the parser finds --------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head = 0
        self._heads += 1
        self._between = False
        self._wait_for_head()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head = None
        self._stop_waiting()
        super().on_headers_complete()
        if not self.pipeline:
            self._served = self.cycle
        elif self._looking is None:
            self._look_at_client()

    def on_message_complete(self) -> None:
        self._between = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        following = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if following is not None:
            self._served = following

    def send_400_response(self, msg: str) -> None:
        if self._head is not None and self._head > _LARGEST_HEAD:
            self._refuse_head()
        elif self._serves():
            self.transport.close()  # words of ours would land in the middle of an answer
        else:
            self._answer(400, "BadRequest", "this is no HTTP/1.1 request")

    def _count(self, size: int) -> None:
        self._head = (self._head or 0) + size
        if self._head > _LARGEST_HEAD:
            raise _HeadTooLarge

    # -- giving up --------------------------------------------------------------------------------

    def _serves(self) -> bool:
        served = self._served
        return served is not None and not served.response_complete

    def _refuse_head(self) -> None:
        self._stop_waiting()
        if self._serves():
            self.transport.close()
        else:
            words = f"the address and the headers have more than {_LARGEST_HEAD:,} bytes"
            self._answer(431, "HeadTooLarge", words)

    def _answer(self, status: int, error: str, message: str) -> None:
        body = to_json(error_content(error, message))
        self.transport.write(
            STATUS_LINE[status] + b"content-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )
        self.transport.close()

    def _wait_for_head(self) -> None:
        self._stop_waiting()
        self._waiting = self.loop.call_later(self.patience, self._give_up)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self._waiting = None
        if self._serves():
            self._wait_for_head()  # half a head, behind a request that is being served
        else:
            self.transport.close()

    def _look_at_client(self) -> None:
        """While requests wait for another, uvicorn reads nothing, so nobody sees the end of it."""
        self._looking = None
        if not self.pipeline or self.transport.is_closing():
            return
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), _HUNG_UP)
        if any(event & _HUNG_UP for _, event in poll.poll(0)):
            self.transport.abort()
        else:
            self._looking = self.loop.call_later(_LOOK_AGAIN, self._look_at_client)


def patient_for(seconds: float, *, most_connections: int) -> type[HttpToolsProtocol]:
    """The protocol with another patience, for so many connections."""
    limits = {"patience": seconds, "most_connections": most_connections}
    return type("PatientProtocol", (PatientProtocol,), limits)


def quiet_websockets() -> type[asyncio.Protocol] | None:
    """uvicorn's WebSockets, to which a refusal in words is no failure of the app; None: it has no
    library for them."""
    if AutoWebSocketsProtocol is None:
        return None
    base: Any = AutoWebSocketsProtocol

    class QuietWebSockets(base):  # type: ignore[misc]
        async def send(self, message: Any) -> None:
            await super().send(message)
            if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
                self.handshake_complete = True

    return QuietWebSockets
