"""Where output leaves an interpreter: two pipes, and marks in them that keep the order.

Python-level writes go straight into the same pipes that C code and subprocesses write to, so each
stream is in order by itself. Between the streams, and between them and the frames on the lifeline,
one count keeps the order: it goes up when the writer turns from one of the three to another. A
frame carries its number; in a pipe a *mark* (a token that the warden gave us, and the number) is
written ahead of what follows. All is written under one lock, so whoever has read number n finds
everything before it by looking into the other two. That half of this is ``warden/streams.py``.
"""

from __future__ import annotations

import fcntl
import io
import os
import select
import threading
from typing import Any

MARK_TOKEN_LENGTH = 16
_ATOMIC = select.PIPE_BUF
"""What a pipe takes whole or not at all."""
_write = os.write
_FRAME = 2


def mark_prefix(token: str) -> bytes:
    """What every mark starts with; never by chance in anyone's output."""
    return b"\x1e\x00" + token.encode("ascii")


def mark_length(token: str) -> int:
    return len(mark_prefix(token)) + 12 + 1


class Outlets:
    """Writes to both pipes, in order, from any thread."""

    def __init__(self, stdout_fd: int, stderr_fd: int, token: str) -> None:
        self._fds = (stdout_fd, stderr_fd)
        self._prefix = mark_prefix(token)
        self._number = 0
        self.lock = threading.RLock()
        self.marking = True
        self.turn = -1  # who wrote last: stdout (0), stderr (1) or a frame (2)

    def fd(self, which: int) -> int:
        return self._fds[which]

    def write(self, which: int, data: bytes) -> None:
        """Write all of ``data`` to stdout (0) or stderr (1)."""
        with self.lock:
            if which != self.turn and self.marking:
                self._number += 1
                data = b"%s%012x\x1e" % (self._prefix, self._number) + data
                # The mark in one piece: a process that writes at the same time must not split it.
                self._write_all(self._fds[which], data[:_ATOMIC])
                data = data[_ATOMIC:]
            self._write_all(self._fds[which], data)
            self.turn = which

    def number_frame(self) -> int:
        """The number of a frame that is about to be sent."""
        self._number += 1
        self.turn = _FRAME
        return self._number

    def repair(self) -> None:
        """Give a cell that closed fd 1 or 2 its output back; a redirection of its own is left."""
        for fd, ours in zip((1, 2), self._fds, strict=True):
            try:
                fcntl.fcntl(fd, fcntl.F_GETFD)
            except OSError:
                os.dup2(ours, fd)

    def _write_all(self, fd: int, data: bytes) -> None:
        while data:
            try:
                written = os.write(fd, data)
            except BlockingIOError:
                # Someone made the shared pipe non-blocking (node does); wait for room ourselves.
                select.select([], [fd], [])
                continue
            if written == len(data):
                return
            data = data[written:]


class _Bytes(io.RawIOBase):
    """``sys.stdout.buffer``: bytes for the same pipe."""

    def __init__(self, outlets: Outlets, which: int) -> None:
        self._outlets = outlets
        self._which = which

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._which + 1

    def write(self, data: Any) -> int:
        raw = bytes(data)
        self._outlets.write(self._which, raw)
        return len(raw)


class Stream(io.TextIOBase):
    """``sys.stdout`` or ``sys.stderr``. Nothing is held back, so nothing is lost by a crash."""

    def __init__(self, outlets: Outlets, which: int) -> None:
        self._outlets = outlets
        self._which = which
        self._fd = outlets.fd(which)
        self.name = ("<stdout>", "<stderr>")[which]
        self.buffer = _Bytes(outlets, which)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        return "backslashreplace"

    @property
    def line_buffering(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._which + 1

    def isatty(self) -> bool:
        return False

    def close(self) -> None:
        """A cell that closes ``sys.stdout`` means well; the stream is ours and stays open."""

    def reconfigure(self, **_: Any) -> None:
        """Accepted, for programs that insist on an encoding; ours is UTF-8 in any case."""

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        data = text.encode("utf-8", "backslashreplace")
        outlets, which = self._outlets, self._which
        # A loop of prints is the hot path of all output: no calls here that can be done without.
        with outlets.lock:
            if outlets.turn == which and len(data) <= _ATOMIC:
                try:
                    if _write(self._fd, data) == len(data):
                        return len(text)
                except BlockingIOError:
                    pass
            if data:
                outlets.write(which, data)
        return len(text)
