"""Where output leaves an interpreter: two pipes, and marks in them that keep the order.

Python-level writes go straight into the same pipes that C code and subprocesses write to, so each
stream is in order by itself. To say "this display comes after those bytes", "these bytes on stderr
come after those on stdout" or "these bytes come after that display", a *mark* is written into the
pipe: a token that the warden gave us, a kind and a number. A place is only marked when the pipe
still holds bytes that the warden has not read, so a quiet cell writes none. The other half of this
is ``warden/streams.py``.
"""

from __future__ import annotations

import array
import fcntl
import io
import os
import select
import termios
import threading
from typing import Any

MARK_TOKEN_LENGTH = 16
_ATOMIC = select.PIPE_BUF
"""What a pipe takes whole or not at all."""
_write = os.write
HERE, AFTER, FRAME = b"H", b"A", b"F"
"""``HERE n``: a place in this pipe. ``AFTER n``: what follows comes after that place of the other
pipe. ``FRAME n``: what follows comes after the n-th frame on the lifeline."""


def mark_prefix(token: str) -> bytes:
    """What every mark starts with; never by chance in anyone's output."""
    return b"\x1e\x00" + token.encode("ascii")


def mark_length(token: str) -> int:
    return len(mark_prefix(token)) + 1 + 8 + 1


class Outlets:
    """Writes to both pipes, in order, from any thread."""

    def __init__(self, stdout_fd: int, stderr_fd: int, token: str) -> None:
        self._fds = (stdout_fd, stderr_fd)
        self._prefix = mark_prefix(token)
        self._number = 0
        self._last = 0
        self._frames_sent = 0
        self._frames_told = [0, 0]
        self._after_frame = False
        self._unread = array.array("i", [0])
        self.lock = threading.RLock()
        self.marking = True
        self.plain = -1  # the stream that can be written to as things are, without a mark

    def fd(self, which: int) -> int:
        return self._fds[which]

    def write(self, which: int, data: bytes) -> None:
        """Write all of ``data`` to stdout (0) or stderr (1)."""
        with self.lock:
            if which != self._last:
                # What follows a frame may have been read and still be held back for that frame.
                if self.marking and (self._after_frame or self._has_unread(self._last)):
                    self._number += 1
                    self._mark(self._last, HERE)
                    self._mark(which, AFTER)
                self._last = which
                self._after_frame = False
            if self._frames_told[which] != self._frames_sent and self.marking:
                self._frames_told[which] = self._frames_sent
                self._after_frame = True
                data = self._mark_bytes(FRAME, self._frames_sent) + data
            self.plain = which if self.marking else -1
            self._write_all(self._fds[which], data)

    def place(self) -> list[int] | None:
        """Mark where both pipes are now, for a frame about to be sent: ``[which pipes, number]``.

        The number is told even if neither pipe was marked: what waits for a mark of which an
        interrupt left only one half, or for a frame that could not be sent, goes on with this one.
        """
        if not self.marking:
            return None
        self._frames_sent += 1
        self.plain = -1
        mask = 0
        for which in (0, 1):
            if self._has_unread(which):
                if not mask:
                    self._number += 1
                if self._mark(which, HERE):
                    mask |= 1 << which
        return [mask, self._number] if self._number else None

    def unplace(self) -> None:
        """The frame was not sent after all."""
        self._frames_sent -= 1

    def repair(self) -> None:
        """Give a cell that closed fd 1 or 2 its output back; a redirection of its own is left."""
        for fd, ours in zip((1, 2), self._fds, strict=True):
            try:
                fcntl.fcntl(fd, fcntl.F_GETFD)
            except OSError:
                os.dup2(ours, fd)

    def _has_unread(self, which: int) -> bool:
        try:
            fcntl.ioctl(self._fds[which], termios.FIONREAD, self._unread)
        except OSError:
            return False
        return self._unread[0] > 0

    def _mark(self, which: int, kind: bytes) -> bool:
        # Shorter than PIPE_BUF, so a subprocess that writes at the same time cannot split it.
        try:
            self._write_all(self._fds[which], self._mark_bytes(kind, self._number))
        except OSError:
            return False
        return True

    def _mark_bytes(self, kind: bytes, number: int) -> bytes:
        return b"%s%s%08x\x1e" % (self._prefix, kind, number & 0xFFFFFFFF)

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
            if outlets.plain == which and len(data) <= _ATOMIC:
                try:
                    if _write(self._fd, data) == len(data):
                        return len(text)
                except BlockingIOError:
                    pass
            if data:
                outlets.write(which, data)
        return len(text)
