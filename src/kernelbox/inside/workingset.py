"""The pages that every fork of the root is sure to write to, copied in one call.

A fork shares all memory until it writes: each first write to a page is a fault that copies it, and
a new interpreter takes a thousand of them before its first result, which is most of the time that
takes. The same pages every time: the root learns which (:class:`Lesson`), and a fork asks the
kernel for all of them at once (:meth:`WorkingSet.claim`), at a lower price and before anybody
waits. It costs no memory, for they would have been copied anyway. So it does with those pages of
files (libraries, and the root's :mod:`~kernelbox.inside.imprint`) that it is sure to read.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

from kernelbox.inside import linux

_PAGE = os.sysconf("SC_PAGE_SIZE")
_ENTRY = struct.Struct("=Q")
_PRESENT, _OF_A_FILE, _EXCLUSIVE = 1 << 63, 1 << 61, 1 << 56
_WRITABLE = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p ", re.M)
_OF_FILES = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) r..p [0-9a-f]+ [0-9a-f:]+ [1-9]", re.M)
_FAULT_AROUND = 1 << 16
"""Who reads a page of a file is given its neighbours, too: one of each such block will do."""
_PATIENCE = 10
_MOST_RANGES = 1024  # the kernel takes no more in one call


class WorkingSet:
    """Ranges of pages, ready for the kernel."""

    def __init__(self, written: Iterable[int] = (), read: Iterable[int] = ()) -> None:
        self._calls = [
            *((linux.MADV_POPULATE_READ, ranges) for ranges in _ranges(read)),
            *((linux.MADV_POPULATE_WRITE, ranges) for ranges in _ranges(written)),
        ]

    def claim(self) -> bool:
        """Make the pages our own; False if the kernel cannot, and then they are copied one by one
        when they are written to."""
        return bool(self._calls) and all(linux.populate(*call) for call in self._calls)


def _ranges(pages: Iterable[int]) -> list[linux.Ranges]:
    ranges: list[list[int]] = []
    for page in sorted(pages):
        if ranges and ranges[-1][0] + ranges[-1][1] == page:
            ranges[-1][1] += _PAGE
        else:
            ranges.append([page, _PAGE])
    return [
        linux.address_ranges(ranges[start : start + _MOST_RANGES])
        for start in range(0, len(ranges), _MOST_RANGES)
    ]


_OBJECTS, _LARGER = 640, 96
"""How many small objects and kilobytes a first request makes, and some more."""


def make_room() -> None:
    """Touch memory that is about to be used for the first time, while nobody waits for it."""
    objects = [bytes(400) for _ in range(_OBJECTS)]
    larger = bytes(_LARGER << 10)
    del objects, larger  # it stays ours, and is handed out again


class Lesson:
    """Learn which of our pages a fork writes to, by watching one ``play`` a scene.

    ``direct`` runs beside it, in a process between us and the player, and returns when the scene
    is over. Nothing of it happens here: we may go on, and fork others, meanwhile. (A page counts as
    the player's own when nobody shares it any more; so the player does not look at itself.)
    """

    def __init__(
        self,
        play: Callable[[], None],
        direct: Callable[[], None],
        *,
        fork: Callable[[], int] = os.fork,
    ) -> None:
        self.reader, writer = os.pipe()
        ourselves = os.getpid()
        self._director = os.fork()
        if self._director == 0:
            status = 70
            try:
                linux.die_with(ourselves)  # or it would go on, and make files, where all is gone
                os.close(self.reader)
                linux.unblock_signals()
                written, read = _pages_of_a_player(play, direct, fork)
                with open(writer, "wb") as file:
                    file.write(b"".join(map(_ENTRY.pack, [len(written), *written, *read])))
                status = 0
            except BaseException as error:
                os.write(2, f"kernelbox: no pages were learned: {error!r}\n".encode())
            finally:
                os._exit(status)
        os.close(writer)

    def finish(self) -> WorkingSet:
        """What was learned; waits until :attr:`reader` can be read."""
        with open(self.reader, "rb") as file:
            count, *pages = (page for (page,) in _ENTRY.iter_unpack(file.read() or _ENTRY.pack(0)))
        with contextlib.suppress(ChildProcessError):  # somebody reaps all there is
            os.waitpid(self._director, 0)
        # What the scene allocated is not there in another fork, and not to be asked for.
        there = {*_pages(os.getpid(), _WRITABLE, _PRESENT), *_addresses(os.getpid(), _OF_FILES)}
        return WorkingSet(there.intersection(pages[:count]), there.intersection(pages[count:]))


def _pages_of_a_player(
    play: Callable[[], None], direct: Callable[[], None], fork: Callable[[], int]
) -> tuple[list[int], list[int]]:
    """What it has copied, and what it has looked up in files that we had not."""
    ours = set(_pages(os.getpid(), _OF_FILES, _PRESENT | _OF_A_FILE))
    signal.signal(signal.SIGCHLD, _player_ended)
    ourselves = os.getpid()
    player = fork()
    if player == 0:
        try:
            linux.die_with(ourselves)
            play()
        finally:
            os._exit(70)
    try:
        signal.alarm(_PATIENCE)  # ends us, and with us the player
        direct()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.kill(player, signal.SIGSTOP)
        os.waitpid(player, os.WUNTRACED)
        written = list(_pages(player, _WRITABLE, _PRESENT | _EXCLUSIVE, without=_OF_A_FILE))
        read = (p for p in _pages(player, _OF_FILES, _PRESENT | _OF_A_FILE) if p not in ours)
        return written, list({page // _FAULT_AROUND: page for page in read}.values())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(player, signal.SIGKILL)


def _player_ended(*_: object) -> NoReturn:
    raise ChildProcessError("the player ended before the scene did")


def _areas(pid: int, kind: re.Pattern[str]) -> list[tuple[int, int]]:
    with open(f"/proc/{pid}/maps") as file:
        return [(int(first, 16), int(last, 16)) for first, last in kind.findall(file.read())]


def _addresses(pid: int, kind: re.Pattern[str]) -> Iterator[int]:
    """Of all pages of such areas of a process, whether they are there or not."""
    for start, end in _areas(pid, kind):
        yield from range(start, end, _PAGE)


def _pages(pid: int, kind: re.Pattern[str], marks: int, *, without: int = 0) -> Iterator[int]:
    """The addresses of pages, in such areas of a process, that have all of these marks."""
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        for start, end in _areas(pid, kind):
            pagemap.seek(start // _PAGE * _ENTRY.size)
            entries = pagemap.read((end - start) // _PAGE * _ENTRY.size)
            for number, (entry,) in enumerate(_ENTRY.iter_unpack(entries)):
                if entry & marks == marks and not entry & without:
                    yield start + number * _PAGE
