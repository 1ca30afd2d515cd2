"""All channels of a kernel over one WebSocket."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import zmq
from starlette.websockets import WebSocket, WebSocketDisconnect

from kernelbox.errors import BoxError
from kernelbox.server.errors import Refused, status_of, turn_away
from kernelbox.server.jupyter.kernels import find
from kernelbox.server.jupyter.line import Line
from kernelbox.server.jupyter.wire import V1, BadFrame, Packet, decode, encode
from kernelbox.server.plainrouter import PlainRouter
from kernelbox.server.reception import Reception

router = PlainRouter()

_GOODBYES = (1000, 1005)
"""Closed on purpose: by a program, or by a page that gives no reason. Whoever lost the network, or
was sent away by a proxy, did not choose to leave."""
_LINE = b"kernelbox-line"
"""Says whether a client that comes back is told what it has missed."""
_BROKEN = 1006
_REPLACED = 4000


@router.websocket("/api/kernels/{kernel}/channels")
async def channels(socket: WebSocket, kernel: str) -> None:
    """Who comes back with the same ``session_id`` is told what it has missed."""
    reception: Reception = socket.app.state.reception
    session = socket.query_params.get("session_id", "")[:200]
    try:
        record = await find(socket, kernel)
        owner = reception.guest(socket).tenant
        line = await reception.lines.take(record, session or uuid.uuid4().hex, owner=owner)
    except BoxError as error:
        shown = reception.guest(socket).error(error)
        await turn_away(socket, Refused(status_of(error), shown["error"], shown["message"]))
        return
    except FileNotFoundError:
        words = f"the kernel {kernel[:100]!r} has just ended"
        await turn_away(socket, Refused(404, "KernelNotFound", words))
        return
    except (OSError, zmq.ZMQError) as error:
        words = f"the kernel {kernel[:100]!r} cannot be reached now: {error.strerror}"
        hint = "try again; if there are very many connections, raise the limit of open files"
        await turn_away(socket, Refused(503, "TooManyConnections", words, hint=hint))
        return
    code = _BROKEN
    try:
        # Nothing is awaited between taking the line and being its client: it would look abandoned.
        with line.visit() as displaced:
            code = await _talk(socket, line, displaced, limit=reception.server.max_body)
    finally:
        reception.lines.leave(line, for_good=not session, goodbye=code in _GOODBYES)


async def _talk(socket: WebSocket, line: Line, displaced: asyncio.Event, *, limit: int) -> int:
    """Pass messages both ways until one side ends; the code that the client closed with."""
    v1 = V1 in socket.scope.get("subprotocols", ())

    async def tell(packet: Packet) -> None:
        frame = encode(packet, v1=v1)
        if isinstance(frame, str):
            await socket.send_text(frame)
        else:
            await socket.send_bytes(frame)

    kept = b"kept" if line.visits > 1 else b"new"
    await socket.accept(V1 if v1 else None, headers=[(_LINE, kept)])
    listening = asyncio.ensure_future(_listen(socket, line, v1=v1, limit=limit))
    telling = asyncio.ensure_future(line.tell_all(tell, displaced))
    replaced = asyncio.ensure_future(displaced.wait())
    tasks: set[asyncio.Future[Any]] = {listening, telling, replaced}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        # What has just been told counts as told; cancelled here, it would be told again.
        await asyncio.sleep(0)
    finally:
        for task in tasks:
            task.cancel()
        # Until none of them can send any more.
        await asyncio.gather(*tasks, return_exceptions=True)
    if not listening.cancelled() and listening.exception() is None:
        return listening.result()
    if displaced.is_set():
        await _close(socket, _REPLACED, "this session has come back over another connection")
    elif line.ended:
        await _close(socket, 1001, "the kernel has ended")
    return _BROKEN


async def _listen(socket: WebSocket, line: Line, *, v1: bool, limit: int) -> int:
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            code: int = message.get("code") or _BROKEN
            return code
        text = message.get("text")
        data: str | bytes = message["bytes"] if text is None else text
        if limit and len(data) > limit:
            await _close(socket, 1009, f"a message has more than {limit} bytes")
            return _BROKEN
        try:
            packet = decode(data, v1=v1)
        except BadFrame as error:
            await _close(socket, 1003, str(error))
            return 1000
        await line.send(packet)


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    try:
        await socket.close(code, reason.encode()[:120].decode("utf-8", "ignore"))
    except (RuntimeError, WebSocketDisconnect):
        pass  # it was faster
