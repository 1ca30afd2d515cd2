"""In gVisor: what carries bytes between the sandbox's own loopback and the gate outside.

A socket of the sandbox's network cannot be handed out of it. So somebody in there listens, and for
each connection asks for one to the gate, which comes in the way that all descriptors do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import NoReturn

from kernelbox.inside import linux
from kernelbox.walls.plan import GATE_PORT

WANTED = b"1"
"""What is sent out for each connection that is wanted; one comes back with the same."""

_NOBODY = 65534
_BACKLOG = 128
_PIECE = 1 << 16
_MOST_VISITS = 128
"""At a time; who comes then waits. Each takes two descriptors."""
_BREATH = 0.05
_FIRST_LOOK, _LOOK_AGAIN = 0.004, 0.25
"""What arrives just while a socket is put on epoll's list is not always told in gVisor: then a TLS
client that answers at once would wait for ever. So somebody looks, soon, and then now and then."""


def start(gate: socket.socket) -> int:
    """Listen at once, and carry in a process of its own, which user code cannot end: its pid."""
    listener = socket.create_server(("127.0.0.1", GATE_PORT), backlog=_BACKLOG)
    # Before the fork: whoever started it may cover what is told of it there.
    known = [int(name) for name in os.listdir("/proc/self/fd")]
    pid = os.fork()
    if pid == 0:
        try:
            linux.die_with_parent()
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
            linux.die_with_parent()
            linux.set_dumpable(False)
            linux.set_name("kb-ferry")
            for fd in {*known} - {0, 1, 2, listener.fileno(), gate.fileno()}:
                with contextlib.suppress(OSError):
                    os.close(fd)
            asyncio.run(_carry(listener, gate))
        finally:
            os._exit(70)
    listener.close()
    gate.close()
    return pid


async def _carry(listener: socket.socket, gate: socket.socket) -> NoReturn:
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    gate.setblocking(False)
    visits: set[asyncio.Task[None]] = set()
    room = asyncio.Semaphore(_MOST_VISITS)

    def left(visit: asyncio.Task[None]) -> None:
        visits.discard(visit)
        room.release()

    while True:
        await room.acquire()
        try:
            near, _ = await loop.sock_accept(listener)
        except OSError:  # who had knocked has left again
            room.release()
            await asyncio.sleep(_BREATH)
            continue
        # One after the other: the next visitor waits until this one has a connection.
        far = await _connection(loop, gate)
        visit = asyncio.create_task(_visit(near, far))
        visits.add(visit)
        visit.add_done_callback(left)


async def _connection(loop: asyncio.AbstractEventLoop, gate: socket.socket) -> socket.socket:
    await loop.sock_sendall(gate, WANTED)
    while True:
        try:
            data, fds, _, _ = socket.recv_fds(gate, 1, 1)
        except BlockingIOError:
            await _readable(loop, gate, _LOOK_AGAIN)
            continue
        if fds:
            return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=fds[0])
        if not data:
            os._exit(0)  # there is no gate any more


async def _visit(near: socket.socket, far: socket.socket) -> None:
    near.setblocking(False)
    far.setblocking(False)
    with near, far, contextlib.suppress(OSError):
        await asyncio.gather(_pump(near, far), _pump(far, near))


async def _receive(loop: asyncio.AbstractEventLoop, source: socket.socket) -> bytes:
    patience = _FIRST_LOOK
    while True:
        try:
            return source.recv(_PIECE)
        except BlockingIOError:
            await _readable(loop, source, patience)
            patience = min(2 * patience, _LOOK_AGAIN)


async def _readable(
    loop: asyncio.AbstractEventLoop, source: socket.socket, patience: float
) -> None:
    """Until it is told that there is something, or for so many seconds."""
    told = asyncio.Event()
    loop.add_reader(source, told.set)
    try:
        async with asyncio.timeout(patience):
            await told.wait()
    except TimeoutError:
        pass
    finally:
        loop.remove_reader(source)


async def _pump(source: socket.socket, sink: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while data := await _receive(loop, source):
        await loop.sock_sendall(sink, data)
    sink.shutdown(socket.SHUT_WR)
