"""Kernels as they are: looking at them, stopping what they do, renewing them, ending them."""

from __future__ import annotations

from typing import Any

from kernelbox.client.calls import START_MARGIN, Calls
from kernelbox.client.effects import Call
from kernelbox.client.meaning import KernelLike, wanted_kernel
from kernelbox.result import KernelRecord


def list_kernels(calls: Calls, *, refresh: bool) -> Call[list[KernelRecord]]:
    reply = yield from calls.keeper({"op": "list", "refresh": refresh})
    return [KernelRecord.from_wire(record) for record in reply["kernels"]]


def status(calls: Calls, kernel: KernelLike) -> Call[dict[str, Any]]:
    return (yield from calls.kernel(kernel, {"op": "status"}))


def complete(calls: Calls, kernel: KernelLike, code: str, cursor: int | None) -> Call[list[str]]:
    fields = {"code": code, "cursor_pos": len(code) if cursor is None else cursor}
    reply = yield from calls.kernel(kernel, {"op": "ask", "what": "complete", "fields": fields})
    return list(reply.get("matches", ()))


def interrupt(calls: Calls, kernel: KernelLike) -> Call[bool]:
    reply = yield from calls.kernel(kernel, {"op": "interrupt"})
    return bool(reply["interrupted"])


def cancel(calls: Calls, kernel: KernelLike, execution_id: str) -> Call[bool]:
    reply = yield from calls.kernel(kernel, {"op": "cancel", "execution_id": execution_id})
    return bool(reply["cancelled"])


def restart(calls: Calls, kernel: KernelLike) -> Call[KernelRecord]:
    patience = calls.settings.start_timeout + START_MARGIN
    reply = yield from calls.kernel(kernel, {"op": "restart"}, patience=patience)
    return KernelRecord.from_wire(reply["record"])


def destroy(calls: Calls, kernel: KernelLike) -> Call[bool]:
    reply = yield from calls.keeper({"op": "destroy", "kernel": wanted_kernel(kernel)})
    calls.forget(kernel)
    return bool(reply["destroyed"])


def wipe(calls: Calls) -> Call[list[str]]:
    reply = yield from calls.keeper({"op": "wipe"})
    calls.forget_all()
    return list(reply["destroyed"])
