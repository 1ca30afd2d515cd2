"""What was run in a kernel: kept by the warden, so that it outlives the interpreter."""

from __future__ import annotations

import fnmatch
from collections import deque

_Entry = tuple[int, str, str | None]
_MOST = 10_000


class History:
    """The inputs and results of one kernel, oldest first."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque(maxlen=_MOST)

    def add(self, count: int, code: str, output: str | None) -> None:
        self._entries.append((count, code, output))

    def copy(self) -> History:
        """For a branch, which remembers what its parent did."""
        same = History()
        same._entries.extend(self._entries)
        return same

    def tail(self, n: int) -> list[_Entry]:
        return list(self._entries)[-n:] if n > 0 else []

    def range(self, start: int, stop: int | None) -> list[_Entry]:
        return [
            entry
            for entry in self._entries
            if entry[0] >= start and (stop is None or entry[0] < stop)
        ]

    def search(self, pattern: str, *, n: int | None, unique: bool) -> list[_Entry]:
        found = [entry for entry in self._entries if fnmatch.fnmatchcase(entry[1], pattern)]
        if unique:
            latest = {code: (count, code, output) for count, code, output in found}
            found = sorted(latest.values())
        return found[-n:] if n else found
