"""The events of one execution, as they are sent to one client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelbox.spool import Event
from kernelbox.warden.execution import Execution, Result

if TYPE_CHECKING:
    from kernelbox.warden.lanes.native.client import NativeClient

_ENOUGH = 1 << 20
_BATCH = 1 << 18


class Follower:
    """Sends the events of one execution to a client as fast as it takes them.

    A client that is slower than the cell is served from the spool, so nothing piles up here.
    """

    def __init__(
        self, client: NativeClient, request: Any, *, execution: Execution, start: int
    ) -> None:
        self._client = client
        self._request = request
        self._execution = execution
        self._next = start
        self._result: Result | None = None
        if not execution.finished:
            execution.subscribers.append(self.event)

    def event(self, number: int, event: Event) -> None:
        if number == self._next and self._client.backlog < _ENOUGH:
            self._next += 1
            self._client.send({"id": self._request, "n": number, "event": event})

    def result(self, result: Result) -> bool:
        """The last thing to send; True if that has been done."""
        self._result = result
        return self.drained()

    def drained(self) -> bool:
        """There is room again: catch up from the spool, and close with the result. True: that was
        all."""
        spool = self._execution.spool
        while spool is not None and self._next < spool.count and self._client.backlog < _ENOUGH:
            for number, event in spool.read(self._next, at_most=_BATCH):
                self._client.send({"id": self._request, "n": number, "event": event})
                self._next = number + 1
        if self._result is None or (spool is not None and self._next < spool.count):
            return False
        self.stop()
        self._client.send_result(self._request, self._result)
        self._result = None
        return True

    def stop(self) -> None:
        if self.event in self._execution.subscribers:
            self._execution.subscribers.remove(self.event)
