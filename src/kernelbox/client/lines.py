"""Open connections by address, pooled; safe for threads and forks, and with nobody but us."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from _thread import allocate_lock  # importing threading for it takes 0.7 ms
from collections.abc import Iterator

from kernelbox.client.conversation import ConnectionLost
from kernelbox.errors import KeeperUnavailable

_LONGEST_PATIENCE = 1_000_000.0  # seconds; a socket cannot count much further
_PEER_CREDENTIALS = struct.Struct("3i")
_MOST_IDLE = 64
_SWEEP_AT = 16
_CONNECT_PATIENCE = struct.pack("ll", 30, 0)
_NO_LIMIT = struct.pack("ll", 0, 0)


class Lines:
    """Open connections by address; one conversation at a time on each."""

    def __init__(self) -> None:
        self._idle: dict[str, list[socket.socket]] = {}
        self._lock = allocate_lock()
        self._pid = os.getpid()
        self._sweep_at = _SWEEP_AT

    @contextlib.contextmanager
    def line(self, address: str, *, patience: float | None) -> Iterator[socket.socket]:
        """A connection; it goes back to the pool only if the conversation ended well."""
        sock = self.take(address) or _connect(address)
        try:
            sock.settimeout(None if patience is None else min(patience, _LONGEST_PATIENCE))
            yield sock
        except BaseException:
            sock.close()
            raise
        self.give_back(address, sock)

    def give_back(self, address: str, sock: socket.socket) -> None:
        """Keep a connection for the next conversation."""
        with self._lock:
            if len(self._idle) >= self._sweep_at:
                self._sweep()
            idle = self._idle.setdefault(address, [])
            if len(idle) < _MOST_IDLE:
                idle.append(sock)
                return
        sock.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, {}
        for socks in idle.values():
            for sock in socks:
                sock.close()

    def _sweep(self) -> None:
        """Close what led to kernels that have ended, before a long-lived caller runs out of
        descriptors; each time twice as many have gathered, so that it costs next to nothing."""
        for address, socks in list(self._idle.items()):
            live = [sock for sock in socks if not _has_news(sock)]
            for sock in socks:
                if sock not in live:
                    sock.close()
            self._idle[address] = live
            if not live:
                del self._idle[address]
        self._sweep_at = max(_SWEEP_AT, 2 * len(self._idle))

    def take(self, address: str) -> socket.socket | None:
        """A connection that is open already, if there is one."""
        if self._pid != os.getpid():
            # The child of a fork: these connections are the parent's.
            self._pid, self._idle, self._lock = os.getpid(), {}, allocate_lock()
        with self._lock:
            idle = self._idle.get(address, [])
            while idle:
                sock = idle.pop()
                if not _has_news(sock):
                    return sock
                sock.close()  # an idle line that is readable has ended
        return None


def _has_news(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _connect(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A blocking connect waits for room among the callers that have yet to be accepted; with
        # a timeout of Python's it would fail at once.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _CONNECT_PATIENCE)
        sock.connect(address)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _NO_LIMIT)
        check_peer(sock, address)
    except OSError as error:
        sock.close()
        raise ConnectionLost(str(error), connected=False) from None
    except BaseException:
        sock.close()
        raise
    return sock


def check_peer(sock: socket.socket, address: str) -> None:
    """Nothing of ours is told to a socket of somebody else: a request holds the environment."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    uid = _PEER_CREDENTIALS.unpack(raw)[1]
    if uid not in (os.getuid(), 0):
        raise KeeperUnavailable(
            f"{address!r} belongs to another user (uid {uid}); somebody may be trying to listen "
            f"in. Remove {os.path.dirname(address)!r}."
        )
