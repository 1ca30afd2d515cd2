"""Running the service: what ``kernelbox serve`` does."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import resource
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from kernelbox.config import Settings
from kernelbox.errors import BadInput
from kernelbox.server.protocol import PatientProtocol, patient_for, quiet_websockets
from kernelbox.server.reception import Reception
from kernelbox.server.safety import is_loopback
from kernelbox.server.settings import ServerSettings

if TYPE_CHECKING:
    from starlette.applications import Starlette

_AFTER_DRAIN = 5
"""Seconds that interrupted cells have to say their last words."""
_LOOK_AGAIN = 0.02
_AT_ONCE = 128
"""Connections that are accepted in one go. If there are no descriptors left, asyncio logs each."""
_WAITING = 2048
"""Connections that may wait to be accepted."""
_MOST_FILES = 65_536


def serve(
    host: str = "127.0.0.1",
    port: int = 8080,
    *,
    reload: bool = False,
    tokens: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    on_exit: str | None = None,
    drain: float | None = None,
    access_log: bool = False,
    server: ServerSettings | None = None,
    settings: Settings | None = None,
) -> None:
    """Serve until a signal says to end. Returns when all is closed.

    - ``port`` 0 takes any free one; the line on standard error says which
    - ``reload``: start again when a file of the code changes; for development
    - ``tokens``: a file of tenants, instead of ``KERNELBOX_API_TOKEN``
    - ``tls_cert``, ``tls_key``: PEM files; with them it speaks https
    - ``on_exit``: ``"keep"`` the kernels or ``"wipe"`` them
    - ``drain``: seconds that running cells have left when it is told to end; then they are
      interrupted, but for those that were to go on without their client

    Bound to more than loopback it needs a token: without one, it makes one and prints it.
    """
    server = server or ServerSettings.from_environment()
    if tokens is not None:
        server = replace(server, tokens_file=tokens)
    if on_exit is not None:
        server = replace(server, on_exit=on_exit)
    if drain is not None:
        server = replace(server, drain=drain)
    _check_tls(tls_cert, tls_key)
    if not (server.api_token or server.tokens_file or _is_local(host)):
        server = replace(server, api_token=secrets.token_urlsafe(32))
        _say(
            f"KernelBox is bound to {host}, which others can reach, so it needs a token; "
            f"this one is for this run (KERNELBOX_API_TOKEN sets it):\n  {server.api_token}"
        )
    if reload:
        _serve_and_reload(host, port, server, tls_cert=tls_cert, tls_key=tls_key)
        return
    from kernelbox.server.app import create_app

    app = create_app(server, settings=settings)
    run_app(app, host, port, tls_cert=tls_cert, tls_key=tls_key, access_log=access_log)


def run_app(
    app: Starlette,
    host: str,
    port: int,
    *,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    access_log: bool = False,
    on_ready: Callable[[int], None] | None = None,
) -> None:
    """Serve an app of :func:`kernelbox.server.app.create_app`.

    ``on_ready`` is told the port when requests are answered; otherwise a line on standard error is.
    """
    reception: Reception = app.state.reception
    listening = _listen(host, port)
    config = uvicorn.Config(
        app,
        http=patient_for(reception.server.body_timeout, most_connections=_room_for_connections()),
        ws=quiet_websockets() or "none",
        backlog=_AT_ONCE,
        ws_max_size=reception.server.max_body,
        access_log=access_log,
        log_level="info" if access_log else "warning",
        server_header=False,
        # Not uvloop: with more connections than kernels some of them wait for seconds, and it is no
        # faster here.
        loop="asyncio",
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
    )
    scheme = "https" if tls_cert else "http"
    address = listening.getsockname()
    name = f"[{address[0]}]" if ":" in address[0] else address[0]
    with listening:
        words = f"KernelBox listens on {scheme}://{name}:{address[1]}"
        ready = (lambda: on_ready(address[1])) if on_ready else (lambda: _say(words))
        server = DrainingServer(config, reception, ready=ready)
        server.run(sockets=[listening])


class DrainingServer(uvicorn.Server):
    """Gives running cells their time when it is told to end, and then interrupts them."""

    def __init__(
        self, config: uvicorn.Config, reception: Reception, *, ready: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._reception = reception
        self._ready = ready

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End well, so that whoever called us goes on; a second Ctrl-C does not wait."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            for listening in sockets or ():
                listening.listen(_WAITING)
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """What runs goes first: uvicorn itself hangs up on WebSockets at once."""
        reception = self._reception
        reception.ending = True
        for server in self.servers:
            server.close()
        for listening in sockets or ():
            listening.close()
        for connection in list(self.server_state.connections):
            if isinstance(connection, PatientProtocol):
                connection.shutdown()  # after its answer, or now if it waits for none
        loop = asyncio.get_running_loop()
        deadline = loop.time() + reception.server.drain
        await self._until_nothing_runs(deadline)
        # An interrupted cell still answers its client, with its output and what became of it.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_AFTER_DRAIN):
                await reception.end_all()
        await self._until_nothing_runs(loop.time() + _AFTER_DRAIN)
        for execution in list(reception.underway):
            execution.leave()
        left = max(0.0, deadline - loop.time()) + _AFTER_DRAIN
        self.config.timeout_graceful_shutdown = math.ceil(left)
        await super().shutdown(sockets)

    async def _until_nothing_runs(self, deadline: float) -> None:
        now = asyncio.get_running_loop().time
        # The handler of a signal sets force_exit, so there is no event to wait for.
        while self._reception.underway and now() < deadline and not self.force_exit:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_AGAIN)


def _serve_and_reload(
    host: str, port: int, server: ServerSettings, *, tls_cert: str | None, tls_key: str | None
) -> None:
    """The app is made anew in another process each time, so it is told by the environment."""
    given = {
        "KERNELBOX_API_TOKEN": server.api_token,
        "KERNELBOX_HTTP_TOKENS_FILE": server.tokens_file,
        "KERNELBOX_HTTP_ON_EXIT": server.on_exit,
        "KERNELBOX_HTTP_DRAIN": str(server.drain),
    }
    os.environ.update({name: value for name, value in given.items() if value})
    uvicorn.run(
        "kernelbox.server.app:app",
        host=host,
        port=port,
        reload=True,
        reload_dirs=[os.path.dirname(os.path.dirname(os.path.abspath(__file__)))],
        server_header=False,
        loop="asyncio",
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
        timeout_graceful_shutdown=int(server.drain) + _AFTER_DRAIN,
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, address = found[0][0], found[0][4]
        # asyncio sends small pieces at once (TCP_NODELAY) only where it reads that this is TCP;
        # otherwise each answer over a WebSocket waits 40 ms for an acknowledgement.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(_WAITING)
        except BaseException:
            listening.close()
            raise
        return listening
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInput(
            f"{host}:{port} cannot be listened on: {why or error}. "
            "Choose another port (0 takes any free one), or end what listens there.",
            host=host,
            port=port,
        ) from None


def _room_for_connections() -> int:
    """How many connections there may be: half of the descriptors that we may have, and we may have
    more if we ask. The other half is for kernels, files and searches."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if most == resource.RLIM_INFINITY else min(most, _MOST_FILES)
    if limit != resource.RLIM_INFINITY and limit < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
            limit = wanted
    return max(16, (_MOST_FILES if limit == resource.RLIM_INFINITY else limit) // 2)


def _is_local(host: str) -> bool:
    return host == "localhost" or is_loopback(host)


def _check_tls(cert: str | None, key: str | None) -> None:
    if (cert is None) != (key is None):
        raise BadInput("TLS needs both a certificate and a key: tls_cert and tls_key")
    for path in filter(None, (cert, key)):
        if not os.access(path, os.R_OK):
            raise BadInput(f"the file {path!r} for TLS cannot be read")


def _say(words: str) -> None:
    sys.stderr.write(words + "\n")
    sys.stderr.flush()
