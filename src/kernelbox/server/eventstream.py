"""Server-sent events: what happens in an execution, as it happens, over plain HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kernelbox.result import Event, ExecutionResult
from kernelbox.server.answers import to_json
from kernelbox.server.errors import failure_content
from kernelbox.server.reception import Guest
from kernelbox.server.running import disconnected

_PATIENCE = 0.25
"""Seconds that a refusal may take and still be a status; a later one is an event."""

HEADERS = {
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # proxies of the nginx kind would collect events
    "x-content-type-options": "nosniff",
}


class EventStream(Response):
    """Sends events until the result, with comments in between so that nobody hangs up."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[Event],
        first: asyncio.Task[Event],
        *,
        guest: Guest,
        opening: Mapping[str, Any],
    ) -> None:
        super().__init__(headers={**HEADERS, "x-execution-id": opening["execution_id"]})
        del self.headers["content-length"]
        self._events = events
        self._next = first
        self._guest = guest
        self._opening = opening

    @classmethod
    async def of(
        cls, events: AsyncIterator[Event], *, guest: Guest, opening: Mapping[str, Any]
    ) -> EventStream:
        """A stream that has begun well: what is refused at once raises here, before any header."""
        first = asyncio.ensure_future(_next_of(events))
        try:
            await asyncio.wait({first}, timeout=_PATIENCE)
            if first.done() and (error := first.exception()) is not None:
                raise error
        except BaseException:
            first.cancel()
            raise
        return cls(events, first, guest=guest, opening=opening)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.ensure_future(disconnected(receive))
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            await _send(send, frame("execution", self._opening))
            await self._pass_on(send, leaving)
        finally:
            leaving.cancel()
            self._next.cancel()
            await asyncio.wait({self._next})
            await self._events.aclose()  # type: ignore[attr-defined]

    async def _pass_on(self, send: Send, leaving: asyncio.Task[None]) -> None:
        silence = self._guest.reception.server.keep_alive
        while True:
            await asyncio.wait(
                {self._next, leaving}, timeout=silence, return_when=asyncio.FIRST_COMPLETED
            )
            if leaving.done():
                return
            if not self._next.done():
                await _send(send, b": still running\n\n")
                continue
            try:
                event = self._next.result()
            except Exception as error:  # noqa: BLE001
                content = failure_content(error, self._guest.error)
                await _send(send, frame("error", content), more=False)
                return
            over = isinstance(event.item, ExecutionResult)
            await _send(send, event_frame(event), more=not over)
            if over:
                return
            self._next = asyncio.ensure_future(_next_of(self._events))


async def _next_of(events: AsyncIterator[Event]) -> Event:
    return await anext(events)


async def _send(send: Send, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


def frame(kind: str, content: object, *, number: int | None = None) -> bytes:
    """One event on the wire."""
    head = b"" if number is None else b"id: %d\n" % number
    return head + b"event: %s\ndata: %s\n\n" % (kind.encode("ascii"), to_json(content))


def event_frame(event: Event) -> bytes:
    item = event.item
    if isinstance(item, ExecutionResult):
        return frame("result", item, number=event.number)
    return frame(item.kind, item, number=event.number)
