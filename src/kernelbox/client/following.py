"""An execution as a caller is told of it: its events by their numbers, and its result last."""

from __future__ import annotations

from kernelbox.client.conversation import Answer, Happened
from kernelbox.result import Event, ExecutionResult, OutputItem
from kernelbox.wire import Frame

_SHOWN = {
    "stream",
    "display_data",
    "update_display_data",
    "execute_result",
    "clear_output",
    "error",
}


class Telling:
    """Turns what a warden says of an execution into the events of its caller."""

    def __init__(self, request: Frame) -> None:
        self._number = int(request.get("start", 0)) - 1

    def event(self, item: Happened | Answer) -> Event | None:
        """None: it only matters between machines."""
        if isinstance(item, Answer):
            return self.end(ExecutionResult.from_wire(item.content))
        shown = _shown(item)
        if shown is None:
            return None
        self._number = item.number
        return Event(self._number, shown)

    def end(self, result: ExecutionResult) -> Event:
        return Event(self._number + 1, result)


def _shown(item: Happened) -> OutputItem | None:
    if item.event.get("kind") == "gap":
        missing = int(item.event["events"])
        words = f"[{missing:,} events are missing here: there was more than the spool keeps]"
        return OutputItem("gap", words, data={"events": missing})
    if item.event.get("kind") not in _SHOWN:
        return None
    shown = OutputItem.from_wire(item.event)
    if shown.text is None:
        shown.text = shown.data.get("text/plain")
    return shown
