"""One thread, one epoll: callbacks on file descriptors, timers, and sockets that speak frames."""

from __future__ import annotations

import array
import contextlib
import heapq
import itertools
import os
import select
import socket
import struct
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence

from kernelbox.wire import READ_SIZE, Decoder, Frame, GarbledFrame, encode

Callback = Callable[[], None]

_POLL_SIZE = 1 << 19
"""What one poll takes at most: more than a socket holds, and little enough to be done with."""
_CREDENTIALS = struct.Struct("3i")
_MAX_FDS = 16
_LONGEST_WAIT = 3600.0
_MOST_FAILURES = 20
_FAILURE_WINDOW = 10.0


class Timer:
    """A call that is due; ``cancel`` makes it not happen."""

    __slots__ = ("callback", "due")

    def __init__(self, due: float, callback: Callback) -> None:
        self.due = due
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        self.callback = None


class Reactor:
    """Calls back when a descriptor is ready or a timer is due, until :meth:`stop`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, tuple[Callback | None, Callback | None]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._soon: deque[Callback] = deque()
        self._running = False

    def watch(self, fd: int, on_read: Callback | None, *, on_write: Callback | None = None) -> None:
        """Call back when ``fd`` can be read or written; both None stops watching."""
        mask = (select.EPOLLIN if on_read else 0) | (select.EPOLLOUT if on_write else 0)
        known = fd in self._watched
        if not mask:
            self.forget(fd)
        elif known:
            self._epoll.modify(fd, mask)
            self._watched[fd] = (on_read, on_write)
        else:
            self._epoll.register(fd, mask)
            self._watched[fd] = (on_read, on_write)

    def forget(self, fd: int) -> None:
        """Stop watching ``fd``; call it before the descriptor is closed."""
        if self._watched.pop(fd, None) is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)

    def call_later(self, delay: float, callback: Callback) -> Timer:
        timer = Timer(time.monotonic() + delay, callback)
        heapq.heappush(self._timers, (timer.due, next(self._order), timer))
        return timer

    def call_soon(self, callback: Callback) -> None:
        """Call back before the next wait, after what is being handled now.

        What such a call asks for in its turn comes one round later, when descriptors and timers
        have had theirs: work that goes on and on can be done in pieces without starving anybody.
        """
        self._soon.append(callback)

    def stop(self) -> None:
        self._running = False

    def run(self) -> None:
        """Turn until :meth:`stop`. A callback that fails is a bug of ours, told in the log and
        survived: the kernels that everybody else has here must not end with it. One that fails
        again and again would only keep the processor busy, so that is raised."""
        self._running = True
        failures: deque[float] = deque(maxlen=_MOST_FAILURES)
        while self._running:
            try:
                self.turn()
            except Exception:
                now = time.monotonic()
                if len(failures) == _MOST_FAILURES and now - failures[0] < _FAILURE_WINDOW:
                    raise
                failures.append(now)
                sys.stderr.write(f"kernelbox: survived a bug:\n{traceback.format_exc()}")
                sys.stderr.flush()

    def turn(self, longest: float | None = None) -> None:
        """Wait once, at most ``longest`` seconds, and handle all that is ready."""
        for fd, happened in self._epoll.poll(self._patience(longest)):
            entry = self._watched.get(fd)
            if entry is None:
                continue  # forgotten by a callback of this same turn
            on_read, on_write = entry
            hung_up = happened & (select.EPOLLHUP | select.EPOLLERR)
            if on_write is not None and happened & (select.EPOLLOUT | hung_up):
                on_write()
            if on_read is not None and happened & (select.EPOLLIN | hung_up):
                current = self._watched.get(fd)
                if current is not None and current[0] is on_read:
                    on_read()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if timer.callback is not None:
                timer.callback()
        for _ in range(len(self._soon)):
            self._soon.popleft()()

    def close(self) -> None:
        self._epoll.close()

    def _patience(self, longest: float | None) -> float:
        if self._soon:
            return 0
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return -1 if longest is None else longest
        # epoll cannot count further than 24 days; a timer beyond that is looked at again by then.
        wait = min(max(0.0, self._timers[0][0] - time.monotonic()), _LONGEST_WAIT)
        return wait if longest is None else min(wait, longest)


class Peer:
    """A non-blocking stream socket that sends and receives frames, descriptors included."""

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket,
        *,
        on_frame: Callable[[Frame], None],
        on_close: Callable[[], None],
        on_drain: Callable[[], None] | None = None,
        ancillary: bool = False,
        most_fds: int = _MAX_FDS,
    ) -> None:
        """``ancillary`` also collects the sender's pid and passed descriptors, ``most_fds`` of
        them with each piece received; what is over that, the system closes."""
        sock.setblocking(False)
        self.sock = sock
        self.fd = sock.fileno()
        self.sender_pid = 0
        self.fds: list[int] = []
        self.closed = False
        self.garbled = False
        """Whether it was hung up on for what it said."""
        self._reactor = reactor
        self._on_frame = on_frame
        self._on_close = on_close
        self._on_drain = on_drain
        self._ancillary = ancillary
        self._room = socket.CMSG_SPACE(_CREDENTIALS.size)
        if most_fds:
            self._room += socket.CMSG_SPACE(4 * most_fds)
        self._decoder = Decoder()
        self._out: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._backlog = 0
        self._polling = False
        self._paused = False
        reactor.watch(self.fd, self._readable)

    @property
    def backlog(self) -> int:
        """Bytes that the other side has not taken yet."""
        return self._backlog

    def send(self, frame: Frame, fds: Sequence[int] = ()) -> None:
        """Send now or as soon as there is room. ``fds`` are duplicated: close yours at will."""
        self.send_bytes(encode(frame), fds)

    def send_bytes(self, data: bytes, fds: Sequence[int] = ()) -> None:
        if self.closed:
            return
        if fds:
            fds = [os.dup(fd) for fd in fds]
        self._out.append((memoryview(data), fds))
        self._backlog += len(data)
        if len(self._out) == 1:
            self._flush()
            if self._out and not self.closed:
                self._watch()

    def poll(self) -> None:
        """Handle what has already arrived, without waiting for the reactor to say so.

        Half a megabyte of it: one that writes as fast as we read must not keep us here.
        """
        taken = 0
        while not self.closed and not self._polling and taken < _POLL_SIZE:
            size = self._take_in()
            if not size:
                break
            taken += size

    def pause(self, paused: bool) -> None:
        """Leave what arrives in the socket, where it makes the sender wait, or take it again."""
        if paused != self._paused and not self.closed:
            self._paused = paused
            self._watch()

    def close(self) -> None:
        """Close without telling ``on_close`` (the closer knows)."""
        if self.closed:
            return
        self.closed = True
        self._reactor.forget(self.fd)
        self.sock.close()
        for _, fds in self._out:
            _close_all(fds)
        _close_all(self.fds)
        self.fds = []
        self._out.clear()
        self._backlog = 0

    def _readable(self) -> None:
        self._take_in()

    def _watch(self) -> None:
        on_read = None if self._paused else self._readable
        self._reactor.watch(self.fd, on_read, on_write=self._writable if self._out else None)

    def _take_in(self) -> int:
        """Receive once and handle what is whole; the bytes received, 0: there was nothing."""
        try:
            data = self._receive()
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self._lost()
            return 0
        try:
            frames = self._decoder.feed(data)
        except GarbledFrame:
            self.garbled = True
            self._lost()
            return 0
        self._polling = True
        try:
            for frame in frames:
                if self.closed:
                    break
                self._on_frame(frame)
        finally:
            self._polling = False
        return len(data)

    def _receive(self) -> bytes:
        if not self._ancillary:
            return self.sock.recv(READ_SIZE)
        data, extras, _, _ = self.sock.recvmsg(READ_SIZE, self._room, socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in extras:
            if level != socket.SOL_SOCKET:
                continue
            if kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(content[: len(content) - len(content) % received.itemsize])
                self.fds.extend(received)
            elif kind == socket.SCM_CREDENTIALS:
                self.sender_pid = _CREDENTIALS.unpack(content)[0]
        return data

    def _writable(self) -> None:
        self._flush()
        if not self._out and not self.closed:
            self._watch()
            if self._on_drain is not None:
                self._on_drain()

    def _flush(self) -> None:
        while self._out:
            data, fds = self._out[0]
            try:
                if fds:
                    sent = socket.send_fds(self.sock, [data], list(fds))
                else:
                    sent = self.sock.send(data)
            except BlockingIOError:
                return
            except OSError:
                # The reading side tells the story (end-of-file, with what was said before it).
                for _, unsent in self._out:
                    _close_all(unsent)  # or whoever waits for their other ends waits for ever
                self._out.clear()
                self._backlog = 0
                return
            _close_all(fds)
            self._backlog -= sent
            if sent < len(data):
                self._out[0] = (data[sent:], ())
            else:
                self._out.popleft()

    def _lost(self) -> None:
        if not self.closed:
            self.close()
            self._on_close()


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def remaining(deadline: float) -> float:
    """Seconds until a monotonic deadline, never negative."""
    return max(0.0, deadline - time.monotonic())
