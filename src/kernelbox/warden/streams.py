"""The reading end of an interpreter's output: bytes and frames, in the order of their numbers.

The other half, with the reasons, is ``inside/outlets.py``. Marks can be forged by the code in the
interpreter; all it gains is to disorder its own output, for nothing here ever waits for a number:
what is not there after a look into all three is taken for lost.

The writer may be faster than we are, and mean it: work is done in slices, one look in each, and
while a slice was not enough nothing more is taken in. What is held never outgrows two looks.
"""

from __future__ import annotations

import array
import codecs
import contextlib
import fcntl
import os
import termios
import time
from collections import deque
from collections.abc import Callable

from kernelbox.inside.outlets import mark_length, mark_prefix
from kernelbox.reactor import Reactor
from kernelbox.wire import Frame

STDOUT, STDERR = 0, 1
NAMES = ("stdout", "stderr")

_CHUNK = 1 << 16
_PAUSE = 0.002
_BUSY_CHUNK = 1 << 14
_LARGEST_PIPE = 1 << 20
_SLICE = 0.01
_CATCH_UP_SLICE = 0.25
_LAST_SLICE = 2.0
_MOST_LOOKS = 3

_Item = str | int


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
        start = 0
        while True:
            at = data.find(self._prefix, start)
            end = at + self._length
            if at < 0 or len(data) < end:
                break
            self._text(items, data[start:at])
            with contextlib.suppress(ValueError):
                items.append(int(data[at + len(self._prefix) : end - 1], 16))
            start = end
        data = data[start:]
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
    """Both pipes of one interpreter and its frames, handed on in the right order."""

    def __init__(
        self,
        reactor: Reactor,
        fds: tuple[int, int],
        token: str,
        *,
        on_text: Callable[[str, str], None],
        on_frame: Callable[[Frame], None] = lambda frame: None,
        poll_frames: Callable[[], object] = lambda: None,
        pause_frames: Callable[[bool], object] = lambda paused: None,
    ) -> None:
        """``poll_frames`` has all that can be received now given to :meth:`take_frame`;
        ``pause_frames`` has nothing received while we cannot keep up (True), until we can."""
        self._reactor = reactor
        self._fds: list[int] = list(fds)
        self._splitters = [Splitter(token), Splitter(token)]
        self._pipes: list[deque[_Item]] = [deque(), deque()]
        self._frames: deque[Frame] = deque()
        self._on_text = on_text
        self._on_frame = on_frame
        self._poll_frames = poll_frames
        self._pause_frames = pause_frames
        self._looked = 0  # up to this number nothing is unread any more
        self._merging = False
        self._behind = False
        self._due = False
        self._unread = array.array("i", [0])
        self._waiting_pipes = [lambda: self._readable(STDOUT), lambda: self._readable(STDERR)]
        for which, fd in enumerate(fds):
            os.set_blocking(fd, False)
            reactor.watch(fd, self._waiting_pipes[which])

    def take_frame(self, frame: Frame) -> None:
        """A frame has arrived; it is handed on in its turn, once all that came with it is here."""
        self._frames.append(frame)
        if not self._merging:
            self._merge_soon()

    def catch_up(self) -> None:
        """Hand on everything that is here now, as far as there is time."""
        if self._behind:
            self._merge(_CATCH_UP_SLICE)
        if not self._behind:
            self._catch_up(_CATCH_UP_SLICE)

    def drain(self, *, last: bool = False) -> None:
        """The same; ``last``: the writer is dead, and half a character will never be whole."""
        self._poll_frames()
        self._catch_up(_LAST_SLICE if last else _CATCH_UP_SLICE)
        if last:
            for which in (STDOUT, STDERR):
                self._pipes[which] += self._splitters[which].feed(b"", last=True)
            self._merge(_LAST_SLICE, _MOST_LOOKS)

    def close(self) -> None:
        """What has not been handed on by now never is."""
        for which, fd in enumerate(self._fds):
            if fd >= 0:
                self._reactor.forget(fd)
                os.close(fd)
                self._fds[which] = -1
        for pipe in self._pipes:
            pipe.clear()
        self._frames.clear()

    def _catch_up(self, seconds: float) -> None:
        self._read_all(STDOUT)
        self._read_all(STDERR)
        self._merge(seconds, _MOST_LOOKS)

    def _readable(self, which: int) -> None:
        if self._behind:
            return  # we are called again as long as there is something
        fd = self._fds[which]
        fcntl.ioctl(fd, termios.FIONREAD, self._unread)
        if 0 < self._unread[0] < _BUSY_CHUNK:
            # Let a printing loop fill the pipe: a wake-up for every line would slow it down, and
            # print() writes its text and its newline one after the other.
            self._reactor.forget(fd)
            self._reactor.call_later(_PAUSE, lambda: self._read_after_pause(which, fd))
            return
        self._read_once(which)
        self._merge()

    def _read_after_pause(self, which: int, fd: int) -> None:
        if self._fds[which] != fd:
            return
        self._reactor.watch(fd, self._waiting_pipes[which])
        if not self._behind:
            self._read_once(which)
            self._merge()

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
        self._pipes[which] += self._splitters[which].feed(data)
        return len(data)

    def _read_all(self, which: int) -> None:
        # A process that never stops writing must not keep us here: more than a pipe can hold was
        # not in it when we came.
        taken = 0
        while taken < _LARGEST_PIPE and (size := self._read_once(which)):
            taken += size

    def _merge_soon(self) -> None:
        if not self._due:
            self._due = True
            self._reactor.call_soon(self._merge_in_turn)

    def _merge_in_turn(self) -> None:
        self._due = False
        self._merge()

    def _merge(self, seconds: float = _SLICE, looks: int = 1) -> None:
        """Hand on what has been read, the lowest number first; what is left has its next turn."""
        if self._merging:
            return
        self._merging = True
        behind = True  # also if somebody whom we tell something fails
        try:
            behind = self._hand_on(time.monotonic() + seconds, looks)
        finally:
            self._merging = False
            if self._frames or self._pipes[STDOUT] or self._pipes[STDERR]:
                self._merge_soon()
            else:
                behind = False
            if behind != self._behind:
                self._behind = behind
                self._pause_frames(behind)

    def _hand_on(self, deadline: float, looks: int) -> bool:
        """True if there was no time for all whose turn it is."""
        while True:
            self._hand_on_text()
            heads = self._heads()
            if not heads:
                self._looked = 0  # a forged one must not keep us from looking for ever
                return False
            first = min(heads)
            if first <= self._looked:
                self._take_turn(first)
                if time.monotonic() > deadline:
                    return True
            elif looks:
                looks -= 1
                self._look()
            else:
                return False

    def _look(self) -> None:
        """Take in all that was written before the highest number we have seen."""
        highest = self._highest()
        self._read_all(STDOUT)
        self._read_all(STDERR)
        self._poll_frames()
        self._looked = highest

    def _hand_on_text(self) -> None:
        """Text that no mark stands before: it belongs to a turn that has come already."""
        for which, pipe in enumerate(self._pipes):
            while pipe and isinstance(pipe[0], str):
                self._on_text(NAMES[which], str(pipe.popleft()))

    def _heads(self) -> list[int]:
        heads = [pipe[0] for pipe in self._pipes if pipe and isinstance(pipe[0], int)]
        return [*heads, _number(self._frames[0])] if self._frames else heads

    def _highest(self) -> int:
        marks = [item for pipe in self._pipes for item in pipe if isinstance(item, int)]
        return max(*marks, *map(_number, self._frames), 0)

    def _take_turn(self, number: int) -> None:
        for pipe in self._pipes:
            if pipe and pipe[0] == number:
                pipe.popleft()
                return
        self._on_frame(self._frames.popleft())


def _number(frame: Frame) -> int:
    number = frame.get("n")
    return number if isinstance(number, int) else 0
