"""The audit log: a line of JSON for each thing that happened to a kernel, written by many.

Wardens and the keeper append to one file, each line by one ``write``. When it has grown to its
limit, whoever comes next renames it (``audit.log`` → ``audit.log.1`` → …) and begins anew; the
others notice that theirs has another name, and follow. Nobody ever waits for anybody.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

_HOW = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
# Or a pipe that nobody reads would keep us for ever.
_HOW |= os.O_NONBLOCK | os.O_NOCTTY
_TRIES = 3


class AuditLog:
    """One process's end of it. Failures are told, not raised: kernels matter more."""

    def __init__(self, path: str, *, max_bytes: int, keep: int) -> None:
        """``keep``: how many full files stay beside the one that is written."""
        self.path = path
        self._max_bytes, self._keep = max_bytes, keep
        self._fd = -1
        self._torn = False
        self.failure = ""
        """Why the last line could not be written; empty if it was."""
        self.lost = 0
        """Lines that could not be written, since the last that was."""

    def write(self, event: str, facts: dict[str, Any]) -> bool:
        """One event; False: it could not be written, and ``failure`` says why."""
        said: dict[str, Any] = {"time": _now(), "event": event, **facts}
        if self.lost:
            said["lost"] = self.lost
        line = json.dumps(said, separators=(",", ":"), default=str).encode() + b"\n"
        try:
            self._open_for(len(line))
            self._put(line)
        except OSError as error:
            self.failure = f"the audit log {self.path!r} cannot be written: {error.strerror}"
            self.lost += 1
            self.close()
            return False
        self.failure, self.lost = "", 0
        return True

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _put(self, line: bytes) -> None:
        # What a full disk has cut off is a line of its own, which readers can tell.
        data = b"\n" + line if self._torn else line
        written = os.write(self._fd, data)
        self._torn = written < len(data)
        if self._torn:
            raise OSError(28, os.strerror(28))  # ENOSPC: what else there is raises by itself

    def _open_for(self, size: int) -> None:
        """Have the file that has the name open, with room for ``size``."""
        for _ in range(_TRIES):
            if self._fd < 0:
                self._fd = self._open()
            mine = os.fstat(self._fd)
            try:
                named = os.stat(self.path, follow_symlinks=False)
            except FileNotFoundError:
                self.close()  # somebody has taken it away, or is about to put another there
                continue
            if (named.st_dev, named.st_ino) != (mine.st_dev, mine.st_ino):
                self.close()
                continue
            if not mine.st_size or mine.st_size + size <= self._max_bytes or not self._rotate():
                return
            self.close()
        if self._fd < 0:
            self._fd = self._open()

    def _open(self) -> int:
        folder = os.path.dirname(self.path)
        try:
            fd = os.open(self.path, _HOW, 0o600)
        except FileNotFoundError:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            fd = os.open(self.path, _HOW, 0o600)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(22, "it is not a file")
        return fd

    def _rotate(self) -> bool:
        """Rename what is full; False if somebody else does it just now."""
        try:
            # On the file itself: who gets it for one that has been renamed already has lost.
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        mine, named = os.fstat(self._fd), os.stat(self.path, follow_symlinks=False)
        if (named.st_dev, named.st_ino) != (mine.st_dev, mine.st_ino):
            return True
        # The others write on to this one meanwhile, so no name is tried that need not be.
        free = 1
        while free < self._keep and os.path.lexists(f"{self.path}.{free}"):
            free += 1
        for number in range(free, 0, -1):
            older = f"{self.path}.{number}"
            newer = f"{self.path}.{number - 1}" if number > 1 else self.path
            with contextlib.suppress(FileNotFoundError):
                os.rename(newer, older)
        return True


def _now() -> str:
    return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="microseconds")


def read(path: str) -> Iterator[dict[str, Any]]:
    """All events there are, the oldest first; a line that is none is told as ``{"damaged": …}``."""
    for name in [*sorted(_rotated(path), key=_age, reverse=True), path]:
        with contextlib.suppress(FileNotFoundError), open(name, "rb") as file:
            for line in file:
                if not line.strip():
                    continue
                try:
                    event = json.loads(line)
                except ValueError:
                    event = None
                if isinstance(event, dict):
                    yield event
                else:
                    yield {"damaged": line.decode("utf-8", "replace").rstrip("\n")[:1000]}


def _rotated(path: str) -> list[str]:
    folder, name = os.path.split(path)
    with contextlib.suppress(OSError):
        found = os.listdir(folder or ".")
        return [
            os.path.join(folder, each)
            for each in found
            if each.startswith(f"{name}.") and each[len(name) + 1 :].isdecimal()
        ]
    return []


def _age(path: str) -> int:
    return int(path.rpartition(".")[2])
