"""One request and its answer, carried between a client and the server it asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from kernelbox.walls.heads import (
    CHUNKED,
    UNTIL_CLOSE,
    Malformed,
    Request,
    Response,
    chunk,
    end_to_end,
    parse_response,
    response_size,
    wants_websocket,
    write_head,
)
from kernelbox.walls.streams import Stillness, Stream, join
from kernelbox.walls.targets import bad_request


class Unanswered(Exception):
    """The server gave no answer that could be passed on; the client has heard nothing yet."""


class _Unwanted(Exception):
    """The server closed before it had all of the request; it may still say why."""


async def answer(
    client: Stream,
    server: Stream,
    request: Request,
    upload: asyncio.Task[bool],
    stillness: Stillness,
) -> bool:
    """The server's, on to the client. True: the client may ask again."""
    while True:
        response = await _first_of(upload, _read_response(server))
        if response.status == 101 and wants_websocket(request) and _complete(upload):
            fields = end_to_end(response.fields, without=frozenset({"content-length"}))
            fields = [*fields, ("Connection", "Upgrade"), ("Upgrade", "websocket")]
            client.answered = True
            await client.send(write_head("HTTP/1.1 101 Switching Protocols", fields))
            await join(client, server, stillness)
            return False
        if response.status == 101:
            raise Unanswered("it switched to a protocol nobody asked for")
        if response.status >= 200:
            break
        # "100 Continue" is what a client that sent "Expect" waits for before its body.
        if request.minor == 1:
            first = f"HTTP/1.1 {response.status} {response.phrase}"
            await client.send(write_head(first, end_to_end(response.fields)))
    try:
        size = response_size(response, request.method)
    except Malformed as error:
        raise Unanswered(str(error)) from None
    # An answer before the end of the question: the rest of that is not the next request.
    keep = request.minor == 1 and _complete(upload) and size != UNTIL_CLOSE
    keep = keep and "close" not in ",".join(request.all("connection")).lower()
    chunked = size == CHUNKED and request.minor == 1  # before that, the close is the end
    without = frozenset({"content-length"}) if size == CHUNKED else frozenset[str]()
    fields = [*end_to_end(response.fields, without=without)]
    if chunked:
        fields.append(("Transfer-Encoding", "chunked"))
    fields.append(("Connection", "keep-alive" if keep else "close"))
    client.answered = True
    await client.send(write_head(f"HTTP/1.1 {response.status} {response.phrase}", fields))

    async def put(piece: bytes) -> None:
        stillness.moved()
        await client.send(chunk(piece) if chunked else piece)

    await server.read_body(size, put)
    if chunked:
        await client.send(chunk(b""))
    return keep


async def _read_response(server: Stream) -> Response:
    try:
        return parse_response(await server.read_head())
    except (OSError, asyncio.IncompleteReadError):
        raise Unanswered("it closed the connection") from None
    except Malformed as error:
        raise Unanswered(str(error)) from None


async def _first_of(upload: asyncio.Task[bool], answer: Awaitable[Response]) -> Response:
    """The answer; or, if it fails first, what went wrong with the question."""
    reading = asyncio.ensure_future(answer)
    try:
        await asyncio.wait({upload, reading}, return_when=asyncio.FIRST_COMPLETED)
        if upload.done() and not reading.done():
            upload.result()
        return await reading
    finally:
        if not reading.done():
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


async def upload_body(client: Stream, server: Stream, size: int, stillness: Stillness) -> bool:
    """The request's body. False: the server did not want all of it."""

    async def send(data: bytes) -> None:
        stillness.moved()
        try:
            await server.send(data)
        except OSError:
            raise _Unwanted from None

    async def send_chunk(data: bytes) -> None:
        await send(chunk(data))

    try:
        if size == CHUNKED:
            await client.read_body(size, send_chunk)
            await send(chunk(b""))
        else:
            await client.read_body(size, send)
    except _Unwanted:
        return False
    except Malformed as error:
        raise bad_request(str(error)) from None
    return True


def _complete(upload: asyncio.Task[bool]) -> bool:
    return upload.done() and upload.exception() is None and upload.result()
