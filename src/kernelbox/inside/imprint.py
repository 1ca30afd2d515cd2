"""The root's memory as a file, so that a fork need not copy the tables of pages nobody has touched.

Most of what a fork costs is the table of the root's pages, entry by entry, three times for each new
family, which then touches one page in five. Pages of a file are looked up when they are touched. So
the root puts its heap into one, nameless, in memory and sealed, and maps it privately over the very
addresses that the heap has. All forks share it, and copy what they write to, as before.

Memory must not change between its copy and its replacement, and no Python is that still. So a
second process stands by: it stops us at the entrance of each ``mmap`` (by ptrace), copies, and lets
us go on. If it dies meanwhile, we die with it, and the keeper starts another root. Where it may not
stop us, everything is as it was, and forks take a little longer.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import re
import signal
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple, NoReturn

from kernelbox.inside import linux

_ANONYMOUS = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0 +(?:\[heap\])?$", re.M)
_SMALLEST = 1 << 18
_PAGE = os.sysconf("SC_PAGE_SIZE")

_MAP_FIXED = 0x10
_PTRACE_DETACH, _PTRACE_SYSCALL = 17, 24
_PTRACE_SEIZE, _PTRACE_INTERRUPT, _PTRACE_GET_SYSCALL_INFO = 0x4206, 0x4207, 0x420E
_OPTIONS = 1 | 1 << 20  # mark the stops at system calls, and kill who is traced if we end
_SYSTEM_CALL_STOP = signal.SIGTRAP | 0x80
_WAIT_FOR_ALL = 0x40000000  # __WALL
_PR_SET_PTRACER = 0x59616D61
_PRESENT, _SWAPPED = 1 << 63, 1 << 62
_PATIENCE = 30

_ENTRY = 1
_SystemCall = struct.Struct("=B3xIQQQ6Q")
"""What the kernel says of one: entry or exit, architecture, two pointers, number, arguments."""

_libc = ctypes.CDLL(None, use_errno=True)
_mmap, _ptrace_call = _libc.mmap, _libc.ptrace
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
_ptrace_call.restype = ctypes.c_long
_ptrace_call.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)


class Area(NamedTuple):
    """A part of our memory, and where it is in the file."""

    start: int
    length: int
    offset: int


def imprint() -> bool:
    """Put our heap into a file; False if we are not allowed to, and then nothing has changed.

    For a process with a single thread, when nobody waits for it: it takes some fifty milliseconds.
    """
    if len(os.listdir("/proc/self/task")) > 1:
        return False  # nobody would stop the others
    areas = _heap()
    if not areas:
        return False
    try:
        file = os.memfd_create("kernelbox-root", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        return False
    try:
        os.ftruncate(file, areas[-1].offset + areas[-1].length)
        if not _replace(areas, file):
            return False
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)  # no fork can change what the others share
        return True
    except OSError:
        return False
    finally:
        os.close(file)


def _heap() -> list[Area]:
    with open("/proc/self/maps") as file:
        found = _ANONYMOUS.findall(file.read())
    areas: list[Area] = []
    offset = 0
    for first, last in found:
        start, length = int(first, 16), int(last, 16) - int(first, 16)
        if length >= _SMALLEST:
            areas.append(Area(start, length, offset))
            offset += length
    return areas


def _replace(areas: Sequence[Area], file: int) -> bool:
    ready, say = os.pipe()
    allowed, allow = os.pipe()
    ourselves = os.getpid()
    copier = os.fork()
    if copier == 0:
        try:
            linux.die_with(ourselves)
            os.close(ready)
            os.close(allow)
            os.read(allowed, 1)
            _Copier(ourselves, areas, file).work(say)
        except OSError:
            pass  # it may not: whoever waits for its word hears of it by the end of the pipe
        finally:
            os._exit(0)
    os.close(say)
    os.close(allowed)
    # Where Yama is, a child may not look at its parent unless that says so, and not before.
    _libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(copier), 0, 0, 0)
    os.close(allow)
    try:
        watched = os.read(ready, 1) == b"1"
        if watched:
            protection, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED
            for start, length, offset in areas:
                if _mmap(start, length, protection, kind, file, offset) != start:
                    os.abort()  # the old one may be gone: there is nothing to go on with
    finally:
        os.close(ready)
        _libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(0), 0, 0, 0)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(copier, 0)
    return watched


def written_pages(pagemap: bytes) -> Iterator[tuple[int, int]]:
    """The pages that have been written to, in memory or in swap, as (first, behind the last).

    What was never written to stays a hole in the file, which reads as zeros."""
    begin, number = None, 0
    for number, (entry,) in enumerate(struct.iter_unpack("=Q", pagemap), start=1):
        if entry & (_PRESENT | _SWAPPED):
            begin = number - 1 if begin is None else begin
        elif begin is not None:
            yield begin, number - 1
            begin = None
    if begin is not None:
        yield begin, number


class _Copier:
    """Stops another process at the entrance of each of its system calls, until all is copied."""

    def __init__(self, pid: int, areas: Sequence[Area], file: int) -> None:
        self._pid = pid
        self._file = file
        self._left = {area.start: area for area in areas}
        self._copy = memoryview(mmap.mmap(file, areas[-1].offset + areas[-1].length))
        self._memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
        self._pages = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY)

    def work(self, say: int) -> None:
        # After that nobody's failure may let it go on: it would find its memory empty.
        signal.alarm(_PATIENCE)
        self._ptrace(_PTRACE_SEIZE, data=_OPTIONS)
        self._ptrace(_PTRACE_INTERRUPT)
        self._wait()
        os.write(say, b"1")
        while self._left:
            self._ptrace(_PTRACE_SYSCALL)
            if self._wait() == _SYSTEM_CALL_STOP:
                self._look()
        self._copy.release()
        self._ptrace(_PTRACE_DETACH)

    def _wait(self) -> int:
        _, status = os.waitpid(self._pid, _WAIT_FOR_ALL)
        return os.WSTOPSIG(status) if os.WIFSTOPPED(status) else _gone()

    def _look(self) -> None:
        told = ctypes.create_string_buffer(_SystemCall.size)
        self._ptrace(
            _PTRACE_GET_SYSCALL_INFO, address=_SystemCall.size, data=ctypes.addressof(told)
        )
        kind, _, _, _, _, start, length, _, _, file, offset = _SystemCall.unpack(told.raw)
        area = self._left.get(start)
        if kind == _ENTRY and area == (start, length, offset) and file == self._file:
            self._take(self._left.pop(start))

    def _take(self, area: Area) -> None:
        entries = os.pread(self._pages, area.length // _PAGE * 8, area.start // _PAGE * 8)
        for begin, end in written_pages(entries):
            self._take_pages(area, begin, end)

    def _take_pages(self, area: Area, begin: int, end: int) -> None:
        at, last = begin * _PAGE, end * _PAGE
        while at < last:
            here = self._copy[area.offset + at : area.offset + last]
            at += os.preadv(self._memory, [here], area.start + at)

    def _ptrace(self, request: int, *, address: int = 0, data: int = 0) -> None:
        if _ptrace_call(request, self._pid, address, data) < 0:
            error = ctypes.get_errno()
            raise OSError(error, f"ptrace: {os.strerror(error)}")


def _gone() -> NoReturn:
    os._exit(0)
