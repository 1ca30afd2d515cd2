"""Our own lane: frames on a Unix socket, one connection per conversation."""

from __future__ import annotations

import os
import select
import socket
import time
from typing import TYPE_CHECKING, Any

from kernelbox.errors import (
    BoxError,
    EpochMismatch,
    ExecutionNotFound,
    KernelNotFound,
    Unsupported,
    to_wire,
)
from kernelbox.reactor import Peer
from kernelbox.spool import Event
from kernelbox.warden.branching import left_behind
from kernelbox.warden.execution import Execution, Finisher, Result, without_bulk
from kernelbox.warden.member import cell_stack
from kernelbox.warden.once import Known
from kernelbox.wire import Frame, GarbledFrame, build_id

if TYPE_CHECKING:
    from kernelbox.warden.household import Warden
    from kernelbox.warden.kernel import Kernel

_ENOUGH = 1 << 20
_BATCH = 1 << 18
_STACK_PATIENCE = 0.25


class Follower:
    """Sends the events of one execution to a client as fast as it takes them.

    A client that is slower than the cell is served from the spool, so nothing piles up here.
    """

    def __init__(
        self, client: NativeClient, request: Any, execution: Execution, start: int
    ) -> None:
        self._client = client
        self._request = request
        self._execution = execution
        self._next = start
        self._result: Result | None = None
        if not execution.finished:
            execution.subscribers.append(self.event)

    def event(self, number: int, event: Event) -> None:
        if number == self._next and self._client.backlog < _ENOUGH:
            self._next += 1
            self._client.send({"id": self._request, "n": number, "event": event})

    def result(self, result: Result) -> None:
        self._result = result
        self.drained()

    def drained(self) -> None:
        """There is room again: catch up from the spool, and close with the result."""
        spool = self._execution.spool
        while spool is not None and self._next < spool.count and self._client.backlog < _ENOUGH:
            for number, event in spool.read(self._next, at_most=_BATCH):
                self._client.send({"id": self._request, "n": number, "event": event})
                self._next = number + 1
        if self._result is not None and (spool is None or self._next >= spool.count):
            self.stop()
            self._client.followers.discard(self)
            self._client.send_result(self._request, self._result)
            self._result = None

    def stop(self) -> None:
        if self.event in self._execution.subscribers:
            self._execution.subscribers.remove(self.event)


class NativeClient:
    """One connection: requests in, events and replies out."""

    def __init__(self, family: Warden, sock: socket.socket, *, kernel: Kernel | None) -> None:
        self._family = family
        self._kernel = kernel
        self._running: dict[str, Execution] = {}
        self._listening: list[tuple[Execution, Finisher]] = []
        self._interrupt_when_gone: set[str] = set()
        self.followers: set[Follower] = set()
        self.owns: Kernel | None = None
        self._peer = Peer(
            family.reactor, sock, on_frame=self._asked, on_close=self._left, on_drain=self._drained
        )

    @property
    def backlog(self) -> int:
        return self._peer.backlog

    def send(self, frame: Frame) -> None:
        self._peer.send(frame)

    def send_result(self, request: Any, result: Result) -> None:
        """Whatever is in it, a caller who waits for a result gets one."""
        try:
            self.send({"id": request, "result": result})
        except GarbledFrame:
            self.send({"id": request, "result": without_bulk(result)})

    def is_for(self, kernel: Kernel) -> bool:
        """Whether it came for this kernel, or owns it."""
        return kernel in (self._kernel, self.owns)

    def close(self) -> None:
        """Hang up without telling the family."""
        self._peer.close()

    def hang_up(self) -> None:
        """Say goodbye to who came for a kernel that has ended."""
        self.owns = None
        self.flush(0.2)
        self._peer.close()
        self._family.client_left(self)

    def flush(self, patience: float) -> None:
        """Give what is under way a moment to leave, when the warden is about to end."""
        deadline = time.monotonic() + patience
        while self._peer.backlog and not self._peer.closed and time.monotonic() < deadline:
            select.select([], [self._peer.fd], [], 0.05)
            self._peer._writable()

    def _asked(self, frame: Frame) -> None:
        request = frame.get("id")
        try:
            handler = getattr(self, f"_op_{frame.get('op')}", None)
            if handler is None:
                raise BoxError(f"this kernel does not know the request {frame.get('op')!r}")
            handler(request, frame)
        except BoxError as error:
            self.send({"id": request, **to_wire(error)})
        except Exception as error:  # noqa: BLE001
            # Our own bug must not take the kernel down, nor leave the caller waiting.
            self.send({"id": request, **to_wire(BoxError(f"internal error: {error!r}"))})

    def _reply(self, request: Any, content: dict[str, Any] | BoxError) -> None:
        if isinstance(content, BoxError):
            self.send({"id": request, **to_wire(content)})
        else:
            self.send({"id": request, "reply": content})

    def _target(self, frame: Frame) -> Kernel:
        kernel_id = frame.get("kernel_id")
        if kernel_id is None and self._kernel is not None:
            return self._kernel
        household = self._family.households.get(str(kernel_id))
        if household is None:
            raise KernelNotFound(f"this family has no kernel {kernel_id!r}")
        return household.kernel

    def _left(self) -> None:
        for execution, finisher in self._listening:
            if finisher in execution.finishers:
                execution.finishers.remove(finisher)
            if execution.id in self._interrupt_when_gone and not execution.awaited:
                self._target({}).cancel(execution.id)
        for execution in list(self._running.values()):
            if self._kernel is not None and execution.on_input is not None:
                execution.on_input = None
                self._kernel.answer_input(execution, None)
        for follower in self.followers:
            follower.stop()
        self._family.client_left(self)

    def _drained(self) -> None:
        for follower in list(self.followers):
            follower.drained()

    # -- requests of clients ----------------------------------------------------------------

    def _op_execute(self, request: Any, frame: Frame) -> None:
        kernel = self._target(frame)
        if frame.get("atomic"):
            self._check_fork(kernel, "an atomic cell")
        key, fingerprint = str(frame.get("key") or ""), str(frame.get("fingerprint"))
        if key and (before := kernel.once.find(key, fingerprint)) is not None:
            self._join(request, before, frame)
            return
        expected = frame.get("expect_epoch")
        if expected is not None and expected != kernel.truth.epoch:
            raise _mismatch(expected, kernel)

        def wants_input(prompt: str, password: bool) -> None:
            self.send({"id": request, "input": {"prompt": prompt, "password": password}})

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
            undo=int(frame.get("undo") or 0) if self._family.can_fork else 0,
            undo_cost=float(frame.get("undo_cost") or 0.05),
            most_checkpoints=int(frame.get("most_checkpoints") or 20),
            on_input=wants_input if frame.get("stdin") else None,
        )
        self._listen(request, execution, kernel, stream=bool(frame.get("stream")))
        if key:
            kernel.once.begin(key, fingerprint, execution)
        self._running[execution.id] = execution
        if frame.get("on_disconnect") == "interrupt":
            self._interrupt_when_gone.add(execution.id)
        kernel.submit(execution)

    def _listen(
        self, request: Any, execution: Execution, kernel: Kernel, *, stream: bool, start: int = 0
    ) -> None:
        """Answer with the execution's result when it is there, and its events before if wanted."""
        follower = Follower(self, request, execution, start) if stream else None

        def finished(result: Result) -> None:
            self._running.pop(execution.id, None)
            refusal = result.get("refusal")
            if result.get("mismatch"):
                refusal = _mismatch(execution.expect_epoch, kernel)
            if refusal is not None:
                self._refused(request, follower, refusal)
            elif follower is not None:
                follower.result(result)
            else:
                self.send_result(request, result)

        if follower is not None:
            self.followers.add(follower)
        if execution.result is not None:
            finished(execution.result)
            return
        execution.finishers.append(finished)
        self._listening = [pair for pair in self._listening if not pair[0].finished]
        self._listening.append((execution, finished))
        if follower is not None:
            follower.drained()

    def _join(self, request: Any, known: Known, frame: Frame) -> None:
        """The same was asked for before: it is not run again, and this caller hears what came."""
        kernel = self._target(frame)
        execution, result = known
        stream = bool(frame.get("stream"))
        if execution is not None and result is None:
            self._listen(request, execution, kernel, stream=stream)
            if frame.get("on_disconnect") == "interrupt":
                self._interrupt_when_gone.add(execution.id)
        elif execution is not None and stream and kernel.shelf.find(execution.id) is execution:
            self._listen(request, execution, kernel, stream=True)
        elif result is not None:
            self.send_result(request, result)

    def _refused(self, request: Any, follower: Follower | None, refusal: BoxError) -> None:
        if follower is not None:
            follower.stop()
            self.followers.discard(follower)
        self._reply(request, refusal)

    def _check_fork(self, kernel: Kernel, what: str) -> None:
        if not self._family.can_fork:
            identity = kernel.identity
            raise Unsupported(
                f"kernel {identity.name!r} is a foreign kernel ({identity.kernel_type}); "
                f"{what} needs our own python3 kernel"
            )

    # -- time travel ------------------------------------------------------------------------

    def _op_checkpoint(self, request: Any, frame: Frame) -> None:
        kernel = self._target(frame)
        self._check_fork(kernel, "a checkpoint")
        kernel.travel.take(frame, lambda content: self._reply(request, content))

    def _op_checkpoints(self, request: Any, frame: Frame) -> None:
        self._reply(request, {"checkpoints": self._target(frame).travel.listed()})

    def _op_drop_checkpoint(self, request: Any, frame: Frame) -> None:
        self._target(frame).travel.drop(str(frame["checkpoint"]))
        self._reply(request, {})

    def _op_rewind(self, request: Any, frame: Frame) -> None:
        kernel = self._target(frame)
        kernel.travel.rewind(
            str(frame["checkpoint"]), lambda content: self._reply(request, content)
        )

    def _op_undo(self, request: Any, frame: Frame) -> None:
        kernel = self._target(frame)
        kernel.travel.undo(int(frame["cells"]), lambda content: self._reply(request, content))

    # -- sessions as files ------------------------------------------------------------------

    def _op_save(self, request: Any, frame: Frame) -> None:
        """Write the session into a file that the client has begun, and will complete."""
        kernel = self._target(frame)
        self._check_fork(kernel, "saving a session")
        fd = _open(frame["path"], os.O_RDWR)
        fields = {"start": int(frame["start"])}

        def answered(content: dict[str, Any] | None) -> None:
            facts = _success(content, "saved")
            if not isinstance(facts, BoxError):
                facts = {**facts, "profile": self._family.profile}
            self._reply(request, facts)

        kernel.ask("save", fields, on_answer=answered, fds=[fd])

    def _op_load(self, request: Any, frame: Frame) -> None:
        """Read a session that the client has checked into this kernel."""
        kernel = self._target(frame)
        self._check_fork(kernel, "loading a session")
        fd = _open(frame["path"], os.O_RDONLY)

        def answered(content: dict[str, Any] | None) -> None:
            facts = _success(content, "loaded")
            if isinstance(facts, BoxError):
                self._reply(request, facts)
                return
            kernel.identity.made_by = "load"
            missing = {**(frame.get("failures") or {}), **facts["failures"]}
            for note in (*facts["notes"], *left_behind(missing, "loaded")):
                kernel.identity.note(note)
            self._family.kernel_changed(kernel)
            # Loading is what it is busy with until this answer has been given.
            self._reply(request, {"record": {**kernel.record(), "status": "idle"}})

        fields = {"start": 0, "pieces": frame["pieces"], "manifest": frame["manifest"]}
        kernel.ask("load", fields, on_answer=answered, fds=[fd])

    # -- requests of clients, continued -----------------------------------------------------

    def _op_attach(self, request: Any, frame: Frame) -> None:
        """Come back to an execution, running or finished, from an event number on."""
        kernel = self._target(frame)
        execution = kernel.find_execution(str(frame["execution_id"]))
        self._listen(request, execution, kernel, stream=True, start=int(frame.get("start", 0)))

    def _op_input(self, request: Any, frame: Frame) -> None:
        execution = self._running.get(str(frame.get("execution_id")))
        if execution is not None:
            self._target(frame).answer_input(execution, frame.get("value"))

    def _op_install(self, request: Any, frame: Frame) -> None:
        kernel = self._target(frame)
        self._check_fork(kernel, "installing packages")
        self._family.install(kernel, frame, lambda content: self._reply(request, content))

    def _op_interrupt(self, request: Any, frame: Frame) -> None:
        self._reply(request, {"interrupted": self._target(frame).interrupt()})

    def _op_cancel(self, request: Any, frame: Frame) -> None:
        done = self._target(frame).cancel(str(frame["execution_id"]))
        self._reply(request, {"cancelled": done})

    def _op_restart(self, request: Any, frame: Frame) -> None:
        from kernelbox.errors import StartupFailed

        kernel = self._target(frame)

        def ready(failure: str | None) -> None:
            if failure is None:
                self._reply(request, {"record": kernel.record()})
            else:
                self._reply(request, StartupFailed(f"kernel {kernel.identity.name!r}: {failure}"))

        kernel.succession.restart(ready)

    def _op_status(self, request: Any, frame: Frame) -> None:
        kernel = self._target(frame)
        status = self._family.describe(kernel)
        member = kernel.member
        if status["running"] is None or member is None or not member.request_stack():
            self._reply(request, status)
            return
        deadline = time.monotonic() + _STACK_PATIENCE
        parts: list[str] = []

        def collect() -> None:
            fresh = member.read_stack()
            parts.append(fresh)
            if (fresh or not any(parts)) and time.monotonic() < deadline:
                self._family.reactor.call_later(0.005, collect)
                return
            status["stack"] = cell_stack("".join(parts)) or None
            self._reply(request, status)

        self._family.reactor.call_later(0.002, collect)

    def _op_describe(self, request: Any, frame: Frame) -> None:
        self._reply(request, {"record": self._target(frame).record()})

    def _op_spool(self, request: Any, frame: Frame) -> None:
        kernel = self._target(frame)
        execution = kernel.find_execution(str(frame["execution_id"]))
        if execution.spool is None:
            raise ExecutionNotFound(
                f"execution {execution.id!r} has not started; it has no output yet"
            )
        self._reply(request, execution.spool.manifest())

    def _op_ask(self, request: Any, frame: Frame) -> None:
        """Completion, inspection and the like."""
        kernel = self._target(frame)

        def answered(content: dict[str, Any] | None) -> None:
            if content is None:
                self._reply(request, BoxError("the kernel died before it could answer; ask again"))
            else:
                self._reply(request, content)

        kernel.ask(str(frame["what"]), dict(frame.get("fields") or {}), on_answer=answered)

    # -- requests of the keeper -------------------------------------------------------------

    def _op_watch(self, request: Any, frame: Frame) -> None:
        """A keeper introduces itself; it is told of every end from now on."""
        self._family.watchers.add(self)
        records = [house.kernel.record() for house in self._family.households.values()]
        settings = self._family.settings
        self._reply(
            request,
            {
                "records": records,
                "warden": os.getpid(),
                "build": build_id(),
                "settings": settings.to_wire() if settings else None,
            },
        )

    def _only_for_keepers(self) -> None:
        if self not in self._family.watchers:
            raise BoxError("only a keeper may ask that")

    def _op_prime(self, request: Any, frame: Frame) -> None:
        self._only_for_keepers()
        self._family.prime(frame, lambda content: self._reply(request, content))

    def _op_become(self, request: Any, frame: Frame) -> None:
        self._only_for_keepers()
        self._family.become(frame, lambda content: self._reply(request, content))

    def _op_branch(self, request: Any, frame: Frame) -> None:
        self._only_for_keepers()
        kernel = self._target({"kernel_id": frame["source"]})
        self._family.branch(kernel, frame, lambda content: self._reply(request, content))

    def _op_own(self, request: Any, frame: Frame) -> None:
        """The kernel ends when this connection does."""
        self.owns = self._target(frame)
        self._reply(request, {})

    def _op_end(self, request: Any, frame: Frame) -> None:
        kernel = self._target(frame)
        self._reply(request, {"ended": True})
        self._family.end_kernel(kernel, str(frame.get("cause") or "destroyed"))

    def _op_retire(self, request: Any, frame: Frame) -> None:
        self._only_for_keepers()
        kernel = self._target(frame)
        self._family.retire_if_idle(
            kernel, float(frame["idle"]), lambda content: self._reply(request, content)
        )


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


def _mismatch(expected: Any, kernel: Kernel) -> EpochMismatch:
    loss = kernel.truth.loss
    why = f" ({loss.cause})" if loss else ""
    name, epoch = kernel.identity.name, kernel.truth.epoch
    what = f"its namespace was replaced{why}" if expected < epoch else "it has not come to that yet"
    return EpochMismatch(
        f"kernel {name!r} is at epoch {epoch}, not {expected}: {what}. "
        f"Nothing was run. Rebuild the state, then send expect_epoch={epoch}.",
        expected=expected,
        epoch=epoch,
        state=loss.state if loss else "lost",
        cause=loss.cause if loss else None,
    )
