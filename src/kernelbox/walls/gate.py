"""The gate: the only way out of a sandbox's network namespace, an HTTP proxy that asks the policy.

It runs outside, and is handed a socket that listens on the sandbox's own loopback. Every target is
decided by name, looked up here, its address decided too, and exactly that address connected to.
What comes from a client is hostile, and is read so that nobody behind us can read it differently:
heads are parsed strictly and written anew, each request has a connection of its own to its server,
and inside CONNECT the TLS hello must name the server that was asked for.

In the order of this file: words (`Limits`, `Denial`), heads and bodies of HTTP, streams, the gate
(`_Gate.visit` → one request after the other → `_forward` or `_tunnel`), and its two doors, `serve`
and `run`. Secrets will come in at two places: `_outgoing`, where the head for a server is written,
and `_tunnel`, which for a bound domain will end TLS after the hello was checked and hand the plain
stream to `_converse`, as if it had come without.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import ipaddress
import json
import logging
import os
import re
import select
import signal
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Any, NoReturn

from kernelbox.walls import clienthello, domains
from kernelbox.walls.domains import BadHost, Host, Policy, Refusal

__all__ = ["Denial", "Limits", "Policy", "Resolve", "environment", "run", "serve", "system_resolve"]

Resolve = Callable[[str, int], Awaitable[list[str]]]
Report = Callable[["Denial"], None]

_log = logging.getLogger(__name__)

_LARGEST_HEAD = 64 * 1024
_PIECE = 64 * 1024
_LONGEST_CHUNK_LINE = 4096
_LONGEST_PHRASE = 300
_LINGER = 2.0
_OUT_OF = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
# A TLS client that hears this says "access denied", where a closed connection says nothing.
_ACCESS_DENIED = b"\x15\x03\x03\x00\x02\x02\x31"


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, but for ``connections``: more of them wait to be let in."""

    connections: int = 128
    connect: float = 10.0
    head: float = 10.0
    hello: float = 5.0
    idle: float = 300.0
    keep_alive: float = 60.0


@dataclass(frozen=True, slots=True)
class Denial:
    """An attempt that was refused. Port 0: it did not say where to."""

    when: float
    host: str
    port: int
    reason: str


def environment(proxy: str = "http://127.0.0.1:3128") -> dict[str, str]:
    """What sends pip, requests, curl, git and npm through the gate; ALL_PROXY must be absent."""
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    around = "localhost,127.0.0.1,::1"
    return {**dict.fromkeys(names, proxy), "no_proxy": around, "NO_PROXY": around}


# Heads.

_Fields = Sequence[tuple[str, str]]

_CHUNKED, _UNTIL_CLOSE = -1, -2  # sizes of bodies that do not say their size

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e\x80-\xff]+) HTTP/1\.([01])")
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
_URL = re.compile(r"http://([^/?#\\]*)([/?][^#]*)?", re.IGNORECASE)
_SIZE = re.compile(r"[0-9]{1,18}")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")

_HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)


class _Answer(Exception):
    """What the client is told instead of a server's answer. ``reason``: and it is a denial."""

    def __init__(
        self, status: int, words: str, *, reason: str = "", host: str = "", port: int = 0
    ) -> None:
        super().__init__(words)
        self.status, self.words, self.reason = status, words, reason
        self.host, self.port = host, port

    def message(self, *, with_body: bool) -> bytes:
        words = _UNPRINTABLE.sub("?", f"kernelbox: {self.words}")
        # Clients in a tunnel's way show the phrase and nothing else ("Tunnel connection failed:
        # 403 ..."), so the words are in it.
        phrase = f"{HTTPStatus(self.status).phrase}: {words}"[:_LONGEST_PHRASE]
        body = f"{words}\n".encode("ascii")
        denied = f"X-KernelBox-Denied: {self.reason}\r\n" if self.reason else ""
        head = (
            f"HTTP/1.1 {self.status} {phrase}\r\nContent-Type: text/plain\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n{denied}\r\n"
        )
        return head.encode("ascii") + (body if with_body else b"")


class _Malformed(ValueError):
    """HTTP that could be read in more than one way."""


class _TooLong(_Malformed):
    """A head without an end."""


class _Cut(Exception):
    """A tunnel that must not go on, after the client was told that it is open."""

    def __init__(self, reason: str, *, alert: bool) -> None:
        super().__init__(reason)
        self.reason, self.alert = reason, alert


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    target: str
    minor: int  # of HTTP/1.x
    fields: _Fields

    def all(self, name: str) -> list[str]:
        return _values(self.fields, name)


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    phrase: str
    fields: _Fields


def _values(fields: _Fields, name: str) -> list[str]:
    return [value for field, value in fields if field.lower() == name]


def _parse_fields(lines: Sequence[bytes]) -> _Fields:
    fields = []
    for line in lines:
        name, colon, value = line.partition(b":")
        # Also refused by this: white space before the colon, and lines that continue another.
        if not colon or not _TOKEN.fullmatch(name):
            raise _Malformed("a header line is not 'Name: value'")
        value = value.strip(b" \t")
        if _CONTROL.search(value):
            raise _Malformed("a header has a control character in it")
        fields.append((name.decode("ascii"), value.decode("latin-1")))
    return fields


def _parse_request(lines: Sequence[bytes]) -> _Request:
    line = _REQUEST_LINE.fullmatch(lines[0]) if lines else None
    if line is None:
        raise _Malformed("the request line is not 'METHOD target HTTP/1.1'")
    method, target = line[1].decode("ascii"), line[2].decode("latin-1")
    return _Request(method, target, int(line[3]), _parse_fields(lines[1:]))


def _parse_response(lines: Sequence[bytes]) -> _Response:
    line = _STATUS_LINE.fullmatch(lines[0]) if lines else None
    if line is None:
        raise _Malformed("the status line is not 'HTTP/1.1 200 OK'")
    return _Response(int(line[1]), (line[2] or b"").decode("latin-1"), _parse_fields(lines[1:]))


def _request_size(request: _Request) -> int:
    """How the body ends, if there is only one opinion on it."""
    lengths, codings = request.all("content-length"), request.all("transfer-encoding")
    if codings:
        if lengths:
            raise _Malformed("it has both Content-Length and Transfer-Encoding")
        if len(codings) > 1 or codings[0].lower() != "chunked" or request.minor == 0:
            raise _Malformed("the only Transfer-Encoding is 'chunked', once, in HTTP/1.1")
        return _CHUNKED
    if len(lengths) > 1:
        raise _Malformed("it has several Content-Length headers")
    if lengths and not _SIZE.fullmatch(lengths[0]):
        raise _Malformed("its Content-Length is no number")
    return int(lengths[0]) if lengths else 0


def _response_size(response: _Response, method: str) -> int:
    if method == "HEAD" or response.status in (204, 304):
        return 0
    if codings := _values(response.fields, "transfer-encoding"):
        if len(codings) > 1 or codings[0].lower() != "chunked":
            raise _Malformed("its Transfer-Encoding is not 'chunked'")
        return _CHUNKED
    lengths = set(_values(response.fields, "content-length"))
    if not lengths:
        return _UNTIL_CLOSE
    length = lengths.pop()
    if lengths or not _SIZE.fullmatch(length):
        raise _Malformed("its Content-Length is not one number")
    return int(length)


def _end_to_end(fields: _Fields, *, without: frozenset[str] = frozenset()) -> _Fields:
    """The fields that are for whoever is at the other end, not for us."""
    named = {
        name.strip().lower() for value in _values(fields, "connection") for name in value.split(",")
    }
    drop = _HOP_BY_HOP | named | without
    return [(name, value) for name, value in fields if name.lower() not in drop]


def _wants_websocket(request: _Request) -> bool:
    """The one upgrade that is carried; others (HTTP/2) are left out, as a server may do too."""
    tokens = {name.strip().lower() for v in request.all("connection") for name in v.split(",")}
    upgrades = [value.lower() for value in request.all("upgrade")]
    return "upgrade" in tokens and upgrades == ["websocket"] and request.method == "GET"


def _write_head(first: str, fields: _Fields) -> bytes:
    lines = (first, *(f"{name}: {value}" for name, value in fields), "", "")
    return "\r\n".join(lines).encode("latin-1")


def _chunk(data: bytes) -> bytes:
    """Empty: the last one."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _outgoing(request: _Request, *, host: Host, port: int, path: str, size: int) -> bytes:
    """The head as the server gets it, Host and the body's length of our own making."""
    fields: list[tuple[str, str]] = [
        ("Host", host.with_port(port).removesuffix(":80")),
        *_end_to_end(request.fields, without=frozenset({"host", "content-length"})),
    ]
    if size == _CHUNKED:
        fields.append(("Transfer-Encoding", "chunked"))
    elif size or request.all("content-length"):
        fields.append(("Content-Length", str(size)))
    if _wants_websocket(request):
        fields += [("Connection", "Upgrade"), ("Upgrade", "websocket")]
    else:
        fields.append(("Connection", "close"))
    return _write_head(f"{request.method} {path} HTTP/1.1", fields)


# Streams.


class _Protocol(asyncio.StreamReaderProtocol):
    """As asyncio's, but what has arrived can be read after the connection has failed: a server that
    refuses an upload says so and resets."""

    failure: Exception | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.failure = exc
        super().connection_lost(None)


class _Stream:
    """One side of a conversation: asyncio's reader and writer, with back-pressure always on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.reader = asyncio.StreamReader(limit=_LARGEST_HEAD, loop=self._loop)
        self._protocol = _Protocol(self.reader, loop=self._loop)
        self.answered = False  # whether a server's answer to the last request is on its way

    @classmethod
    async def accept(cls, connection: socket.socket) -> _Stream:
        stream = cls()
        return stream._over(
            await stream._loop.connect_accepted_socket(lambda: stream._protocol, connection)
        )

    @classmethod
    async def connect(cls, address: str, port: int) -> _Stream:
        stream = cls()
        # An address, so nothing is looked up a second time.
        return stream._over(
            await stream._loop.create_connection(lambda: stream._protocol, address, port)
        )

    def _over(self, made: tuple[asyncio.Transport, asyncio.BaseProtocol]) -> _Stream:
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
        self._writer.transport.set_write_buffer_limits(high=0)
        await self._writer.drain()
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    async def read_line(self, longest: int = _LARGEST_HEAD) -> bytes:
        try:
            line = await self.reader.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            raise _TooLong("a line has no end") from None
        if len(line) > longest:
            raise _TooLong("a line is too long")
        if not line.endswith(b"\r\n") or b"\r" in line[:-2]:
            raise _Malformed("a line ends in something else than CR LF")
        return line[:-2]

    async def read_head(self, first: bytes = b"") -> list[bytes]:
        """Its lines. ``first``: a byte that was read already."""
        if first in (b"\r", b"\n"):
            raise _Malformed("it starts with an empty line")
        lines: list[bytes] = []
        room = _LARGEST_HEAD
        while line := first + await self.read_line():
            first = b""
            lines.append(line)
            room -= len(line) + 2
            if room < 0:
                raise _TooLong("the head is too long")
        return lines

    async def read_body(self, size: int, put: Callable[[bytes], Awaitable[None]]) -> None:
        """Hand a body on, piece by piece."""
        if size == _UNTIL_CLOSE:
            while piece := await self.reader.read(_PIECE):
                await put(piece)
            self.check()
        elif size != _CHUNKED:
            await self._read_exactly(size, put)
        else:
            while length := await self._read_chunk_size():
                await self._read_exactly(length, put)
                if await self.read_line(2):
                    raise _Malformed("a chunk is longer than it says")
            await self.read_head()  # what follows the last chunk may be dropped, says the standard

    async def _read_exactly(self, size: int, put: Callable[[bytes], Awaitable[None]]) -> None:
        while size:
            piece = await self.reader.read(min(size, _PIECE))
            if not piece:
                raise asyncio.IncompleteReadError(b"", size)
            size -= len(piece)
            await put(piece)

    async def _read_chunk_size(self) -> int:
        size = _CHUNK_SIZE.fullmatch(await self.read_line(_LONGEST_CHUNK_LINE))
        if size is None:
            raise _Malformed("the size of a chunk is no number")
        return int(size[1], 16)

    async def linger(self) -> None:
        """Let the other side read our last words: closing on what it still sends would reset the
        connection, and they would be lost."""
        await self.send_end()
        with contextlib.suppress(OSError):  # a time-out is one
            async with asyncio.timeout(_LINGER):
                while await self.reader.read(_PIECE):
                    pass

    async def close(self) -> None:
        """At once; what matters has been given to the kernel by `send_end`."""
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class _Stillness:
    """Ends what it surrounds with a TimeoutError when nothing has moved for a while."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)
        self._last = self._loop.time()

    def moved(self) -> None:
        self._last = self._loop.time()

    async def __aenter__(self) -> _Stillness:
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


# The gate.


async def system_resolve(name: str, port: int) -> list[str]:
    """The addresses of a name, as this machine sees it."""
    # In bytes, because text would be put through Python's own idea of Unicode names once more.
    found = await asyncio.get_running_loop().getaddrinfo(
        name.encode("ascii"), port, type=socket.SOCK_STREAM
    )
    return [str(where[0]) for *_, where in found]


def _is_this_machine(address: str) -> bool:
    """Whether the kernel would deliver to ourselves: a public address of this machine is a way to
    services that no firewall in front of it guards. Asked of the routing table."""
    packed = ipaddress.ip_address(address).packed
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    getroute, newroute, request, local, destination = 26, 24, 1, 2, 1
    question = struct.pack("=8BI", family, 8 * len(packed), *[0] * 6, 0)
    question += struct.pack("=HH", 4 + len(packed), destination) + packed
    header = struct.pack("=IHHII", 16 + len(question), getroute, request, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as kernel:
        kernel.send(header + question)
        answer = kernel.recv(4096)  # always at hand when send returns
    (kind,) = struct.unpack_from("=H", answer, 4)
    return kind == newroute and answer[16 + 7] == local


class _Gate:
    def __init__(self, policy: Policy, report: Report, resolve: Resolve, limits: Limits) -> None:
        self._policy, self._report = policy, report
        self._resolve, self._limits = resolve, limits

    async def visit(self, connection: socket.socket) -> None:
        """All that one client asks, until it or we have had enough."""
        try:
            client = await _Stream.accept(connection)
        except OSError:
            return
        try:
            await self._converse(client)
            async with asyncio.timeout(self._limits.idle):
                await client.linger()
        except (OSError, asyncio.IncompleteReadError, _Malformed):
            pass  # one side went away, or a server's answer broke in the middle
        except Exception:  # noqa: BLE001 - never silent, and never the end of other visits
            _log.exception("the gate failed at a visit")
            self._deny("", 0, "internal-error")
        finally:
            await client.close()

    async def _converse(self, client: _Stream) -> None:
        """Requests, one after the other."""
        keep = True
        while keep:
            try:
                async with asyncio.timeout(self._limits.keep_alive):
                    first = await client.reader.read(1)
            except TimeoutError:
                return
            if not first:
                return
            method = ""
            try:
                request = await self._read_request(client, first)
                method = request.method
                if method == "CONNECT":
                    await self._tunnel(client, request)
                    return
                keep = await self._forward(client, request)
            except _Answer as answer:
                if answer.reason:
                    self._deny(answer.host, answer.port, answer.reason)
                await client.send(answer.message(with_body=method != "HEAD"))
                return

    async def _read_request(self, client: _Stream, first: bytes) -> _Request:
        try:
            async with asyncio.timeout(self._limits.head):
                lines = await client.read_head(first)
            return _parse_request(lines)
        except TimeoutError:
            raise _Answer(408, "the request's head took too long") from None
        except _TooLong:
            raise _Answer(431, f"the request's head is over {_LARGEST_HEAD} bytes") from None
        except _Malformed as error:
            raise _bad_request(str(error)) from None

    # Plain HTTP.

    async def _forward(self, client: _Stream, request: _Request) -> bool:
        """One request to its server, one answer back. True: the client may ask again."""
        host, port, path = _target(request)
        try:
            size = _request_size(request)
        except _Malformed as error:
            raise _bad_request(str(error), host=host, port=port) from None
        server = await self._reach(host, port)
        client.answered = False
        upload: asyncio.Task[bool] | None = None
        try:
            async with _Stillness(self._limits.idle) as stillness:
                head = _outgoing(request, host=host, port=port, path=path, size=size)
                await server.send(head)
                upload = asyncio.create_task(_upload(client, server, size, stillness))
                return await self._answer(client, server, request, upload, stillness)
        except (_Unanswered, OSError) as error:
            if client.answered:
                raise
            where, late = host.with_port(port), isinstance(error, TimeoutError)
            words = f"nothing moved for {self._limits.idle:g} s" if late else str(error)
            raise _Answer(504 if late else 502, f"{where} did not answer: {words}") from None
        finally:
            if upload is not None:
                upload.cancel()
                await asyncio.gather(upload, return_exceptions=True)
            await server.close()

    async def _answer(
        self,
        client: _Stream,
        server: _Stream,
        request: _Request,
        upload: asyncio.Task[bool],
        stillness: _Stillness,
    ) -> bool:
        while True:
            response = await _first_of(upload, _read_response(server))
            if response.status == 101 and _wants_websocket(request) and _complete(upload):
                fields = _end_to_end(response.fields, without=frozenset({"content-length"}))
                fields = [*fields, ("Connection", "Upgrade"), ("Upgrade", "websocket")]
                client.answered = True
                await client.send(_write_head("HTTP/1.1 101 Switching Protocols", fields))
                await _join(client, server, stillness)
                return False
            if response.status == 101:
                raise _Unanswered("it switched to a protocol nobody asked for")
            if response.status >= 200:
                break
            # "100 Continue" is what a client that sent "Expect" waits for before its body.
            if request.minor == 1:
                first = f"HTTP/1.1 {response.status} {response.phrase}"
                await client.send(_write_head(first, _end_to_end(response.fields)))
        try:
            size = _response_size(response, request.method)
        except _Malformed as error:
            raise _Unanswered(str(error)) from None
        # An answer before the end of the question: the rest of that is not the next request.
        keep = request.minor == 1 and _complete(upload) and size != _UNTIL_CLOSE
        keep = keep and "close" not in ",".join(request.all("connection")).lower()
        chunked = size == _CHUNKED and request.minor == 1  # before that, the close is the end
        without = frozenset({"content-length"}) if size == _CHUNKED else frozenset[str]()
        fields = [*_end_to_end(response.fields, without=without)]
        if chunked:
            fields.append(("Transfer-Encoding", "chunked"))
        fields.append(("Connection", "keep-alive" if keep else "close"))
        client.answered = True
        await client.send(_write_head(f"HTTP/1.1 {response.status} {response.phrase}", fields))

        async def put(piece: bytes) -> None:
            stillness.moved()
            await client.send(_chunk(piece) if chunked else piece)

        await server.read_body(size, put)
        if chunked:
            await client.send(_chunk(b""))
        return keep

    # CONNECT.

    async def _tunnel(self, client: _Stream, request: _Request) -> None:
        host, port = _connect_target(request)
        server = await self._reach(host, port)
        try:
            await client.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
            try:
                opening = await self._read_opening(client, host)
            except _Cut as cut:
                self._deny(host.text, port, cut.reason)
                if cut.alert:
                    await client.send(_ACCESS_DENIED)
                return
            with contextlib.suppress(TimeoutError):
                async with _Stillness(self._limits.idle) as stillness:
                    await server.send(opening)
                    await _join(client, server, stillness)
        finally:
            await server.close()

    async def _read_opening(self, client: _Stream, host: Host) -> bytes:
        """What the client says first, once it is known that it speaks to ``host``."""
        if self._policy.everything:
            return b""
        data = bytearray()
        try:
            async with asyncio.timeout(self._limits.hello):
                while (hello := clienthello.parse(data)) is None:
                    if len(data) >= clienthello.LIMIT:
                        raise _Cut("not-tls", alert=False)
                    more = await client.reader.read(clienthello.LIMIT - len(data))
                    if not more:
                        raise _Cut("not-tls", alert=False)
                    data += more
        except (TimeoutError, clienthello.NotAClientHello):
            raise _Cut("not-tls", alert=False) from None
        if hello.encrypted:
            raise _Cut("ech", alert=True)
        if hello.server_name is None:
            raise _Cut("sni-missing", alert=True)
        if hello.server_name != host.text:
            raise _Cut("sni-mismatch", alert=True)
        return bytes(data)

    # Decisions.

    async def _reach(self, host: Host, port: int) -> _Stream:
        """A connection to the target, if the policy has nothing against it."""
        _refuse(domains.decide(self._policy, host, port), host, port)
        where = host.with_port(port)
        try:
            async with asyncio.timeout(self._limits.connect):
                return await self._connect(host, port)
        except TimeoutError:
            seconds = self._limits.connect
            raise _Answer(504, f"{where} did not answer within {seconds:g} s") from None
        except (OSError, UnicodeError) as error:
            raise _Answer(502, f"no connection to {where}: {error}") from None

    async def _connect(self, host: Host, port: int) -> _Stream:
        addresses = [host.text] if host.literal else await self._resolve(host.text, port)
        if not addresses:
            raise OSError("the name has no address")
        good = domains.vet(self._policy, host, addresses)
        if isinstance(good, list) and not self._policy.private:
            good = [address for address in good if not _is_this_machine(address)] or Refusal(
                "address-not-public",
                f"{host.text} is this machine, whose services are closed to sandboxes",
            )
        if isinstance(good, Refusal):
            raise _refused(good, host, port)
        failure = OSError("no address could be reached")
        for position, address in enumerate(good):
            # A dead address must not take the time of those after it.
            patience = self._limits.connect / (len(good) - position + 1)
            try:
                async with asyncio.timeout(patience if position + 1 < len(good) else None):
                    return await _Stream.connect(address, port)
            except OSError as error:
                failure = error
        raise failure

    def _deny(self, host: str, port: int, reason: str) -> None:
        try:
            self._report(Denial(time.time(), host, port, reason))
        except Exception:  # noqa: BLE001 - a refusal stays one, whoever cannot hear of it
            _log.exception("a denial could not be reported")


class _Unanswered(Exception):
    """The server gave no answer that could be passed on; the client has heard nothing yet."""


class _Unwanted(Exception):
    """The server closed before it had all of the request; it may still say why."""


def _bad_request(words: str, *, host: Host | None = None, port: int = 0) -> _Answer:
    name = host.text if host else ""
    words = f"this request could be read in two ways, or in none: {words}"
    return _Answer(400, words, reason="bad-request", host=name, port=port)


def _refused(refusal: Refusal, host: Host, port: int) -> _Answer:
    return _Answer(403, refusal.words, reason=refusal.reason, host=host.text, port=port)


def _refuse(refusal: Refusal | None, host: Host, port: int) -> None:
    if refusal is not None:
        raise _refused(refusal, host, port)


def _authority(text: str, default_port: int | None) -> tuple[Host, int]:
    try:
        decoded = text.encode("latin-1").decode("utf-8")
        return domains.parse_authority(decoded, default_port=default_port)
    except (BadHost, UnicodeDecodeError) as error:
        words = str(error) if isinstance(error, BadHost) else "the host is not UTF-8"
        shown = text[:255].encode("ascii", "backslashreplace").decode("ascii")
        raise _Answer(403, words, reason="bad-host", host=shown) from None


def _check_host_field(request: _Request, host: Host, port: int) -> None:
    """The target and the Host header say the same, or one of them is there to deceive."""
    values = request.all("host")
    if len(values) != 1 and (values or request.minor == 1):
        words = "it must have one Host header"
        raise _bad_request(words, host=host, port=port)
    # Behind CONNECT many leave the port out.
    default = port if request.method == "CONNECT" else 80
    if values and _authority(values[0], default) != (host, port):
        words = "its Host header names another host than its target"
        raise _Answer(403, words, reason="host-mismatch", host=host.text, port=port)


def _target(request: _Request) -> tuple[Host, int, str]:
    url = _URL.fullmatch(request.target)
    if url is None:
        words = "this is a proxy: it takes 'GET http://host/path' and 'CONNECT host:443'"
        if request.target.lower().startswith("https://"):
            words += "; https goes through CONNECT"
        raise _Answer(400, words, reason="bad-request")
    host, port = _authority(url[1], 80)
    _check_host_field(request, host, port)
    path = url[2] or "/"
    if request.method == "OPTIONS" and url[2] is None:
        path = "*"
    return host, port, path if path[0] in "/*" else f"/{path}"


def _connect_target(request: _Request) -> tuple[Host, int]:
    host, port = _authority(request.target, None)
    if request.all("host"):  # nothing is sent on that it could contradict
        _check_host_field(request, host, port)
    if request.all("content-length") or request.all("transfer-encoding"):
        raise _bad_request("CONNECT has no body", host=host, port=port)
    return host, port


async def _read_response(server: _Stream) -> _Response:
    try:
        return _parse_response(await server.read_head())
    except (OSError, asyncio.IncompleteReadError):
        raise _Unanswered("it closed the connection") from None
    except _Malformed as error:
        raise _Unanswered(str(error)) from None


async def _first_of(upload: asyncio.Task[bool], answer: Awaitable[_Response]) -> _Response:
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


async def _upload(client: _Stream, server: _Stream, size: int, stillness: _Stillness) -> bool:
    """The request's body. False: the server did not want all of it."""

    async def send(data: bytes) -> None:
        stillness.moved()
        try:
            await server.send(data)
        except OSError:
            raise _Unwanted from None

    async def send_chunk(data: bytes) -> None:
        await send(_chunk(data))

    try:
        if size == _CHUNKED:
            await client.read_body(size, send_chunk)
            await send(_chunk(b""))
        else:
            await client.read_body(size, send)
    except _Unwanted:
        return False
    except _Malformed as error:
        raise _bad_request(str(error)) from None
    return True


def _complete(upload: asyncio.Task[bool]) -> bool:
    return upload.done() and upload.exception() is None and upload.result()


async def _join(client: _Stream, server: _Stream, stillness: _Stillness) -> None:
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


async def _pump(source: _Stream, sink: _Stream, stillness: _Stillness) -> None:
    while piece := await source.reader.read(_PIECE):
        stillness.moved()
        await sink.send(piece)
    source.check()
    await sink.send_end()


# The doors.


async def serve(
    listener: socket.socket,
    policy: Policy,
    report: Report,
    *,
    resolve: Resolve = system_resolve,
    limits: Limits | None = None,
) -> None:
    """Let visitors through until cancelled; then every connection is closed, and the listener."""
    limits = limits or Limits()
    gate = _Gate(policy, report, resolve, limits)
    loop = asyncio.get_running_loop()
    room = asyncio.Semaphore(limits.connections)
    visits: set[asyncio.Task[None]] = set()

    def left(visit: asyncio.Task[None], connection: socket.socket) -> None:
        connection.close()  # also of a visit that was cancelled before it began
        visits.discard(visit)
        room.release()
        if not visit.cancelled() and (error := visit.exception()):
            _log.error("a visit ended badly", exc_info=error)

    listener.setblocking(False)
    try:
        while True:
            # Those who find no room wait in the kernel's queue, and take none of our descriptors.
            await room.acquire()
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                room.release()
                if error.errno in _OUT_OF:
                    await asyncio.sleep(0.1)
                elif error.errno in (errno.EBADF, errno.EINVAL, errno.ENOTSOCK):
                    raise  # the listener is none; anything else was only that client's
                continue
            visit = asyncio.create_task(gate.visit(connection))
            visits.add(visit)
            visit.add_done_callback(functools.partial(left, connection=connection))
    finally:
        listener.close()
        for visit in visits:
            visit.cancel()
        await asyncio.gather(*visits, return_exceptions=True)


def run(listener: socket.socket, policy_wire: Mapping[str, Any], report_fd: int) -> NoReturn:
    """Be the gate, in a process of its own, until SIGTERM or until nobody reads ``report_fd``.

    Each denial is a line of JSON there: when, host, port, reason, and "lost" if lines before it
    found the pipe full.
    """
    status = 1
    try:
        policy = Policy.from_wire(policy_wire)
        loop = asyncio.new_event_loop()
        loop.run_until_complete(_run(listener, policy, report_fd))
        status = 0
    except Exception:  # noqa: BLE001 - the exit status says that there was one
        _log.exception("the gate ended")
    finally:
        # Not by the interpreter's own end, which would wait for a name server that hangs.
        os._exit(status)


async def _run(listener: socket.socket, policy: Policy, report_fd: int) -> None:
    loop = asyncio.get_running_loop()
    serving = asyncio.ensure_future(serve(listener, policy, _Reporter(report_fd).report))
    loop.add_signal_handler(signal.SIGTERM, serving.cancel)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for whoever shares our terminal

    def look() -> None:
        # The near end of a pipe becomes "readable" when the far end is closed.
        ended = select.poll()
        ended.register(report_fd, 0)
        if ended.poll(0):
            serving.cancel()
        loop.remove_reader(report_fd)

    with contextlib.suppress(PermissionError):  # a file, which nobody closes
        loop.add_reader(report_fd, look)
    with contextlib.suppress(asyncio.CancelledError):
        await serving


class _Reporter:
    """Writes denials to a descriptor, and never waits for who reads it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lost = 0
        os.set_blocking(fd, False)

    def report(self, denial: Denial) -> None:
        # Far below PIPE_BUF, so that it is written whole or not at all.
        wire = asdict(denial) | ({"lost": self._lost} if self._lost else {})
        try:
            os.write(self._fd, json.dumps(wire).encode() + b"\n")
            self._lost = 0
        except BlockingIOError:
            self._lost += 1
