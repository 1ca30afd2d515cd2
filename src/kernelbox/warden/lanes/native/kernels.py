"""Requests of our own lane about a kernel: how it is, a fresh start, packages, its end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kernelbox.errors import BoxError, StartupFailed
from kernelbox.warden.lanes.native.executions import check_fork
from kernelbox.warden.member import cell_stack
from kernelbox.wire import Frame

if TYPE_CHECKING:
    from kernelbox.warden.lanes.native.client import NativeClient

_STACK_PATIENCE = 0.25


def _status(client: NativeClient, request: Any, frame: Frame) -> None:
    kernel = client.target(frame)
    status = client.family.describe(kernel)
    member = kernel.member
    if status["running"] is None or member is None or not member.request_stack():
        client.reply(request, status)
        return
    deadline = time.monotonic() + _STACK_PATIENCE
    parts: list[str] = []

    def collect() -> None:
        fresh = member.read_stack()
        parts.append(fresh)
        if (fresh or not any(parts)) and time.monotonic() < deadline:
            client.family.reactor.call_later(0.005, collect)
            return
        status["stack"] = cell_stack("".join(parts)) or None
        client.reply(request, status)

    client.family.reactor.call_later(0.002, collect)


def _describe(client: NativeClient, request: Any, frame: Frame) -> None:
    client.reply(request, {"record": client.target(frame).record()})


def _ask(client: NativeClient, request: Any, frame: Frame) -> None:
    """Completion, inspection and the like."""

    def answered(content: dict[str, Any] | None) -> None:
        if content is None:
            client.reply(request, BoxError("the kernel died before it could answer; ask again"))
        else:
            client.reply(request, content)

    fields = dict(frame.get("fields") or {})
    client.target(frame).ask(str(frame["what"]), fields, on_answer=answered)


def _install(client: NativeClient, request: Any, frame: Frame) -> None:
    kernel = client.target(frame)
    check_fork(client, kernel, "installing packages")
    client.family.install(kernel, frame, lambda content: client.reply(request, content))


def _restart(client: NativeClient, request: Any, frame: Frame) -> None:
    kernel = client.target(frame)

    def ready(failure: str | None) -> None:
        if failure is None:
            client.reply(request, {"record": kernel.record()})
        else:
            client.reply(request, StartupFailed(f"kernel {kernel.identity.name!r}: {failure}"))

    kernel.succession.restart(ready)


def _own(client: NativeClient, request: Any, frame: Frame) -> None:
    """The kernel ends when this connection does."""
    client.owns = client.target(frame)
    client.reply(request, {})


def _end(client: NativeClient, request: Any, frame: Frame) -> None:
    kernel = client.target(frame)
    client.reply(request, {"ended": True})
    client.family.end_kernel(kernel, str(frame.get("cause") or "destroyed"))


REQUESTS = {
    "status": _status,
    "describe": _describe,
    "ask": _ask,
    "install": _install,
    "restart": _restart,
    "own": _own,
    "end": _end,
}
