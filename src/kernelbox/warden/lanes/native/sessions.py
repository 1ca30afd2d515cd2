"""Requests of our own lane about a session as a whole: going back, and sessions as files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from kernelbox.errors import BoxError
from kernelbox.warden.branching import left_behind
from kernelbox.warden.lanes.native.executions import check_fork
from kernelbox.wire import Frame

if TYPE_CHECKING:
    from kernelbox.warden.lanes.native.client import NativeClient


def _checkpoint(client: NativeClient, request: Any, frame: Frame) -> None:
    kernel = client.target(frame)
    check_fork(client, kernel, "a checkpoint")
    kernel.travel.take(frame, lambda content: client.reply(request, content))


def _checkpoints(client: NativeClient, request: Any, frame: Frame) -> None:
    client.reply(request, {"checkpoints": client.target(frame).travel.listed()})


def _drop_checkpoint(client: NativeClient, request: Any, frame: Frame) -> None:
    client.target(frame).travel.drop(str(frame["checkpoint"]))
    client.reply(request, {})


def _rewind(client: NativeClient, request: Any, frame: Frame) -> None:
    travel = client.target(frame).travel
    travel.rewind(str(frame["checkpoint"]), lambda content: client.reply(request, content))


def _undo(client: NativeClient, request: Any, frame: Frame) -> None:
    travel = client.target(frame).travel
    travel.undo(int(frame["cells"]), lambda content: client.reply(request, content))


def _save(client: NativeClient, request: Any, frame: Frame) -> None:
    """Write the session into a file that the client has begun, and will complete."""
    kernel = client.target(frame)
    check_fork(client, kernel, "saving a session")
    fd = _open(frame["path"], os.O_RDWR)
    fields = {"start": int(frame["start"])}

    def answered(content: dict[str, Any] | None) -> None:
        facts = _success(content, "saved")
        if not isinstance(facts, BoxError):
            facts = {**facts, "profile": client.family.profile}
        client.reply(request, facts)

    kernel.ask("save", fields, on_answer=answered, fds=[fd])


def _load(client: NativeClient, request: Any, frame: Frame) -> None:
    """Read a session that the client has checked into this kernel."""
    kernel = client.target(frame)
    check_fork(client, kernel, "loading a session")
    fd = _open(frame["path"], os.O_RDONLY)

    def answered(content: dict[str, Any] | None) -> None:
        facts = _success(content, "loaded")
        if isinstance(facts, BoxError):
            client.reply(request, facts)
            return
        kernel.identity.made_by = "load"
        missing = {**(frame.get("failures") or {}), **facts["failures"]}
        for note in (*facts["notes"], *left_behind(missing, "loaded")):
            kernel.identity.note(note)
        client.family.kernel_changed(kernel)
        # Loading is what it is busy with until this answer has been given.
        client.reply(request, {"record": {**kernel.record(), "status": "idle"}})

    fields = {"start": 0, "pieces": frame["pieces"], "manifest": frame["manifest"]}
    kernel.ask("load", fields, on_answer=answered, fds=[fd])


def _open(path: object, flags: int) -> int:
    try:
        return os.open(str(path), flags | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise BoxError(f"{path!r} cannot be opened: {error.strerror}") from None


def _success(content: dict[str, Any] | None, done: str) -> dict[str, Any] | BoxError:
    if content is None:
        return BoxError(f"the kernel died before its session was {done}")
    if content.get("status") != "ok":
        ename, evalue = content.get("ename"), content.get("evalue")
        return BoxError(f"the session could not be {done}: {ename}: {evalue}")
    return content


REQUESTS = {
    "checkpoint": _checkpoint,
    "checkpoints": _checkpoints,
    "drop_checkpoint": _drop_checkpoint,
    "rewind": _rewind,
    "undo": _undo,
    "save": _save,
    "load": _load,
}
