"""The pages that every fork of the root is sure to write to, copied in one call.

A fork shares all memory until it writes: each first write to a page is a fault that copies it, and
a new interpreter takes well over a thousand of them before its first result, which is most of the
time that takes. The same pages every time: the root learns which (:class:`Lesson`), and a fork asks
the kernel for all of them at once (:meth:`WorkingSet.claim`), at half the price and before anybody
waits. It costs no memory, for they would have been copied anyway.
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
_WRITABLE_AND_PRIVATE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p ")
_PATIENCE = 10
_MOST_RANGES = 1024  # the kernel takes no more in one call


class WorkingSet:
    """Ranges of pages, ready for the kernel."""

    def __init__(self, pages: Iterable[int] = ()) -> None:
        ranges: list[list[int]] = []
        for page in sorted(pages):
            if ranges and ranges[-1][0] + ranges[-1][1] == page:
                ranges[-1][1] += _PAGE
            else:
                ranges.append([page, _PAGE])
        self._calls = [
            linux.address_ranges(ranges[start : start + _MOST_RANGES])
            for start in range(0, len(ranges), _MOST_RANGES)
        ]

    def claim(self) -> bool:
        """Make the pages our own; False if the kernel cannot, and then they are copied one by one
        when they are written to."""
        return bool(self._calls) and all(linux.populate(ranges) for ranges in self._calls)


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
        self._director = os.fork()
        if self._director == 0:
            status = 70
            try:
                linux.die_with_parent()  # or it would go on, and make files, where all is gone
                os.close(self.reader)
                linux.unblock_signals()
                with open(writer, "wb") as file:
                    file.write(b"".join(map(_ENTRY.pack, _pages_of_a_player(play, direct, fork))))
                status = 0
            except BaseException as error:
                os.write(2, f"kernelbox: no pages were learned: {error!r}\n".encode())
            finally:
                os._exit(status)
        os.close(writer)

    def finish(self) -> WorkingSet:
        """What was learned; waits until :attr:`reader` can be read."""
        with open(self.reader, "rb") as file:
            learned = {page for (page,) in _ENTRY.iter_unpack(file.read())}
        with contextlib.suppress(ChildProcessError):  # somebody reaps all there is
            os.waitpid(self._director, 0)
        # What the scene allocated is not there in another fork, and not to be asked for.
        return WorkingSet(learned.intersection(_pages(os.getpid(), _PRESENT)))


def _pages_of_a_player(
    play: Callable[[], None], direct: Callable[[], None], fork: Callable[[], int]
) -> list[int]:
    signal.signal(signal.SIGCHLD, _player_ended)
    player = fork()
    if player == 0:
        try:
            linux.die_with_parent()
            play()
        finally:
            os._exit(70)
    try:
        signal.alarm(_PATIENCE)  # ends us, and with us the player
        direct()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.kill(player, signal.SIGSTOP)
        os.waitpid(player, os.WUNTRACED)
        return list(_pages(player, _PRESENT | _EXCLUSIVE))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(player, signal.SIGKILL)


def _player_ended(*_: object) -> NoReturn:
    raise ChildProcessError("the player ended before the scene did")


def _pages(pid: int, wanted: int) -> Iterator[int]:
    """The addresses of a process's writable pages that have all of these marks."""
    with open(f"/proc/{pid}/maps") as file:
        areas = _WRITABLE_AND_PRIVATE.findall(file.read())
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        for first, last in areas:
            start, end = int(first, 16), int(last, 16)
            pagemap.seek(start // _PAGE * _ENTRY.size)
            entries = pagemap.read((end - start) // _PAGE * _ENTRY.size)
            for number, (entry,) in enumerate(_ENTRY.iter_unpack(entries)):
                if entry & wanted == wanted and not entry & _OF_A_FILE:
                    yield start + number * _PAGE
