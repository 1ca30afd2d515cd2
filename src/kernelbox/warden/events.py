"""What an interpreter says, as the events that lanes, spool and digest know.

Frames come from where user code runs, so nothing in them is taken for granted.
"""

from __future__ import annotations

from typing import Any

from kernelbox.spool import Event
from kernelbox.wire import Frame

_COMM_FIELDS = ("msg_type", "content", "metadata", "buffers")


def event_of(frame: Frame) -> Event | None:
    """The event that a frame tells of; None if it tells of something else."""
    match frame.get("op"):
        case "display":
            update = frame.get("update")
            return _bundle("update_display_data" if update else "display_data", frame)
        case "result":
            event = _bundle("execute_result", frame)
            event["execution_count"] = frame.get("execution_count")
            return event
        case "error":
            error = clean_error(frame)
            return {"kind": "error", "text": "\n".join(error["traceback"]), "data": error}
        case "clear":
            return {"kind": "clear_output", "metadata": {"wait": bool(frame.get("wait"))}}
        case "comm":
            return {"kind": "comm", **{key: frame.get(key) for key in _COMM_FIELDS}}
    return None


def clean_error(error: dict[str, Any]) -> dict[str, Any]:
    """An error with the three fields that every error has, each of its type."""
    traceback = error.get("traceback")
    return {
        "ename": str(error.get("ename") or "Error"),
        "evalue": str(error.get("evalue") or ""),
        "traceback": [str(line) for line in traceback] if isinstance(traceback, list) else [],
    }


def weight(event: Event) -> int:
    """About how many characters an event holds."""
    data: dict[str, Any] = event.get("data") or {}
    parts = (event.get("text"), *data.values())
    return sum(len(part) for part in parts if isinstance(part, str))


def _bundle(kind: str, frame: Frame) -> Event:
    data = frame.get("data") if isinstance(frame.get("data"), dict) else {}
    event: Event = {"kind": kind, "data": data, "metadata": frame.get("metadata") or {}}
    if frame.get("transient"):
        event["transient"] = frame["transient"]
    return event
