"""The gate: the only way out of a sandbox's network namespace, an HTTP proxy that asks the policy.

It runs outside, and is handed a socket that listens on the sandbox's own loopback. Every target is
decided by name, looked up here, its address decided too, and exactly that address connected to.
What comes from a client is hostile, and is read so that nobody behind us can read it differently:
heads are parsed strictly and written anew, each request has a connection of its own to its server,
and inside CONNECT the TLS hello must name the server that was asked for.

Here are its two doors, `serve` and `run`. Behind them `visits` takes one request after the other,
from `heads` and `streams`, to where `targets` says, by `reach`; `exchange` carries the rest. For a
domain that secrets are bound to, it ends TLS and swaps placeholders for what `vault` has.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import json
import logging
import os
import select
import signal
import socket
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NoReturn

from kernelbox.walls.domains import Policy
from kernelbox.walls.reach import Resolve, system_resolve
from kernelbox.walls.vault import Vault
from kernelbox.walls.visits import Denial, Limits, Report, Visits

__all__ = ["Denial", "Limits", "Policy", "Resolve", "environment", "run", "serve", "system_resolve"]

_log = logging.getLogger(__name__)

_OUT_OF = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


def environment(proxy: str = "http://127.0.0.1:3128") -> dict[str, str]:
    """What sends pip, requests, curl, git and npm through the gate; ALL_PROXY must be absent."""
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    around = "localhost,127.0.0.1,::1"
    return {**dict.fromkeys(names, proxy), "no_proxy": around, "NO_PROXY": around}


async def serve(
    listener: socket.socket,
    policy: Policy,
    report: Report,
    *,
    resolve: Resolve = system_resolve,
    limits: Limits | None = None,
    secrets: Vault | None = None,
) -> None:
    """Let visitors through until cancelled; then every connection is closed, and the listener."""
    limits = limits or Limits()
    visitors = Visits(policy, report, resolve, limits, secrets)
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
            visit = asyncio.create_task(visitors.visit(connection))
            visits.add(visit)
            visit.add_done_callback(functools.partial(left, connection=connection))
    finally:
        listener.close()
        for visit in visits:
            visit.cancel()
        await asyncio.gather(*visits, return_exceptions=True)


def run(
    listener: socket.socket,
    policy_wire: Mapping[str, Any],
    report_fd: int,
    secrets: Vault | None = None,
) -> NoReturn:
    """Be the gate, in a process of its own, until SIGTERM or until nobody reads ``report_fd``.

    Each denial is a line of JSON there: when, host, port, reason, and "lost" if lines before it
    found the pipe full.
    """
    status = 1
    try:
        policy = Policy.from_wire(policy_wire)
        loop = asyncio.new_event_loop()
        loop.run_until_complete(_run(listener, policy, report_fd, secrets))
        status = 0
    except Exception:  # noqa: BLE001 - the exit status says that there was one
        _log.exception("the gate ended")
    finally:
        # Not by the interpreter's own end, which would wait for a name server that hangs.
        os._exit(status)


async def _run(
    listener: socket.socket, policy: Policy, report_fd: int, secrets: Vault | None
) -> None:
    loop = asyncio.get_running_loop()
    report = _Reporter(report_fd).report
    serving = asyncio.ensure_future(serve(listener, policy, report, secrets=secrets))
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
