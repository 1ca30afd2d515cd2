"""Questions a client asks between cells: completion, inspection, is-it-complete, comms."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from kernelbox.inside.comms import Comms
from kernelbox.inside.faces import wear
from kernelbox.inside.interrupts import Interrupts
from kernelbox.inside.shell import Shell, outbox
from kernelbox.wire import Frame


def answer(
    shell: Shell, comms: Comms, frame: Frame, interrupts: Interrupts, fds: list[int]
) -> dict[str, Any]:
    """The content of the reply; a question that fails is answered with the failure."""
    try:
        with interrupts.cell():
            match frame["what"]:
                case "complete":
                    return _complete(shell, frame["code"], cursor=frame["cursor_pos"])
                case "inspect":
                    return _inspect(shell, frame)
                case "is_complete":
                    return _is_complete(shell, frame["code"])
                case "comm_info":
                    return {"status": "ok", "comms": comms.info(frame.get("target_name"))}
                case "comm_open" | "comm_msg" | "comm_close" as what:
                    wear(shell, "jupyter")
                    outbox.face = "jupyter"
                    comms.handle(what, frame["message"])
                    return {"status": "ok"}
                case "background":
                    return {"status": "ok", "background": bool(frame.get("busy"))}
                case "save":
                    return _save(shell, frame, fds)
                case "load":
                    return _load(shell, frame, fds)
                case what:
                    return _failure("NotImplementedError", f"no question {what!r}")
    except BaseException as error:
        return _failure(type(error).__name__, str(error))
    finally:
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)


def _save(shell: Shell, frame: Frame, fds: list[int]) -> dict[str, Any]:
    from kernelbox.inside import session

    with open(fds.pop(), "r+b") as file:
        file.seek(frame["start"])
        return {"status": "ok", **session.dump(shell, file, whole=bool(frame.get("whole")))}


def _load(shell: Shell, frame: Frame, fds: list[int]) -> dict[str, Any]:
    from kernelbox.inside import session

    with open(fds.pop(), "rb") as file:
        file.seek(frame["start"])
        facts = session.load(
            shell,
            file,
            pieces=int(frame["pieces"]),
            manifest=int(frame["manifest"]),
            reseed=bool(frame.get("reseed")),
        )
        if frame.get("reseed"):
            from kernelbox.inside.interpreter import reseed

            reseed(shell.user_ns)
        return {"status": "ok", **facts}


def _failure(ename: str, evalue: str) -> dict[str, Any]:
    return {"status": "error", "ename": ename, "evalue": evalue, "traceback": []}


def _complete(shell: Shell, code: str, *, cursor: int) -> dict[str, Any]:
    from IPython.core.completer import provisionalcompleter, rectify_completions

    with provisionalcompleter():
        found = list(rectify_completions(code, shell.Completer.completions(code, cursor)))
    return {
        "status": "ok",
        "matches": [match.text for match in found],
        "cursor_start": found[0].start if found else cursor,
        "cursor_end": found[0].end if found else cursor,
        "metadata": {
            "_jupyter_types_experimental": [
                {
                    "start": match.start,
                    "end": match.end,
                    "text": match.text,
                    "type": match.type,
                    "signature": match.signature,
                }
                for match in found
            ]
        },
    }


def _inspect(shell: Shell, frame: Frame) -> dict[str, Any]:
    from IPython.utils.tokenutil import token_at_cursor

    name = token_at_cursor(frame["code"], frame["cursor_pos"])
    try:
        data = shell.object_inspect_mime(name, detail_level=frame.get("detail_level", 0))
    except KeyError:
        return {"status": "ok", "found": False, "data": {}, "metadata": {}}
    return {"status": "ok", "found": True, "data": data, "metadata": {}}


def _is_complete(shell: Shell, code: str) -> dict[str, Any]:
    status, indent = shell.input_transformer_manager.check_complete(code)
    reply: dict[str, Any] = {"status": status}
    if status == "incomplete":
        reply["indent"] = " " * (indent or 0)
    return reply
