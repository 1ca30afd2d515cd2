"""Requests of our own lane about executions: to run one, to follow it, to stop it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelbox.errors import ExecutionNotFound, Unsupported
from kernelbox.warden.execution import Execution, InputRequest
from kernelbox.warden.lanes.native.listening import mismatch
from kernelbox.warden.once import Known
from kernelbox.wire import Frame

if TYPE_CHECKING:
    from kernelbox.warden.kernel import Kernel
    from kernelbox.warden.lanes.native.client import NativeClient


def check_fork(client: NativeClient, kernel: Kernel, what: str) -> None:
    """Raise if this needs a kernel of our own, and it is another's."""
    if not client.family.can_fork:
        identity = kernel.identity
        raise Unsupported(
            f"kernel {identity.name!r} is a foreign kernel ({identity.kernel_type}); "
            f"{what} needs our own python3 kernel"
        )


def _execute(client: NativeClient, request: Any, frame: Frame) -> None:
    kernel = client.target(frame)
    if frame.get("atomic"):
        check_fork(client, kernel, "an atomic cell")
    key, fingerprint = str(frame.get("key") or ""), str(frame.get("fingerprint"))
    if key and (before := kernel.once.find(key, fingerprint)) is not None:
        _join(client, request, kernel, before, frame)
        return
    expected = frame.get("expect_epoch")
    if expected is not None and expected != kernel.truth.epoch:
        raise mismatch(expected, kernel)

    def wants_input(asked: InputRequest) -> None:
        client.send({"id": request, "input": asked._asdict()})

    execution = Execution(
        id=str(frame["execution_id"]),
        code=frame["code"],
        language=kernel.language_for(frame.get("language", "python")),
        timeout=frame.get("timeout"),
        limit=frame.get("limit", 10_000),
        interrupt_grace=frame.get("interrupt_grace", 2.0),
        kill_grace=frame.get("kill_grace", 5.0),
        expect_epoch=expected,
        stdin=bool(frame.get("stdin")),
        atomic=bool(frame.get("atomic")),
        undo=int(frame.get("undo") or 0) if client.family.can_fork else 0,
        undo_cost=float(frame.get("undo_cost") or 0.05),
        most_checkpoints=int(frame.get("most_checkpoints") or 20),
        on_input=wants_input if frame.get("stdin") else None,
    )
    client.listening.listen(
        request,
        execution,
        kernel,
        stream=bool(frame.get("stream")),
        interrupts=_interrupts(frame),
    )
    if key:
        kernel.once.begin(key, fingerprint, execution)
    client.listening.asked(kernel, execution)
    kernel.submit(execution)


def _join(client: NativeClient, request: Any, kernel: Kernel, known: Known, frame: Frame) -> None:
    """The same was asked for before: it is not run again, and this caller hears what came."""
    execution, result = known
    stream = bool(frame.get("stream"))
    if execution is not None and result is None:
        client.listening.listen(
            request, execution, kernel, stream=stream, interrupts=_interrupts(frame)
        )
    elif execution is not None and stream and kernel.shelf.find(execution.id) is execution:
        client.listening.listen(request, execution, kernel, stream=True)
    elif result is not None:
        client.send_result(request, result)


def _interrupts(frame: Frame) -> bool:
    return frame.get("on_disconnect") == "interrupt"


def _attach(client: NativeClient, request: Any, frame: Frame) -> None:
    """Come back to an execution, running or finished, from an event number on."""
    kernel = client.target(frame)
    execution = kernel.find_execution(str(frame["execution_id"]))
    start = int(frame.get("start", 0))
    client.listening.listen(request, execution, kernel, stream=True, start=start)


def _input(client: NativeClient, request: Any, frame: Frame) -> None:
    execution_id, number = str(frame.get("execution_id")), frame.get("number")
    client.listening.answer_input(execution_id, number, frame.get("value"))


def _interrupt(client: NativeClient, request: Any, frame: Frame) -> None:
    client.reply(request, {"interrupted": client.target(frame).interrupt()})


def _cancel(client: NativeClient, request: Any, frame: Frame) -> None:
    done = client.target(frame).cancel(str(frame["execution_id"]))
    client.reply(request, {"cancelled": done})


def _spool(client: NativeClient, request: Any, frame: Frame) -> None:
    execution = client.target(frame).find_execution(str(frame["execution_id"]))
    if execution.spool is None:
        raise ExecutionNotFound(f"execution {execution.id!r} has not started; it has no output yet")
    client.reply(request, execution.spool.manifest())


REQUESTS = {
    "execute": _execute,
    "attach": _attach,
    "input": _input,
    "interrupt": _interrupt,
    "cancel": _cancel,
    "spool": _spool,
}
