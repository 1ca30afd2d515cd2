"""What is put out while no cell runs: kept for the next result, the latest of it if it is much."""

from __future__ import annotations

from collections import deque

from kernelbox.spool import Event
from kernelbox.warden.events import weight
from kernelbox.warden.execution import Execution

_MOST = 100_000
_KEPT = {"stream", "display_data", "update_display_data", "error"}
_MARK = {"background": True}


class Background:
    """Comes from a thread, a task or a process that an earlier cell left."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._size = 0
        self._dropped = 0

    def add(self, event: Event) -> None:
        if event["kind"] not in _KEPT:
            return
        self._events.append({**event, "metadata": {**(event.get("metadata") or {}), **_MARK}})
        self._size += weight(event)
        while self._size > _MOST and len(self._events) > 1:
            gone = weight(self._events.popleft())
            self._size -= gone
            self._dropped += gone

    def hand_over(self, job: Execution) -> None:
        """All of it becomes part of this execution's output."""
        if self._dropped:
            words = f"[… {self._dropped:,} characters from between cells left out …]\n"
            job.add({"kind": "stream", "name": "stdout", "text": words, "metadata": _MARK})
        for event in self._events:
            job.add(event)
        self._events.clear()
        self._size = self._dropped = 0

    def take_back(self, job: Execution) -> None:
        """It was not run after all, and the next one shall have its output."""
        if job.spool is not None:
            for _, event in job.spool.read(0, at_most=_MOST):
                self.add(event)
            job.spool.delete()
            job.spool = None
