"""The reading end of an interpreter's output pipes: bytes become text, in the order of the marks.

The other half, with the reasons, is ``inside/outlets.py``. Marks can be forged by the code in the
interpreter; all it gains is to disorder its own output, so nothing here ever waits for a mark.
"""

from __future__ import annotations

import array
import codecs
import contextlib
import fcntl
import os
import termios
from collections import deque
from collections.abc import Callable

from kernelbox.inside.outlets import mark_length, mark_prefix
from kernelbox.reactor import Reactor

STDOUT, STDERR = 0, 1
NAMES = ("stdout", "stderr")

_CHUNK = 1 << 16
_PAUSE = 0.002
_BUSY_CHUNK = 1 << 14
_MOST_HELD = 1 << 20

_Item = str | tuple[str, int]


class Splitter:
    """Takes the bytes of one pipe apart into text and marks."""

    def __init__(self, token: str) -> None:
        self._prefix = mark_prefix(token)
        self._length = mark_length(token)
        self._rest = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes, *, last: bool = False) -> list[_Item]:
        data = self._rest + data
        self._rest = b""
        items: list[_Item] = []
        while True:
            at = data.find(self._prefix)
            if at < 0:
                break
            if len(data) < at + self._length:
                break
            mark = data[at + len(self._prefix) : at + self._length]
            self._text(items, data[:at])
            with contextlib.suppress(ValueError):
                items.append((chr(mark[0]), int(mark[1:9], 16)))
            data = data[at + self._length :]
        if not last:
            keep = self._unfinished_mark(data)
            self._rest, data = data[len(data) - keep :], data[: len(data) - keep]
        self._text(items, data, last=last)
        return items

    def _unfinished_mark(self, data: bytes) -> int:
        """How many bytes at the end may be the start of a mark."""
        at = data.rfind(b"\x1e", max(0, len(data) - self._length))
        if at < 0:
            return 0
        tail = data[at:]
        begins = self._prefix.startswith(tail) or tail.startswith(self._prefix)
        return len(tail) if begins else 0

    def _text(self, items: list[_Item], data: bytes, *, last: bool = False) -> None:
        text = self._decoder.decode(data, last)
        if text:
            items.append(text)


class Streams:
    """Both pipes of one interpreter; ``on_text(name, text)`` is called in the right order."""

    def __init__(
        self,
        reactor: Reactor,
        fds: tuple[int, int],
        token: str,
        *,
        on_text: Callable[[str, str], None],
        poll_frames: Callable[[], None],
    ) -> None:
        self._reactor = reactor
        self._fds: list[int] = list(fds)
        self._splitters = [Splitter(token), Splitter(token)]
        self._queues: list[deque[_Item]] = [deque(), deque()]
        self._held = [0, 0]
        self._on_text = on_text
        self._poll_frames = poll_frames
        self._place = 0
        self._frames = 0
        self._publishing = False
        self._unread = array.array("i", [0])
        self._waiting_pipes = [lambda: self._readable(STDOUT), lambda: self._readable(STDERR)]
        for which, fd in enumerate(fds):
            os.set_blocking(fd, False)
            reactor.watch(fd, self._waiting_pipes[which])

    def before_frame(self, place: list[int] | None) -> None:
        """A frame is about to be handled: first comes all that was written before it."""
        if place is not None:
            mask, number = place
            for which in (STDOUT, STDERR):
                if mask & (1 << which):
                    self._advance(which, number)
            self._place = max(self._place, number)
        self._frames += 1

    def after_frame(self) -> None:
        """A frame was handled: what was held back for it may follow."""
        self._publish()

    def drain(self, *, last: bool = False) -> None:
        """Hand on everything that is in the pipes now, marks or no marks."""
        for which in (STDOUT, STDERR):
            self._read_all(which)
            if last:
                self._take(which, self._splitters[which].feed(b"", last=True))
        self._place = self._frames = 1 << 62
        self._publish()
        self._place = self._frames = 0 if last else 1 << 62

    def close(self) -> None:
        for which, fd in enumerate(self._fds):
            if fd >= 0:
                self._reactor.forget(fd)
                os.close(fd)
                self._fds[which] = -1

    def _readable(self, which: int) -> None:
        fd = self._fds[which]
        fcntl.ioctl(fd, termios.FIONREAD, self._unread)
        if 0 < self._unread[0] < _BUSY_CHUNK:
            # Let a printing loop fill the pipe: a wake-up for every line would slow it down, and
            # print() writes its text and its newline one after the other.
            self._reactor.forget(fd)
            self._reactor.call_later(_PAUSE, lambda: self._read_after_pause(which, fd))
            return
        self._read_once(which)
        self._publish()

    def _read_after_pause(self, which: int, fd: int) -> None:
        if self._fds[which] != fd:
            return
        self._reactor.watch(fd, self._waiting_pipes[which])
        self._read_once(which)
        self._publish()

    def _read_once(self, which: int) -> int:
        fd = self._fds[which]
        if fd < 0:
            return 0
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            # Every writer has closed it; the stub tells whether the interpreter lives.
            self._reactor.forget(fd)
            return 0
        self._take(which, self._splitters[which].feed(data))
        return len(data)

    def _read_all(self, which: int) -> None:
        while self._read_once(which):
            pass

    def _take(self, which: int, items: list[_Item]) -> None:
        self._queues[which] += items
        self._held[which] += sum(len(item) for item in items if isinstance(item, str))

    def _publish(self) -> None:
        """Hand on text up to the first mark whose time has not come, on both pipes."""
        if self._publishing:
            return
        self._publishing = True
        try:
            again = True
            while again:
                again = False
                for which in (STDOUT, STDERR):
                    again |= self._publish_one(which)
        finally:
            self._publishing = False

    def _publish_one(self, which: int) -> bool:
        moved = False
        queue = self._queues[which]
        while queue:
            item = queue[0]
            if isinstance(item, tuple) and not self._due(which, item):
                break
            # The wait above may have handled the queue itself.
            if queue and queue[0] is item:
                queue.popleft()
                moved = True
                self._emit(which, item)
        return moved

    def _due(self, which: int, mark: tuple[str, int]) -> bool:
        kind, number = mark
        if self._held[which] > _MOST_HELD:
            return True  # a forged mark must not make us hold output without bound
        if kind == "A":
            if number > self._place:
                self._advance(1 - which, number)
                self._place = max(self._place, number)
            return True
        if kind == "F":
            if number > self._frames:
                self._publishing = False
                self._poll_frames()
                self._publishing = True
            return number <= self._frames
        return number <= self._place

    def _advance(self, which: int, number: int) -> None:
        """Hand on the text of a pipe up to the place with this number, which is in it by now."""
        self._read_all(which)
        queue = self._queues[which]
        while queue:
            item = queue.popleft()
            if isinstance(item, tuple) and item[0] == "H" and item[1] >= number:
                return
            self._emit(which, item)

    def _emit(self, which: int, item: _Item) -> None:
        if isinstance(item, str):
            self._held[which] -= len(item)
            self._on_text(NAMES[which], item)
