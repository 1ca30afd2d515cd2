"""The visits of clients to the gate: their requests, one after the other, each to its server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from kernelbox.walls import clienthello, vault
from kernelbox.walls.domains import Host, Policy
from kernelbox.walls.exchange import Unanswered, answer, upload_body
from kernelbox.walls.heads import Malformed, Request, TooLong, outgoing, parse_request, request_size
from kernelbox.walls.reach import Reach, Resolve
from kernelbox.walls.streams import LARGEST_HEAD, Stillness, Stream, join
from kernelbox.walls.targets import Answer, bad_request, connect_target, target, target_within
from kernelbox.walls.vault import Binding, Vault

Report = Callable[["Denial"], None]

_log = logging.getLogger(__name__)

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


class Cut(Exception):
    """A tunnel that must not go on, after the client was told that it is open."""

    def __init__(self, reason: str, *, alert: bool) -> None:
        super().__init__(reason)
        self.reason, self.alert = reason, alert


@dataclass(frozen=True, slots=True)
class _Within:
    """The inside of a client's TLS, ended by us: every request is for this one server."""

    host: Host
    port: int
    bindings: tuple[Binding, ...]
    tls: ssl.SSLContext


class Visits:
    def __init__(
        self,
        policy: Policy,
        report: Report,
        resolve: Resolve,
        limits: Limits,
        secrets: Vault | None = None,
    ) -> None:
        self._policy, self._report, self._limits = policy, report, limits
        self._secrets = secrets
        self._reach = Reach(policy, resolve, patience=limits.connect)

    async def visit(self, connection: socket.socket) -> None:
        """All that one client asks, until it or we have had enough."""
        try:
            client = await Stream.accept(connection)
        except OSError:
            return
        try:
            await self._converse(client)
            async with asyncio.timeout(self._limits.idle):
                await client.linger()
        except (OSError, asyncio.IncompleteReadError, Malformed):
            pass  # one side went away, or a server's answer broke in the middle
        except Exception:  # noqa: BLE001 - never silent, and never the end of other visits
            _log.exception("the gate failed at a visit")
            self._deny("", 0, "internal-error")
        finally:
            await client.close()

    async def _converse(self, client: Stream, within: _Within | None = None) -> None:
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
                if method == "CONNECT" and within is None:
                    await self._tunnel(client, request)
                    return
                keep = await self._forward(client, request, within)
            except Answer as no:
                if no.reason:
                    self._deny(no.host, no.port, no.reason)
                await client.send(no.message(with_body=method != "HEAD"))
                return

    async def _read_request(self, client: Stream, first: bytes) -> Request:
        try:
            async with asyncio.timeout(self._limits.head):
                lines = await client.read_head(first)
            return parse_request(lines)
        except TimeoutError:
            raise Answer(408, "the request's head took too long") from None
        except TooLong:
            raise Answer(431, f"the request's head is over {LARGEST_HEAD} bytes") from None
        except Malformed as error:
            raise bad_request(str(error)) from None

    # Plain HTTP.

    async def _forward(self, client: Stream, request: Request, within: _Within | None) -> bool:
        """One request to its server, one answer back. True: the client may ask again."""
        if within is None:
            host, port, path = target(request)
        else:
            host, port = within.host, within.port
            path = target_within(request, host, port)
        try:
            size = request_size(request)
        except Malformed as error:
            raise bad_request(str(error), host=host, port=port) from None
        server = await self._reach.to(host, port, within.tls if within else None)
        client.answered = False
        upload: asyncio.Task[bool] | None = None
        try:
            async with Stillness(self._limits.idle) as stillness:
                # What is bound goes out under TLS, to a server that has proved who it is.
                told = request if within is None else _with_secrets(request, within.bindings)
                usual = 80 if within is None else 443
                head = outgoing(told, host=host, port=port, path=path, size=size, usual_port=usual)
                await server.send(head)
                upload = asyncio.create_task(upload_body(client, server, size, stillness))
                return await answer(client, server, request, upload, stillness)
        except (Unanswered, OSError) as error:
            if client.answered:
                raise
            where, late = host.with_port(port), isinstance(error, TimeoutError)
            words = f"nothing moved for {self._limits.idle:g} s" if late else str(error)
            raise Answer(504 if late else 502, f"{where} did not answer: {words}") from None
        finally:
            if upload is not None:
                upload.cancel()
                await asyncio.gather(upload, return_exceptions=True)
            await server.close()

    # CONNECT.

    async def _tunnel(self, client: Stream, request: Request) -> None:
        host, port = connect_target(request)
        if self._secrets is not None and (bound := self._secrets.towards(host, port)):
            within = _Within(host, port, bound, self._secrets.beginning)
            await self._end_tls(client, within, self._secrets.ending)
            return
        server = await self._reach.to(host, port)
        try:
            await client.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
            try:
                opening = b""
                if not self._policy.everything:
                    opening = await self._read_opening(client, host)
            except Cut as cut:
                self._deny(host.text, port, cut.reason)
                if cut.alert:
                    await client.send(_ACCESS_DENIED)
                return
            with contextlib.suppress(TimeoutError):
                async with Stillness(self._limits.idle) as stillness:
                    await server.send(opening)
                    await join(client, server, stillness)
        finally:
            await server.close()

    async def _end_tls(self, client: Stream, within: _Within, context: ssl.SSLContext) -> None:
        """For a server that secrets are bound to: be that server, as far as the client can tell,
        and take its requests on, one by one."""
        self._reach.decide(within.host, within.port)
        await client.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            opening = await self._read_opening(client, within.host)
        except Cut as cut:
            self._deny(within.host.text, within.port, cut.reason)
            if cut.alert:
                await client.send(_ACCESS_DENIED)
            return
        # The hello was read already, and TLS wants to read it by itself: so there is a socket
        # between, into which it goes first.
        near, far = socket.socketpair()
        with near, far:
            outer = await Stream.accept(near)
            carrying = asyncio.create_task(self._carry(client, outer, opening))
            try:
                inner = await Stream.accept(far, context, patience=self._limits.hello)
                try:
                    await self._converse(inner, within)
                finally:
                    await inner.say_goodbye()
                await asyncio.wait([carrying], timeout=self._limits.hello)
            except ssl.SSLError:
                self._deny(within.host.text, within.port, "tls-failed")
            finally:
                carrying.cancel()
                await asyncio.gather(carrying, return_exceptions=True)
                await outer.close()

    async def _carry(self, client: Stream, outer: Stream, opening: bytes) -> None:
        with contextlib.suppress(TimeoutError):
            async with Stillness(self._limits.idle) as stillness:
                await outer.send(opening)
                await join(client, outer, stillness)

    async def _read_opening(self, client: Stream, host: Host) -> bytes:
        """What the client says first, once it is known that it speaks to ``host``."""
        data = bytearray()
        try:
            async with asyncio.timeout(self._limits.hello):
                while (hello := clienthello.parse(data)) is None:
                    if len(data) >= clienthello.LIMIT:
                        raise Cut("not-tls", alert=False)
                    more = await client.reader.read(clienthello.LIMIT - len(data))
                    if not more:
                        raise Cut("not-tls", alert=False)
                    data += more
        except (TimeoutError, clienthello.NotAClientHello):
            raise Cut("not-tls", alert=False) from None
        if hello.encrypted:
            raise Cut("ech", alert=True)
        if hello.server_name is None:
            raise Cut("sni-missing", alert=True)
        if hello.server_name != host.text:
            raise Cut("sni-mismatch", alert=True)
        return bytes(data)

    def _deny(self, host: str, port: int, reason: str) -> None:
        try:
            self._report(Denial(time.time(), host, port, reason))
        except Exception:  # noqa: BLE001 - a refusal stays one, whoever cannot hear of it
            _log.exception("a denial could not be reported")


def _with_secrets(request: Request, bindings: tuple[Binding, ...]) -> Request:
    return replace(request, fields=vault.swap(request.fields, bindings))
