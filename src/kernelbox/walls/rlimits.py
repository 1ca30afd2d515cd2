"""Limits that a process takes on itself and hands down to all it starts (setrlimit)."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping

# What an interpreter keeps between its soft mark and the limit: our own code must still be able to
# tell the user what happened.
SOFT_MEMORY_ROOM = 16 << 20

# However full it is, `del x` and a traceback must still be possible.
_LEAST_LEFT = 4 << 20

# Locked memory cannot be reclaimed, and nothing that a cell does needs much of it.
_MEMLOCK = 64 << 10

_KINDS = {
    "open_files": resource.RLIMIT_NOFILE,
    "file_size": resource.RLIMIT_FSIZE,
    # Counted per uid on the whole machine: only for a family with a uid of its own.
    "processes": resource.RLIMIT_NPROC,
    "memlock": resource.RLIMIT_MEMLOCK,
    "core": resource.RLIMIT_CORE,
}

# What RLIMIT_DATA was before the first mark. Made ahead, because the way out of a full memory must
# not need any.
_unmarked: tuple[int, int] | None = None


def apply(limits: Mapping[str, int]) -> None:
    """From now on, and for all we start: ``open_files``, ``file_size`` (bytes), ``processes``,
    ``memlock`` (bytes; small when not given). Never a core file, unless ``core`` gives it a size.

    Soft and hard limit alike, so that there is no way back; where the hard limit is lower already,
    it stays. The stack is left alone: Python and its threads need what they are used to.
    """
    wanted = {"core": 0, "memlock": _MEMLOCK, **limits}
    # All are looked at before one is set: a mistake must not leave half of them behind.
    for name, value in wanted.items():
        if name not in _KINDS:
            raise ValueError(f"there is no limit named {name!r}; there are: {', '.join(_KINDS)}")
        if type(value) is not int or value < 0:  # True is none
            raise ValueError(f"the limit {name!r} must be a whole number from 0 up, not {value!r}")
    for name, value in wanted.items():
        kind = _KINDS[name]
        lowered = _at_most(value, resource.getrlimit(kind)[1])
        try:
            resource.setrlimit(kind, (lowered, lowered))
        except (OSError, ValueError, OverflowError) as error:
            raise OSError(
                f"the limit {name!r} cannot be set to {lowered}: {error}; "
                f"choose another value, or leave it out of the profile"
            ) from error


def soft_memory(limit_bytes: int) -> None:
    """Let allocations of this process fail (MemoryError) when it comes near ``limit_bytes``.

    The mark is ``SOFT_MEMORY_ROOM`` below the limit. The kernel compares RLIMIT_DATA with what was
    *reserved* (VmData), of which much is never touched: so the mark is what is reserved now plus
    what is left between the memory in use and the limit. Set it anew before each cell: what was
    freed is then there to be used again.

    It does not see shared mappings (``mmap.mmap(-1, …)``), nor memory that was reserved before and
    is touched later: behind it, something must watch what is really used. And it counts what a
    thread reserves as its stack, 8 MB each as a rule.
    """
    global _unmarked
    reserved, used = _data()
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if _unmarked is None:
        _unmarked = resource.getrlimit(resource.RLIMIT_DATA)
    left = max(limit_bytes - SOFT_MEMORY_ROOM - used, _LEAST_LEFT)
    resource.setrlimit(resource.RLIMIT_DATA, (_at_most(reserved + left, hard), hard))


def lift_soft_memory() -> None:
    """Undo :func:`soft_memory`; it needs no memory itself, so it is the first thing to do when a
    cell has ended."""
    if _unmarked is None:
        return
    try:
        resource.setrlimit(resource.RLIMIT_DATA, _unmarked)
    except (OSError, ValueError):  # user code has lowered the hard limit: up to there, then
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _at_most(value: int, hard: int) -> int:
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def _data() -> tuple[int, int]:
    """Bytes of private memory of this process: reserved, and in use (swapped out included)."""
    file = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(file, 1 << 16)
    finally:
        os.close(file)
    sizes = {b"VmData": 0, b"RssAnon": 0, b"VmSwap": 0}
    for line in text.splitlines():
        name, _, rest = line.partition(b":")
        if name in sizes:
            sizes[name] = int(rest.split()[0]) << 10
    return sizes[b"VmData"], sizes[b"RssAnon"] + sizes[b"VmSwap"]
