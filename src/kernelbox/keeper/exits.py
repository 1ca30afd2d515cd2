"""How processes ended: our own children, and the wardens of whom roots tell us."""

from __future__ import annotations

from kernelbox.inside import linux
from kernelbox.reactor import Reactor

_MOST_STATUSES = 1000


class Exits:
    """The wait status of each process that has ended of late."""

    def __init__(self, reactor: Reactor) -> None:
        self.roots: set[int] = set()
        """Until they are reaped, also after they were dropped."""
        self._statuses: dict[int, int] = {}
        self._child_signals = linux.child_signal_fd()
        reactor.watch(self._child_signals, self.reap)

    def started(self, pid: int) -> None:
        """A process is there: what is known of that pid is about another, that had it before."""
        self._statuses.pop(pid, None)

    def told(self, pid: int, status: int) -> None:
        """A root has reaped a warden."""
        self._statuses[pid] = status
        while len(self._statuses) > _MOST_STATUSES:
            self._statuses.pop(next(iter(self._statuses)))

    def reap(self) -> None:
        """Roots that ended, and wardens that outlived theirs and were left to us."""
        linux.drain_signal_fd(self._child_signals)
        for pid, status in linux.reap():
            self.roots.discard(pid)
            self.told(pid, status)

    def status(self, pid: int) -> int | None:
        """None: nobody has said yet, or ever will (it was somebody else's child)."""
        return self._statuses.get(pid)
