"""What a foreign kernel says, in the words of our own interpreter: Jupyter messages as frames."""

from __future__ import annotations

from typing import Any

from kernelbox.inside.bundles import compact, plain
from kernelbox.wire import Frame


def broadcast(msg_type: str, content: dict[str, Any]) -> Frame | None:
    """A broadcast as the frame that our interpreter would have sent; None: not for our lane."""
    match msg_type:
        case "display_data" | "update_display_data":
            data, metadata = compact(content.get("data") or {}, content.get("metadata") or {})
            if not data:
                return None
            return {
                "op": "display",
                "data": data,
                "metadata": metadata,
                "transient": content.get("transient") or {},
                "update": msg_type == "update_display_data",
            }
        case "execute_result":
            data, metadata = compact(content.get("data") or {}, content.get("metadata") or {})
            count = content.get("execution_count")
            return {"op": "result", "data": data, "metadata": metadata, "execution_count": count}
        case "error":
            return {"op": "error", **error(content)}
        case "clear_output":
            return {"op": "clear", "wait": bool(content.get("wait"))}
    return None


def error(content: dict[str, Any]) -> dict[str, Any]:
    """An error without the colours that kernels paint it with."""
    traceback = content.get("traceback")
    return {
        "ename": str(content.get("ename") or "Error"),
        "evalue": plain(str(content.get("evalue") or "")),
        "traceback": [plain(str(line)) for line in traceback]
        if isinstance(traceback, list)
        else [],
    }


def done(reply: dict[str, Any], *, interrupted: bool) -> Frame:
    """The end of a cell, from its reply."""
    frame: Frame = {
        "op": "done",
        "ok": reply.get("status") == "ok",
        "execution_count": reply.get("execution_count"),
        "user_expressions": reply.get("user_expressions") or {},
    }
    if reply.get("status") == "error":
        frame["error"] = error(reply)
    elif not frame["ok"]:  # "aborted", "abort": it says no more than that
        ename = "KeyboardInterrupt" if interrupted else "Aborted"
        frame["error"] = {"ename": ename, "evalue": "", "traceback": [ename]}
    return frame


def pages(reply: dict[str, Any]) -> list[Frame]:
    """What a kernel wants shown in a pager (``obj?``) is output where there is none."""
    found = []
    payload = reply.get("payload")
    for item in payload if isinstance(payload, list) else ():
        if isinstance(item, dict) and item.get("source") == "page":
            data, metadata = compact(item.get("data") or {}, {})
            if data:
                found.append({"op": "display", "data": data, "metadata": metadata})
    return found


def failure(ename: str, evalue: str) -> dict[str, Any]:
    """The answer to a question that could not be answered."""
    return {"status": "error", "ename": ename, "evalue": evalue, "traceback": []}
