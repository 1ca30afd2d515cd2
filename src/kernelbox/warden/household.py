"""A household: a kernel with the things that outlive its interpreters: sockets, ports, files."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
from collections.abc import Iterable
from typing import Protocol

from kernelbox.reactor import Reactor
from kernelbox.warden.kernel import Kernel

_PEER_CREDENTIALS = struct.Struct("3i")
_MOST_AT_ONCE = 64


class Door(Protocol):
    """Where Jupyter clients come in; it closes with the kernel."""

    def close(self) -> None: ...


class Household:
    """Clients of our own come in by the listener, and those of Jupyter by the door."""

    def __init__(self, kernel: Kernel, listener: socket.socket, door: Door) -> None:
        self.kernel = kernel
        self._listener = listener
        self._door = door

    def accept(self) -> list[socket.socket]:
        """Who has come since; only the user whose kernel it is, and root, are let in."""
        come: list[socket.socket] = []
        for _ in range(_MOST_AT_ONCE):
            try:
                sock, _ = self._listener.accept()
            except OSError:  # nobody else, for now
                break
            if _peer_uid(sock) in (os.getuid(), 0):
                come.append(sock)
            else:
                sock.close()
        return come

    def close(self, reactor: Reactor, cause: str) -> None:
        """Nobody finds the kernel any more; then it ends, and what it had goes with it."""
        identity = self.kernel.identity
        reactor.forget(self._listener.fileno())
        self._listener.close()
        paths = [identity.address]
        if identity.wrote_connection_file:
            paths.append(identity.connection_file)
        for path in paths:
            with contextlib.suppress(OSError):
                os.unlink(path)
        self.kernel.end(cause)
        if self.kernel.audit is not None:
            self.kernel.audit.ended(cause)
        self._door.close()
        self.kernel.shelf.clear()

    def leave_workspace(self, others: Iterable[Household]) -> None:
        """A folder goes with the last kernel that has it for its own."""
        identity = self.kernel.identity
        if not identity.workspace:
            return
        for household in others:
            other = household.kernel.identity
            if other.cwd == identity.workspace and not other.workspace:
                other.workspace = identity.workspace
                return
        shutil.rmtree(identity.workspace, ignore_errors=True)


def _peer_uid(sock: socket.socket) -> int:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    uid: int = _PEER_CREDENTIALS.unpack(raw)[1]
    return uid
