"""A kernel: a queue in front of one interpreter, and the truth about its state."""

from __future__ import annotations

import functools
import os
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from kernelbox.errors import BoxError, ExecutionNotFound
from kernelbox.inside import linux, scope
from kernelbox.reactor import Reactor, Timer
from kernelbox.spool import Event
from kernelbox.warden.background import Background
from kernelbox.warden.bash_desk import BashDesk
from kernelbox.warden.bash_member import BashMember
from kernelbox.warden.digest import bounded_error, bounded_lines
from kernelbox.warden.events import clean_error, event_of
from kernelbox.warden.execution import Execution, Loss, failed
from kernelbox.warden.exits import Exit, oom_kills
from kernelbox.warden.hands import Hands
from kernelbox.warden.history import History
from kernelbox.warden.identity import Identity
from kernelbox.warden.jobs import ForkOrder, Job, Question
from kernelbox.warden.member import Member, process_facts
from kernelbox.warden.once import Once
from kernelbox.warden.packages import Packages
from kernelbox.warden.parked import Parked
from kernelbox.warden.shelf import Shelf
from kernelbox.warden.timetravel import TimeTravel
from kernelbox.wire import Frame

if TYPE_CHECKING:
    from kernelbox.warden.auditing import Auditor

_BASH_REPEATS, _BASH_PAUSE = 3, 0.3
_STARTUP_MARGIN = 2.0  # of a first start the keeper gives up before

_RECENT = 10
_MOST_NOTES = 30


class Observer(Protocol):
    """A lane that is told all that happens in a kernel (the Jupyter lane)."""

    def started(self, job: Execution | Question) -> None: ...
    def happened(self, job: Execution | Question | None, event: Event) -> None: ...
    def finished(self, job: Execution | Question) -> None: ...


class Landlord(Protocol):
    """The family, as far as a kernel needs it."""

    reactor: Reactor
    hands: Hands | None

    def start_interpreter(self, kernel: Kernel) -> Member: ...
    def start_bash(self, kernel: Kernel, cwd: str) -> BashMember: ...
    def clear_out(self, pid: int) -> None: ...
    def kernel_changed(self, kernel: Kernel) -> None: ...
    def kernel_stirred(self, kernel: Kernel) -> None: ...
    def expect_copy(
        self,
        arrived: Callable[[Any], None],
        failed: Callable[[str], None],
        *,
        patience: float,
    ) -> tuple[Any, Callable[..., None]]: ...
    def parked_arrived(self, parked: Parked) -> None: ...
    def install_asked(self, kernel: Kernel, frame: Frame) -> None: ...


class Kernel:
    """Runs one job at a time; every execution ends in exactly one result, whatever happens."""

    def __init__(self, family: Landlord, identity: Identity, *, shelf: Shelf, epoch: int) -> None:
        self.family = family
        self.identity = identity
        self.shelf = shelf
        self.once = Once(shelf.folder)
        self.epoch = epoch
        self.history = History()
        self.observers: list[Observer] = []
        self.audit: Auditor | None = None
        self.last_used_at = time.time()
        self.attempt_count = 0
        self.ending = False
        self.loss: Loss | None = None  # happened, and not yet told to anybody
        self.member: Member | None = None
        self.bash = BashDesk(self)
        self.current: Job | None = None
        self.last_job: Execution | Question | None = None
        self.ready = False
        self._queue: deque[Job] = deque()
        self._timers: list[Timer] = []
        self._when_ready: list[Callable[[str | None], None]] = []
        self._background = Background()
        self._questions = 0
        self._startup: Execution | None = None  # while it is waited for
        self._handed_out = False
        self.packages = Packages()
        self.travel = TimeTravel(self)
        self.execution_count = 0
        self.cells = 0  # that were run, by whomever; a rewind takes it back
        self.skip_startup = False  # for the next interpreter: it is not a new one
        self._undoing = False

    # -- asking for things ------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Queue a job; it starts when all before it have ended."""
        self.last_used_at = time.time()
        if isinstance(job, Execution) and not job.internal:
            self.attempt_count += 1
        elif isinstance(job, Question):
            self._questions += 1
            job.id = self._questions
        self._queue.append(job)
        if self.ending:
            # It came over a connection that was open when the kernel was ended.
            self._abort_queue(Loss("lost", "the kernel was ended", "KernelEnded"))
            return
        if self.member is None and not self._undoing:
            self.start_interpreter()
        self._pump()

    def language_for(self, wanted: str) -> str:
        """The language a request is run in; raises what this kernel has to say against it."""
        return wanted

    def ask(
        self,
        what: str,
        fields: dict[str, Any],
        *,
        on_answer: Callable[[dict[str, Any] | None], None],
        origin: Any = None,
        fds: list[int] | None = None,
    ) -> None:
        """``fds`` go along and are closed here."""
        self.submit(Question(what, fields, on_answer, origin, fds=fds or []))

    def interrupt(self) -> bool:
        """Interrupt what runs now; False if nothing does."""
        if isinstance(self.current, Execution):
            self.current.cancelled = self.current.cancelled or "interrupted"
            self._interrupt_current()
            return True
        if isinstance(self.current, Question) and self.member is not None:
            self.member.interrupt()
            return True
        return False

    def cancel(self, execution_id: str) -> bool:
        """Dequeue or interrupt that execution and no other."""
        if isinstance(self.current, Execution) and self.current.id == execution_id:
            self.current.cancelled = "cancelled"
            self._interrupt_current()
            return True
        for job in self._queue:
            if isinstance(job, Execution) and job.id == execution_id:
                self._queue.remove(job)
                job.finish(
                    self._kept(failed("Cancelled", "cancelled while it waited; it did not run"))
                )
                return True
        return False

    def find_execution(self, execution_id: str) -> Execution:
        """One that waits, runs or is kept."""
        for job in (self.current, *self._queue):
            if isinstance(job, Execution) and job.id == execution_id:
                return job
        found = self.shelf.find(execution_id)
        if found is None:
            raise ExecutionNotFound(
                f"no execution {execution_id!r} of kernel {self.identity.name!r} is kept; "
                "only the latest are (KERNELBOX_SPOOL_KEEP, KERNELBOX_SPOOL_TOTAL)"
            )
        return found

    def answer_input(self, execution: Execution, value: str | None) -> None:
        """The client's answer to ``input()``; None: it will not answer."""
        if self.current is execution and self.member is not None:
            if value is None:
                self.member.send({"op": "input", "error": "the client gave no answer"})
            else:
                self.member.send({"op": "input", "value": value})

    def restart(self, on_ready: Callable[[str | None], None]) -> None:
        """End the interpreter and start a fresh one; what runs or waits is answered first."""
        loss = Loss("lost", "the kernel was restarted", "KernelRestarted")
        pid = self.member.pid if self.member is not None else 0
        self._abandon(loss)
        self.family.clear_out(pid)
        self.loss = None  # the caller of restart knows
        self.bash.renew(None)
        self.travel.restarted()
        self._when_ready.append(on_ready)
        self.start_interpreter()

    def when_ready(self, callback: Callable[[str | None], None]) -> None:
        """Call back once the interpreter is there; with the failure if it is not."""
        if self.ready:
            callback(None)
        else:
            self._when_ready.append(callback)

    # -- the interpreter --------------------------------------------------------------------

    def start_interpreter(self, member: Member | None = None) -> None:
        """Start one (or take a spare) and make it the caller's: folder, environment, seed."""
        self.ready = self._handed_out = False
        self.member = member or self.family.start_interpreter(self)
        self.member.give_to(self)
        identity = self.identity
        if identity.profile == "open":  # behind walls, folders are others
            identity.note(_why_not_entered(identity.cwd))
        self.member.send(
            {
                "op": "begin",
                "cwd": identity.cwd,
                "environ": identity.environ,
                "open_files": identity.open_files,
                "soft_memory": identity.soft_memory,
            }
        )
        # Now, and not only before its first cell: it may be killed before it has had one.
        self.member.oom_before = oom_kills()
        if self.member.forked:
            self.member_started(self.member)

    def rewind(self, member: Member, cause: str) -> None:
        """Go on with a copy from an earlier time; what runs or waits is answered for."""
        if self.ending:
            member.kill(cause)
            return
        self._abandon(Loss("rewound", f"aborted: {cause}", "Aborted"))
        self.loss = None  # who rewinds knows
        self.adopt(member)

    def undone(self, job: Execution, member: Member, outcome: dict[str, Any], cause: str) -> None:
        """Go on with a copy from before an atomic cell. What waits behind the cell goes on too."""
        if self.current is not job or self.ending:
            member.kill(cause)  # restarted or rewound meanwhile: the job is answered for
            return
        self._undoing = False
        old, self.member = self.member, member
        if old is not None:
            if programs := len(linux.children(old.pid)):
                job.notes.append(f"programs that the session had started run on: {programs}")
            old.kill(cause)
        member.give_to(self)
        self.ready = True
        self.epoch += 1
        self.family.kernel_changed(self)
        waiters = self._take_waiters()
        self.finish(job, self.say_rewound(outcome, cause))
        for callback in waiters:
            callback(None)

    def say_rewound(self, outcome: dict[str, Any], cause: str) -> dict[str, Any]:
        """What is said of a cell that was undone; a loss before it, not told yet, is worse."""
        state = "rewound"
        if self.loss is not None:
            state, cause = self.loss.state, f"{self.loss.cause}; besides, {cause}"
        return {**outcome, "state": state, "cause": cause, "epoch": self.epoch}

    def lost_its_past(self, job: Execution, outcome: dict[str, Any], cause: str) -> None:
        """An atomic cell failed and cannot be undone: nobody may take what it left for good."""
        if self.current is not job or self.ending:
            return
        self._undoing = False
        job.atomic = False
        loss = Loss("lost", cause)
        member, self.member = self.member, None
        self.ready = False
        if member is not None:
            member.kill(cause)
        self.current = None
        self.epoch += 1
        self.loss = loss
        self.family.kernel_changed(self)
        self._answer(job, outcome)
        self._abort_queue(loss)
        self.loss = None  # all who were here have been told
        self.start_interpreter()

    @functools.cached_property
    def not_watched(self) -> list[str]:
        """Folders whose changes are our doing and not the cell's."""
        runtime = os.path.dirname(os.path.realpath(self.shelf.folder))
        sockets = os.path.dirname(os.path.realpath(self.identity.address))
        return [runtime, os.path.dirname(runtime), sockets, os.path.dirname(sockets)]

    @property
    def scope(self) -> Frame | None:
        """What its processes have to keep away from; None: nothing."""
        if not self.identity.scoped:
            return None
        runtime = os.path.dirname(os.path.realpath(self.shelf.folder))
        return scope.around(runtime, self.identity.address)

    def refuse(self, job: Execution, refusal: BoxError) -> None:
        """Answer a job with an error of ours: it was not run."""
        job.finish({"status": "error", "refusal": refusal, **self._truth()})
        for observer in self.observers:
            observer.finished(job)
        self._next()

    def memory(self) -> int:
        """Bytes that the interpreter has in memory."""
        try:
            with open(f"/proc/{self.member.pid if self.member else 0}/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError):
            return 0

    def adopt(self, member: Member) -> None:
        """Take over the copy of a fork, which is somebody already."""
        self.member = member
        member.give_to(self)
        self.ready = True
        for callback in self._take_waiters():
            callback(None)
        self._pump()

    def member_started(self, member: Member) -> None:
        """Its process is there. Nobody has to wait for it to settle in: cells queue until then.

        Startup code is waited for, because it may fail.
        """
        if member is self.member and (self.skip_startup or not self.identity.startup_code):
            waiters = self._take_waiters()
            self._handed_out = bool(waiters)  # its death from now on is a loss, not a bad start
            for callback in waiters:
                callback(None)

    def member_said(self, member: Member, frame: Frame) -> None:
        if member is not self.member:
            return
        match frame.get("op"):
            case "done" if isinstance(self.current, Execution) and not self._undoing:
                self._cell_done(self.current, frame)
            case "input_request" if isinstance(self.current, Execution):
                self._input_wanted(self.current, frame)
            case "answer" if isinstance(self.current, Question):
                self._answered(self.current, frame)
            case "forked" if isinstance(self.current, ForkOrder):
                self._forked(self.current, frame)
            case "guarded" if isinstance(self.current, Execution):
                self.travel.guarded(self.current, frame)
            case "begun":
                self._begun()
            case "install":
                self.family.install_asked(self, frame)
            case _:
                event = event_of(frame)
                if event is None:
                    return
                if event["kind"] == "error" and isinstance(self.current, Execution):
                    self.current.error = event["data"]
                self.happened(event)

    def member_printed(self, member: Member, name: str, text: str) -> None:
        if member is self.member:
            self.happened({"kind": "stream", "name": name, "text": text})

    def member_ended(self, member: Member, exit: Exit) -> None:
        """The death of the interpreter: what ran, and what waited, hears of it now."""
        if member is not self.member:
            return
        self.member = None
        was_ready, self.ready = self.ready, False
        if self.ending or self._undoing:
            return
        if isinstance(self.current, Execution) and self.travel.is_guarded(self.current):
            self._undo(self.current, self._death_outcome(self.current, exit.ename, exit.cause))
            return
        if self._startup is not None:
            startup, self._startup, self.current = self._startup, None, None
            startup.finishers.clear()
            self._cancel_timers()
            self._start_failed(f"the startup code ended the interpreter: {exit.cause}")
            return
        handed_out, self._handed_out = self._handed_out, False
        if not was_ready and not handed_out:
            self._start_failed(f"the interpreter did not come up: {exit.cause}")
            return
        loss = Loss("lost", exit.cause, exit.ename)
        job = self.current
        if isinstance(job, Execution) and job.language == "bash":
            # The shell lives; its command goes on, and its result tells of Python's loss.
            self.epoch += 1
            self.loss = loss
            self.family.kernel_changed(self)
            self._abort_queue(loss)
        else:
            self._lose(loss)
            if isinstance(job, Execution):
                self.loss = None  # that execution's result has told of it
        self.start_interpreter()

    # -- ending -----------------------------------------------------------------------------

    def end(self, cause: str) -> None:
        """Answer everything, end every process. Nothing is accepted afterwards."""
        self.ending = True
        self._abandon(Loss("lost", cause, "KernelEnded"))
        for callback in self._take_waiters():
            callback(cause)
        self.travel.end()
        self.bash.kill(cause)

    def background_work(self) -> bool:
        """Processes that a cell or a bash command left running."""
        if self.family.hands is not None:
            inside = [member.inner_pid for member in self._members() if member.inner_pid]
            return self.family.hands.has_children(inside)
        pids = [p.pid for p in self._members() if p.pid]
        # Bash reaps a job that has ended only when it comes to its next command.
        return any(linux.is_running(child) for pid in pids for child in linux.children(pid))

    def _members(self) -> list[Member | BashMember]:
        return [member for member in (self.member, self.bash.shell) if member is not None]

    @property
    def busy(self) -> bool:
        return self.current is not None or bool(self._queue) or not self.ready

    # -- describing -------------------------------------------------------------------------

    def record(self) -> dict[str, Any]:
        identity = self.identity
        return {
            "kernel_id": identity.kernel_id,
            "connection_file": identity.connection_file,
            "name": identity.name,
            "created_at": identity.created_at,
            "last_used_at": self.last_used_at,
            "status": "busy" if self.current is not None else "idle",
            "session_name": identity.session_name,
            "attempt_count": self.attempt_count,
            "tags": identity.tags,
            "kernel_type": identity.kernel_type,
            "epoch": self.epoch,
            "state": self.loss.state if self.loss else "kept",
            "cause": self.loss.cause if self.loss else None,
            "parent": identity.parent,
            "made_by": identity.made_by,
            "profile": identity.profile,
            "walls": identity.walls,
            "notes": identity.notes,
            "address": identity.address,
        }

    def describe(self) -> dict[str, Any]:
        """For ``status``: what runs, for how long, and what waits."""
        running = None
        if isinstance(self.current, Execution):
            running = {
                "execution_id": self.current.id,
                "language": self.current.language,
                "code": self.current.code[:2000],
                "seconds": round(time.monotonic() - self.current.started_at, 3),
                "timeout": self.current.timeout,
            }
        processes = [
            process_facts(member.pid, member.role) for member in self._members() if member.pid
        ]
        return {
            "alive": True,
            "kernel": self.record(),
            "running": running,
            "queued": len(self._queue),
            "cwd": self.identity.cwd,
            "recent": self.shelf.recent(_RECENT),
            "processes": [*processes, *self.travel.processes],
            "stack": None,
        }

    # -- the queue --------------------------------------------------------------------------

    def _pump(self) -> None:
        while self.current is None and not self.ending and self._queue and self._may_start():
            job = self._queue.popleft()
            if self.packages.folder is not None and self.member is not None:
                self.packages.tell(self.member)
            if isinstance(job, Execution):
                try:
                    self._start_execution(job)
                except Exception as error:  # noqa: BLE001
                    # Our own failure: the caller hears of it, and the kernel goes on.
                    self.finish(job, failed("InternalError", repr(error)))
            elif isinstance(job, Question):
                self._start_question(job)
            else:
                self._start_fork(job)

    def _may_start(self) -> bool:
        """Whether the next job can be sent. A first cell need not wait until the interpreter has
        answered that it has begun: what it is sent, it does in order."""
        job = self._queue[0]
        ahead = self._handed_out and isinstance(job, Execution) and job.language == "python"
        return self.ready or ahead

    def _start_execution(self, job: Execution) -> None:
        if job.expect_epoch is not None and job.expect_epoch != self.epoch:
            job.finish({"status": "error", "mismatch": True, **self._truth()})
            return
        if self.member is not None:
            self.member.catch_up()
        self.current = self.last_job = job
        self.family.kernel_stirred(self)
        job.started_at = time.monotonic()
        job.oom_before = oom_kills()
        if job.spool is None and not job.internal:
            job.spool = self.shelf.new_spool(job.id)
        if not job.internal:
            self._background.hand_over(job)
        for observer in self.observers:
            observer.started(job)
        if job.timeout is not None:
            self._timers = [
                self.family.reactor.call_later(job.timeout, lambda: self._timed_out(job))
            ]
        if job.language == "bash":
            self.bash.start(job)
            return
        assert self.member is not None
        self.member.oom_before = job.oom_before
        guard, fds = self.travel.before_cell(job)
        if not job.internal and not job.silent:
            self.cells += 1
        self.member.send(
            {
                **guard,
                "op": "run",
                "code": job.code,
                "silent": job.silent,
                "store_history": job.store_history,
                "user_expressions": job.user_expressions,
                "stdin": job.stdin,
                "face": job.face,
                "parent": job.parent,
            },
            fds,
        )
        self.travel.sent(job)

    def _start_question(self, job: Question) -> None:
        self.current = self.last_job = job
        for observer in self.observers:
            observer.started(job)

        def go(past: str | None) -> None:
            if self.current is job and self.member is not None:
                self._cancel_timers()  # the shell has answered; the question takes what it takes
                job.bash = past
                ask = {"op": "ask", "what": job.what, "id": job.id, "fds": len(job.fds)}
                self.member.send({**ask, **job.fields}, job.fds)
                job.close()

        self._with_past(job, go)

    def _start_fork(self, job: ForkOrder) -> None:
        self.current = job
        if job.deadline is not None:
            job.deadline.cancel()
        self._expect_answer(job)

        def go(past: str | None) -> None:
            if self.current is not job or self.member is None:
                return
            job.bash = past
            self.member.send({**job.order, "fds": len(job.fds)}, job.fds)
            job.close()

        self._with_past(job, go)

    def _with_past(self, job: ForkOrder | Question, go: Callable[[str | None], None]) -> None:
        """Ask the shell, if it matters, what another would need to take over."""
        if not job.with_bash:
            go(None)
            return
        if isinstance(job, Question) and self.bash.shell is not None:
            self._expect_answer(job)
        self.bash.ask_past(go)

    def _expect_answer(self, job: ForkOrder | Question) -> None:
        if job.deadline is not None:
            job.deadline.cancel()
        self._timers = [self.family.reactor.call_later(job.patience, lambda: self._too_late(job))]

    def _too_late(self, job: ForkOrder | Question) -> None:
        """A hook of the user's hangs in the fork, or the shell does not answer. What waits behind
        it has timeouts of its own."""
        if self.current is not job:
            return
        job.close()
        words = f"the fork did not end within {job.patience:g} s"
        if self.bash.is_asked:
            words = f"the shell did not answer within {job.patience:g} s, and was ended"
            self.bash.renew(None)
        if isinstance(job, ForkOrder):
            job.on_fork(words, {})
        else:
            job.on_answer({"status": "error", "ename": "TimeoutError", "evalue": words})
            for observer in self.observers:
                observer.finished(job)
        self._next()

    def withdraw(self, job: Job) -> bool:
        """Take a job out of the queue again; False if it has started."""
        if job in self._queue:
            self._queue.remove(job)
            if isinstance(job, ForkOrder | Question):
                job.close()
            return True
        return False

    def _next(self) -> None:
        self.last_used_at = time.time()
        self.current = None
        self.family.kernel_stirred(self)
        self._cancel_timers()
        self._pump()

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers = []

    # -- how jobs end -----------------------------------------------------------------------

    def _cell_done(self, job: Execution, frame: Frame) -> None:
        job.reply = frame
        outcome: dict[str, Any]
        if job.timed_out:
            outcome = failed("TimeoutError", job.timeout_words, status="timeout")
            where = clean_error(frame.get("error") or job.error or {})["traceback"][:-1]
            lines = outcome["error"]["traceback"]
            outcome["error"]["traceback"] = bounded_lines([*where, *lines], job.limit)
        elif frame.get("ok"):
            outcome = {"status": "success", "error": None}
        else:
            error = clean_error(frame.get("error") or job.error or {})
            outcome = {"status": "error", "error": bounded_error(error, job.limit)}
            if job.cancelled and outcome["error"]["ename"] == "KeyboardInterrupt":
                outcome["error"]["evalue"] = outcome["error"]["evalue"] or job.cancelled
        self.execution_count = max(self.execution_count, frame.get("execution_count") or 0)
        if outcome["status"] != "success" and self.travel.is_guarded(job):
            self._undo(job, outcome)
            return
        self.travel.cell_done(job)
        self.finish(job, outcome)

    def _undo(self, job: Execution, outcome: dict[str, Any]) -> None:
        self._cancel_timers()
        self._undoing = True
        self.travel.undo_cell(job, outcome)

    def finish(self, job: Execution, outcome: dict[str, Any]) -> None:
        truth = self._truth()
        if self.loss is not None and not job.internal:
            self.loss = None
        result = job.finish({"exit_code": None, **truth, **outcome})
        remembered = job.store_history and not job.silent and not job.internal
        if remembered and job.language == "python" and result["state"] != "rewound":
            count = result.get("execution_count")
            if count is not None:
                self.history.add(count, job.code, result.get("return_value"))
        for observer in self.observers:
            observer.finished(job)
        if not job.internal:
            self.shelf.keep(job)
        self._next()

    def _answered(self, job: Question, frame: Frame) -> None:
        job.on_answer(frame.get("content") or {})
        for observer in self.observers:
            observer.finished(job)
        self._next()

    def _forked(self, job: ForkOrder, frame: Frame) -> None:
        error = None if frame.get("ok") else str(frame.get("error") or "the fork failed")
        job.on_fork(error, frame)
        self._next()

    def _begun(self) -> None:
        code = self.identity.startup_code
        skipped, self.skip_startup = self.skip_startup, False
        if not code or skipped:
            self._became_ready(None)
            return
        self._startup = Execution(
            "startup",
            code,
            internal=True,
            store_history=False,
            timeout=self.identity.start_timeout + _STARTUP_MARGIN,
            finishers=[self._startup_finished],
        )
        self.ready = True
        self._queue.appendleft(self._startup)
        self._pump()

    def _startup_finished(self, result: dict[str, Any]) -> None:
        self._startup = None
        failure = None
        if result["status"] != "success":
            error = result.get("error") or {}
            failure = (
                f"the startup code (KERNELBOX_STARTUP_CODE) failed: "
                f"{error.get('ename')}: {error.get('evalue')}"
            )
        self._became_ready(failure)

    def _became_ready(self, failure: str | None) -> None:
        self.ready = True
        waiters = self._take_waiters()
        if failure and not waiters:
            self.identity.note(failure)
        for callback in waiters:
            callback(failure)
        if self.member is not None:
            self._pump()

    def _start_failed(self, words: str) -> None:
        """A broken start is never tried again by itself; the next request tries once more."""
        for callback in self._take_waiters():
            callback(words)
        self._abort_queue(Loss("lost", words, "StartupFailed"))

    def _take_waiters(self) -> list[Callable[[str | None], None]]:
        waiters, self._when_ready = self._when_ready, []
        return waiters

    # -- losing the namespace ---------------------------------------------------------------

    def _abandon(self, loss: Loss) -> None:
        """Kill the interpreter on purpose, and answer for it."""
        member, self.member = self.member, None
        self.ready = self._undoing = False
        if member is not None:
            member.kill(loss.cause)
        self._lose(loss)

    def _lose(self, loss: Loss) -> None:
        self.epoch += 1
        self.loss = loss
        self.family.kernel_changed(self)
        job, self.current = self.current, None
        self._cancel_timers()
        if isinstance(job, Execution):
            self._lost_while_running(job, loss)
        elif isinstance(job, Question):
            job.close()
            job.on_answer(None)
            for observer in self.observers:
                observer.finished(job)
        elif job is not None:
            job.close()
            job.on_fork(loss.cause, {})
        self._abort_queue(loss)

    def _lost_while_running(self, job: Execution, loss: Loss) -> None:
        self.travel.cell_done(job)
        words = (
            loss.cause if loss.state == "rewound" else f"{loss.cause}; the kernel's state is lost"
        )
        self._answer(job, self._death_outcome(job, loss.ename, words))

    def _death_outcome(self, job: Execution, ename: str, words: str) -> dict[str, Any]:
        if job.timed_out:
            return failed("TimeoutError", job.timeout_words, status="timeout")
        return failed(ename, words)

    def _answer(self, job: Execution, outcome: dict[str, Any]) -> None:
        """The result of a job that is not the current one any more."""
        job.finish({"exit_code": None, **outcome, **self._truth()})
        for observer in self.observers:
            observer.finished(job)
        if not job.internal:
            self.shelf.keep(job)

    def _abort_queue(self, loss: Loss) -> None:
        queue, self._queue = self._queue, deque()
        for job in queue:
            if isinstance(job, Execution):
                words = f"not run: {loss.cause} while this waited in the queue"
                job.finish({"exit_code": None, **failed("Aborted", words), **self._truth()})
            elif isinstance(job, Question):
                job.close()
                job.on_answer(None)
            else:
                job.close()
                job.on_fork(loss.cause, {})

    def _truth(self) -> dict[str, Any]:
        """What every result says about the namespace."""
        return {
            "state": self.loss.state if self.loss else "kept",
            "cause": self.loss.cause if self.loss else None,
            "epoch": self.epoch,
            "kernel_id": self.identity.kernel_id,
        }

    def _kept(self, outcome: dict[str, Any]) -> dict[str, Any]:
        return {"exit_code": None, **self._truth(), **outcome}

    # -- time -------------------------------------------------------------------------------

    def _timed_out(self, job: Execution) -> None:
        if self.current is not job:
            return
        job.timed_out = True
        job.steps.append(f"interrupted after {job.timeout:g} s")
        later = self.family.reactor.call_later
        self._timers = [
            later(job.interrupt_grace, lambda: self._interrupt_again(job)),
            later(job.kill_grace, lambda: self._kill_current(job)),
        ]
        self._interrupt_current()

    def _interrupt_again(self, job: Execution) -> None:
        if self.current is job:
            job.steps.append(f"interrupted again {job.interrupt_grace:g} s later")
            self._interrupt_current(hard=True)

    def _kill_current(self, job: Execution) -> None:
        if self.current is not job:
            return
        job.steps.append(f"killed {job.kill_grace:g} s after the first interrupt")
        words = (
            f"killed: it did not stop {job.kill_grace:g} s after its timeout of {job.timeout:g} s"
        )
        if job.language == "bash":
            self.bash.kill(words)
        elif self.member is not None:
            self.member.kill(words)

    def _interrupt_current(self, *, hard: bool = False) -> None:
        job = self.current
        if isinstance(job, Execution) and job.language == "bash":
            self.bash.interrupt(hard=hard)
            self._interrupt_bash_again(job, _BASH_REPEATS)
        elif self.member is not None:
            self.member.interrupt()

    # -- events -----------------------------------------------------------------------------

    def happened(self, event: Event) -> None:
        job = self.current
        if isinstance(job, Execution):
            job.add(event)
            for observer in self.observers:
                observer.happened(job, event)
            return
        # Nobody's cell is running: a thread, a task or a process that an earlier one left.
        self._background.add(event)
        for observer in self.observers:
            observer.happened(job if isinstance(job, Question) else self.last_job, event)

    def note_denial(self, words: str) -> None:
        """What was refused while the current execution ran."""
        job = self.current
        if isinstance(job, Execution) and words not in job.notes and len(job.notes) < _MOST_NOTES:
            job.notes.append(words)

    def _interrupt_bash_again(self, job: Execution, times: int) -> None:
        """A program that the shell was just starting may have missed it."""

        def again() -> None:
            if self.current is job:
                self.bash.interrupt(hard=False)
                self._interrupt_bash_again(job, times - 1)

        if times:
            self.family.reactor.call_later(_BASH_PAUSE, again)

    def _input_wanted(self, job: Execution, frame: Frame) -> None:
        if job.on_input is None:
            self.answer_input(job, None)
            return
        job.on_input(str(frame.get("prompt", "")), bool(frame.get("password")))


def _why_not_entered(folder: str) -> str:
    """Why a process of ours cannot have ``folder`` as its own; empty if it can."""
    try:
        os.stat(os.path.join(folder, "."))
    except OSError as error:
        return f"the folder {folder!r} cannot be entered ({error.strerror})"
    return ""
