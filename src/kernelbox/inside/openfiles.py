"""Open files at a fork: regular ones get offsets of their own, the rest is shared and reported."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys
from collections.abc import Container
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class _File:
    fd: int
    path: str
    flags: int
    offset: int


@dataclass(slots=True)
class OpenFiles:
    """What was open just before a fork, and where in it the process was."""

    files: list[_File] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def look(cls, *, besides: Container[int] = ()) -> OpenFiles:
        """``besides``: descriptors that the copy gets anew in another way."""
        found = cls()
        shared: list[str] = []
        for name in os.listdir("/proc/self/fd"):
            fd = int(name)
            if fd < 3 or fd in besides:
                continue  # standard streams, and what we have ourselves
            with contextlib.suppress(OSError, ValueError, KeyError):
                facts = os.fstat(fd)
                target = os.readlink(f"/proc/self/fd/{fd}")
                if stat.S_ISREG(facts.st_mode):
                    found.files.append(_look_at(fd, target))
                elif stat.S_ISSOCK(facts.st_mode) or stat.S_ISFIFO(facts.st_mode):
                    shared.append(target.partition(":")[0])
        if shared:
            kinds = ", ".join(f"{shared.count(kind)} {kind}" for kind in sorted(set(shared)))
            found.notes.append(f"shared with the original, not copied: open {kinds} descriptors")
        if "sqlite3" in sys.modules and any(_is_database(file.path) for file in found.files):
            found.notes.append(
                "an SQLite connection was open: close it and connect anew in the copy"
            )
        return found

    def reopen(self) -> None:
        """In the copy: a fork shares offsets, and what one side read, the other would miss."""
        for file in self.files:
            with contextlib.suppress(OSError):
                # The very same file, renamed or deleted though it may be.
                fresh = os.open(f"/proc/self/fd/{file.fd}", file.flags)
                os.lseek(fresh, file.offset, os.SEEK_SET)
                os.dup2(fresh, file.fd, inheritable=os.get_inheritable(file.fd))
                os.close(fresh)


def _look_at(fd: int, path: str) -> _File:
    # Of ourselves, and not of a file in /proc, which may be locked.
    flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_TMPFILE)
    if not os.get_inheritable(fd):
        flags |= os.O_CLOEXEC
    return _File(fd, path, flags, os.lseek(fd, 0, os.SEEK_CUR))


def _is_database(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except OSError:
        return False
