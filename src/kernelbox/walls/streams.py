"""Streams of the gate: one side of a conversation each, read with limits and with back-pressure."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from types import TracebackType

from kernelbox.walls.heads import CHUNK_SIZE, CHUNKED, UNTIL_CLOSE, Malformed, TooLong

LARGEST_HEAD = 64 * 1024
_PIECE = 64 * 1024
_LONGEST_CHUNK_LINE = 4096
_LINGER = 2.0


class _Protocol(asyncio.StreamReaderProtocol):
    """As asyncio's, but what has arrived can be read after the connection has failed: a server that
    refuses an upload says so and resets."""

    failure: Exception | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.failure = exc
        super().connection_lost(None)


class Stream:
    """One side of a conversation: asyncio's reader and writer, with back-pressure always on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.reader = asyncio.StreamReader(limit=LARGEST_HEAD, loop=self._loop)
        self._protocol = _Protocol(self.reader, loop=self._loop)
        self.answered = False  # whether a server's answer to the last request is on its way

    @classmethod
    async def accept(
        cls, connection: socket.socket, tls: ssl.SSLContext | None = None, *, patience: float = 0
    ) -> Stream:
        """``tls``: and end it here, within ``patience``."""
        stream = cls()
        return stream._over(
            await stream._loop.connect_accepted_socket(
                lambda: stream._protocol,
                connection,
                ssl=tls,
                ssl_handshake_timeout=patience if tls else None,
                ssl_shutdown_timeout=_LINGER if tls else None,
            )
        )

    @classmethod
    async def connect(
        cls, address: str, port: int, tls: ssl.SSLContext | None = None, *, name: str | None = None
    ) -> Stream:
        """``tls``: and begin it, with the server of that ``name`` and nobody else."""
        stream = cls()
        # An address, so nothing is looked up a second time.
        return stream._over(
            await stream._loop.create_connection(
                lambda: stream._protocol,
                address,
                port,
                ssl=tls,
                server_hostname=name if tls else None,
            )
        )

    def _over(self, made: tuple[asyncio.Transport, asyncio.BaseProtocol]) -> Stream:
        self._writer = asyncio.StreamWriter(made[0], self._protocol, self.reader, self._loop)
        return self

    def check(self) -> None:
        """At an end: whether it was one, and not a failure."""
        if self._protocol.failure is not None:
            raise self._protocol.failure

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def send_end(self) -> None:
        """We have said all, and still listen. Back when all of it is with the kernel."""
        if not self._writer.can_write_eof():
            self._writer.close()  # TLS has no half of an end; what is to be sent is sent first
            return
        self._writer.transport.set_write_buffer_limits(high=0)
        await self._writer.drain()
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    async def read_line(self, longest: int = LARGEST_HEAD) -> bytes:
        try:
            line = await self.reader.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            raise TooLong("a line has no end") from None
        if len(line) > longest:
            raise TooLong("a line is too long")
        if not line.endswith(b"\r\n") or b"\r" in line[:-2]:
            raise Malformed("a line ends in something else than CR LF")
        return line[:-2]

    async def read_head(self, first: bytes = b"") -> list[bytes]:
        """Its lines. ``first``: a byte that was read already."""
        if first in (b"\r", b"\n"):
            raise Malformed("it starts with an empty line")
        lines: list[bytes] = []
        room = LARGEST_HEAD
        while line := first + await self.read_line():
            first = b""
            lines.append(line)
            room -= len(line) + 2
            if room < 0:
                raise TooLong("the head is too long")
        return lines

    async def read_body(self, size: int, put: Callable[[bytes], Awaitable[None]]) -> None:
        """Hand a body on, piece by piece."""
        if size == UNTIL_CLOSE:
            while piece := await self.reader.read(_PIECE):
                await put(piece)
            self.check()
        elif size != CHUNKED:
            await self._read_exactly(size, put)
        else:
            while length := await self._read_chunk_size():
                await self._read_exactly(length, put)
                if await self.read_line(2):
                    raise Malformed("a chunk is longer than it says")
            await self.read_head()  # what follows the last chunk may be dropped, says the standard

    async def _read_exactly(self, size: int, put: Callable[[bytes], Awaitable[None]]) -> None:
        while size:
            piece = await self.reader.read(min(size, _PIECE))
            if not piece:
                raise asyncio.IncompleteReadError(b"", size)
            size -= len(piece)
            await put(piece)

    async def _read_chunk_size(self) -> int:
        size = CHUNK_SIZE.fullmatch(await self.read_line(_LONGEST_CHUNK_LINE))
        if size is None:
            raise Malformed("the size of a chunk is no number")
        return int(size[1], 16)

    async def linger(self) -> None:
        """Let the other side read our last words: closing on what it still sends would reset the
        connection, and they would be lost."""
        await self.send_end()
        with contextlib.suppress(OSError):  # a time-out is one
            async with asyncio.timeout(_LINGER):
                while await self.reader.read(_PIECE):
                    pass

    async def say_goodbye(self) -> None:
        """The end of TLS, said so that the other side knows that nobody has cut it off."""
        self._writer.close()
        with contextlib.suppress(OSError):
            async with asyncio.timeout(2 * _LINGER):
                await self._writer.wait_closed()

    async def close(self) -> None:
        """At once; what matters has been given to the kernel by `send_end`."""
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class Stillness:
    """Ends what it surrounds with a TimeoutError when nothing has moved for a while."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)
        self._last = self._loop.time()

    def moved(self) -> None:
        self._last = self._loop.time()

    async def __aenter__(self) -> Stillness:
        await self._timeout.__aenter__()
        self._timer = self._loop.call_later(self._seconds, self._look)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    def _look(self) -> None:
        # Not a deadline moved with each piece: that fails when it has just been reached.
        left = self._last + self._seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._timeout.reschedule(self._loop.time())


async def join(client: Stream, server: Stream, stillness: Stillness) -> None:
    """Carry bytes both ways until both sides have ended, or one is broken."""
    ways = [
        asyncio.create_task(_pump(client, server, stillness)),
        asyncio.create_task(_pump(server, client, stillness)),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for way in ways:
            way.cancel()
        ended = await asyncio.gather(*ways, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error


async def _pump(source: Stream, sink: Stream, stillness: Stillness) -> None:
    while piece := await source.reader.read(_PIECE):
        stillness.moved()
        await sink.send(piece)
    source.check()
    await sink.send_end()
