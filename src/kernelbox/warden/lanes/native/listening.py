"""The executions that one client waits for, and what becomes of them when it leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernelbox.errors import BoxError, EpochMismatch
from kernelbox.warden.execution import Execution, Finisher, Result
from kernelbox.warden.lanes.native.following import Follower

if TYPE_CHECKING:
    from kernelbox.warden.kernel import Kernel
    from kernelbox.warden.lanes.native.client import NativeClient


@dataclass(slots=True, eq=False)
class _Wait:
    """One request that is answered with the result of an execution."""

    kernel: Kernel
    execution: Execution
    finisher: Finisher
    interrupts: bool
    """Whether the execution is to be interrupted if nobody waits for it any more."""


class Listening:
    """Answers requests with results when they are there, and with events before if wanted."""

    def __init__(self, client: NativeClient) -> None:
        self._client = client
        self._waits: list[_Wait] = []
        self._followers: set[Follower] = set()
        self._asked: dict[str, tuple[Kernel, Execution]] = {}

    def asked(self, kernel: Kernel, execution: Execution) -> None:
        """This client is whose execution it is: it answers what the code asks for."""
        self._asked[execution.id] = (kernel, execution)

    def listen(
        self,
        request: Any,
        execution: Execution,
        kernel: Kernel,
        *,
        stream: bool,
        start: int = 0,
        interrupts: bool = False,
    ) -> None:
        client = self._client
        follower: Follower | None = None

        def finished(result: Result) -> None:
            self._asked.pop(execution.id, None)
            refusal = result.get("refusal")
            if result.get("mismatch"):
                refusal = mismatch(execution.expect_epoch, kernel)
            if refusal is not None:
                self._refused(request, follower, refusal)
            elif follower is None:
                client.send_result(request, result)
            elif follower.result(result):
                self._followers.discard(follower)

        if stream:
            follower = Follower(client, request, execution=execution, start=start)
            self._followers.add(follower)
        if execution.result is not None:
            finished(execution.result)
            return
        execution.finishers.append(finished)
        self._waits = [wait for wait in self._waits if not wait.execution.finished]
        self._waits.append(_Wait(kernel, execution, finished, interrupts))
        if follower is not None:
            follower.drained()

    def answer_input(self, execution_id: str, number: Any, value: str | None) -> None:
        if (asked := self._asked.get(execution_id)) is not None:
            kernel, execution = asked
            kernel.answer_input(execution, number, value)

    def drained(self) -> None:
        """The client takes more again."""
        for follower in list(self._followers):
            if follower.drained():
                self._followers.discard(follower)

    def left(self) -> None:
        """The client is gone."""
        for wait in self._waits:
            if wait.finisher in wait.execution.finishers:
                wait.execution.finishers.remove(wait.finisher)
            if wait.interrupts and not wait.execution.awaited:
                wait.kernel.cancel(wait.execution.id)
        for kernel, execution in list(self._asked.values()):
            if execution.on_input is not None:
                execution.on_input = None
                kernel.answer_input(execution, execution.asked, None)
        for follower in self._followers:
            follower.stop()

    def _refused(self, request: Any, follower: Follower | None, refusal: BoxError) -> None:
        if follower is not None:
            follower.stop()
            self._followers.discard(follower)
        self._client.reply(request, refusal)


def mismatch(expected: Any, kernel: Kernel) -> EpochMismatch:
    """Of who counted on another epoch than there is: nothing was run."""
    truth, name = kernel.truth, kernel.identity.name
    loss, epoch = truth.loss, truth.epoch
    why = f" ({loss.cause})" if loss else ""
    what = f"its namespace was replaced{why}" if expected < epoch else "it has not come to that yet"
    return EpochMismatch(
        f"kernel {name!r} is at epoch {epoch}, not {expected}: {what}. "
        f"Nothing was run. Rebuild the state, then send expect_epoch={epoch}.",
        expected=expected,
        epoch=epoch,
        state=loss.state if loss else "lost",
        cause=loss.cause if loss else None,
    )
