"""What an interpreter says, as the events that lanes, spool and digest know.

Frames come from where user code runs, so nothing in them is taken for granted.
"""

from __future__ import annotations

import json
from typing import Any

from kernelbox.spool import Event
from kernelbox.wire import Frame

_LEAST_WEIGHT = 50

# What only our own code in the interpreter says, and how: anything else was forged. The fields of
# displays, values and comms come from users' objects; those are made to fit instead.
_OUR_WORDS: dict[str, dict[str, type]] = {
    "answer": {"content": dict},
    "done": {"error": dict, "payload": list, "user_expressions": dict},
    "forked": {"notes": list},
    "hello": {"pid": int},
}


class Nonsense(ValueError):
    """A frame that no interpreter of ours would send."""


def check(frame: Frame) -> None:
    """Raise :class:`Nonsense` if a frame is not of the shape that its ``op`` has."""
    op = frame.get("op")
    if not isinstance(op, str):
        raise Nonsense("a frame without an op")
    for name, wanted in _OUR_WORDS.get(op, {}).items():
        value = frame.get(name)
        if value is not None and not isinstance(value, wanted):
            raise Nonsense(f"{name!r} of {op!r} is a {type(value).__name__}")
    if op == "done":
        frame["execution_count"] = _count(frame)  # users do assign to the shell's


def event_of(frame: Frame) -> Event | None:
    """The event that a frame tells of; None if it tells of something else."""
    match frame.get("op"):
        case "display":
            update = frame.get("update")
            return _bundle("update_display_data" if update else "display_data", frame)
        case "result":
            event = _bundle("execute_result", frame)
            event["execution_count"] = _count(frame)
            return event
        case "error":
            error = clean_error(frame)
            return {"kind": "error", "text": "\n".join(error["traceback"]), "data": error}
        case "clear":
            return {"kind": "clear_output", "metadata": {"wait": bool(frame.get("wait"))}}
        case "comm":
            buffers = frame.get("buffers")
            return {
                "kind": "comm",
                "msg_type": str(frame.get("msg_type")),
                "content": _dict(frame, "content"),
                "metadata": _dict(frame, "metadata"),
                "buffers": list(map(str, buffers)) if isinstance(buffers, list) else [],
            }
    return None


def clean_error(error: object) -> dict[str, Any]:
    """An error with the three fields that every error has, each of its type."""
    if not isinstance(error, dict):
        error = {}
    traceback = error.get("traceback")
    return {
        "ename": str(error.get("ename") or "Error"),
        "evalue": str(error.get("evalue") or ""),
        "traceback": [str(line) for line in traceback] if isinstance(traceback, list) else [],
    }


def weight(event: Event) -> int:
    """About how many characters an event holds, whatever field they are in."""
    metadata = event.get("metadata") or {}
    total = sum(
        _weight(part)
        for part in (
            event.get("text"),
            *(event.get("data") or {}).values(),
            # The kernel's own mark comes and goes, and the weight must stay.
            *(value for name, value in metadata.items() if name != "background"),
            event.get("transient"),
        )
    )
    return max(total, _LEAST_WEIGHT)  # many empty ones are not nothing


def _weight(part: Any) -> int:
    if part is None:
        return 0
    return len(part) if isinstance(part, str) else len(json.dumps(part, default=str))


def _bundle(kind: str, frame: Frame) -> Event:
    data = _dict(frame, "data")
    if not isinstance(data.get("text/plain", ""), str):
        data["text/plain"] = str(data["text/plain"])
    event: Event = {"kind": kind, "data": data, "metadata": _dict(frame, "metadata")}
    if transient := _dict(frame, "transient"):
        event["transient"] = transient
    return event


def _dict(frame: Frame, name: str) -> dict[str, Any]:
    value = frame.get(name)
    return value if isinstance(value, dict) else {}


def _count(frame: Frame) -> int | None:
    count = frame.get("execution_count")
    return count if isinstance(count, int) else None
