"""A kernel: one job after the other, in one interpreter, and the truth about what became of it."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernelbox.errors import BoxError, ExecutionNotFound
from kernelbox.inside import linux, scope
from kernelbox.spool import Event
from kernelbox.warden import outcomes, portrait
from kernelbox.warden.background import Background
from kernelbox.warden.bash_desk import BashDesk
from kernelbox.warden.bash_member import BashMember
from kernelbox.warden.beginning import Beginning, Waiter
from kernelbox.warden.errands import Errands
from kernelbox.warden.events import event_of
from kernelbox.warden.execution import Execution, InputRequest
from kernelbox.warden.exits import Exit, oom_kills
from kernelbox.warden.history import History
from kernelbox.warden.identity import Identity
from kernelbox.warden.jobs import ForkOrder, Job, Question
from kernelbox.warden.landlord import Landlord
from kernelbox.warden.member import Member
from kernelbox.warden.once import Once
from kernelbox.warden.outcomes import Outcome
from kernelbox.warden.packages import Packages
from kernelbox.warden.patience import Patience
from kernelbox.warden.queue import Queue
from kernelbox.warden.results import Observer, Results
from kernelbox.warden.shelf import Shelf
from kernelbox.warden.succession import Succession
from kernelbox.warden.timetravel import TimeTravel
from kernelbox.warden.truth import Loss, Truth
from kernelbox.wire import Frame

if TYPE_CHECKING:
    from kernelbox.warden.auditing import Auditor

_MOST_NOTES = 30


class Kernel:
    """Runs one job at a time; every execution ends in exactly one result, whatever happens."""

    def __init__(self, family: Landlord, identity: Identity, *, shelf: Shelf, epoch: int) -> None:
        self.family = family
        self.identity = identity
        self.shelf = shelf
        self.once = Once(shelf.folder)
        self.truth = Truth(identity.kernel_id, epoch)
        self.history = History()
        self.observers: list[Observer] = []
        self.audit: Auditor | None = None
        self.last_used_at = time.time()
        self.attempt_count = 0
        self.execution_count = 0
        self.cells = 0  # that were run, by whomever; a rewind takes it back
        self.ending = False
        self.queue = Queue()
        self.current: Job | None = None
        self.last_job: Execution | Question | None = None
        self.member: Member | None = None
        self.beginning = Beginning(identity)
        self.bash = BashDesk(self)
        self.packages = Packages()
        self.travel = TimeTravel(self)
        self.succession = Succession(self)
        self.results = Results(self.truth, shelf, self.observers)
        self.patience = Patience(family.reactor, interrupt=self._interrupt, kill=self._kill)
        self._background = Background()
        self._errands = Errands(self)

    # -- asking for things ------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Queue a job; it starts when all before it have ended."""
        if job.is_use:
            self.last_used_at = time.time()
        if isinstance(job, Execution) and not job.internal:
            self.attempt_count += 1
        self.queue.add(job)
        if self.ending:
            # It came over a connection that was open when the kernel was ended.
            self.abort_queue(Loss("lost", "the kernel was ended", "KernelEnded"))
            return
        if self.succession.is_down:
            self.succession.start()
        self.pump()

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
        job = self.current
        if isinstance(job, Execution):
            job.cancelled = job.cancelled or "interrupted"
        elif not isinstance(job, Question) or self.member is None:
            return False
        self.patience.interrupt(job)
        return True

    def cancel(self, execution_id: str) -> bool:
        """Dequeue or interrupt that execution and no other."""
        if isinstance(self.current, Execution) and self.current.id == execution_id:
            self.current.cancelled = "cancelled"
            self.patience.interrupt(self.current)
            return True
        if (job := self.queue.find(execution_id)) is None:
            return False
        self.queue.withdraw(job)
        self.results.cancel(job)
        return True

    def withdraw(self, job: ForkOrder | Question) -> bool:
        """Take a job out of the queue again; False if it has started."""
        if not self.queue.withdraw(job):
            return False
        job.close()
        return True

    def find_execution(self, execution_id: str) -> Execution:
        """One that waits, runs or is kept."""
        if isinstance(self.current, Execution) and self.current.id == execution_id:
            return self.current
        found = self.queue.find(execution_id) or self.shelf.find(execution_id)
        if found is None:
            raise ExecutionNotFound(
                f"no execution {execution_id!r} of kernel {self.identity.name!r} is kept; "
                "only the latest are (KERNELBOX_SPOOL_KEEP, KERNELBOX_SPOOL_TOTAL)"
            )
        return found

    def answer_input(self, execution: Execution, number: Any, value: str | None) -> None:
        """The client's answer to that ``input()``; None: it will not answer."""
        if self.current is execution and self.member is not None:
            answer = {"value": value}
            if value is None:
                answer = {"error": "the client gave no answer"}
            self.member.send({"op": "input", "question": number, **answer})

    def when_ready(self, waiter: Waiter) -> None:
        """Call back once the interpreter is there; with the failure if it is not."""
        self.beginning.when_ready(waiter)

    def end(self, cause: str) -> None:
        """Answer everything, end every process. Nothing is accepted afterwards."""
        self.ending = True
        self.succession.end(cause)
        self.travel.end()
        self.bash.kill(cause)

    # -- what the interpreter says ----------------------------------------------------------

    def member_started(self, member: Member) -> None:
        if member is self.member:
            self.beginning.started()

    def member_said(self, member: Member, frame: Frame) -> None:
        if member is not self.member:
            return
        job = self.current
        cell = job if isinstance(job, Execution) and job.language != "bash" else None
        match frame.get("op"):
            case "done" if cell is not None and not self.succession.undoing:
                self._cell_done(cell, frame)
            case "input_request" if cell is not None:
                self._input_wanted(cell, frame)
            case "answer" if isinstance(job, Question):
                self._errands.answered(job, frame)
            case "forked" if isinstance(job, ForkOrder):
                self._errands.forked(job, frame)
            case "guarded" if cell is not None:
                self.travel.guarded(cell, frame)
            case "begun":
                self.succession.begun()
            case "install":
                self.family.install_asked(self, frame)
            case _:
                event = event_of(frame)
                if event is None:
                    return
                if event["kind"] == "error" and cell is not None:
                    cell.error = event["data"]
                self.happened(event)

    def member_printed(self, member: Member, name: str, text: str) -> None:
        if member is self.member:
            self.happened({"kind": "stream", "name": name, "text": text})

    def member_ended(self, member: Member, exit: Exit) -> None:
        if member is self.member:
            self.succession.died(exit)

    def happened(self, event: Event) -> None:
        """Something to see: of the cell that runs, or of what an earlier one left running."""
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

    def _input_wanted(self, job: Execution, frame: Frame) -> None:
        job.asked = number = frame.get("question")
        if job.on_input is None:
            self.answer_input(job, number, None)
            return
        prompt, password = str(frame.get("prompt", "")), bool(frame.get("password"))
        job.on_input(InputRequest(number, prompt, password))

    # -- one job after the other ------------------------------------------------------------

    def pump(self) -> None:
        """Start what may start now."""
        begin = self.beginning
        while self.current is None and not self.ending:
            job = self.queue.next(ready=begin.ready, handed_out=begin.handed_out)
            if job is None:
                return
            if self.packages.folder is not None and self.member is not None:
                self.packages.tell(self.member)
            if isinstance(job, Execution):
                try:
                    self._start(job)
                except Exception as error:  # noqa: BLE001
                    # Our own failure: the caller hears of it, and the kernel goes on.
                    self.travel.not_sent(job)
                    self.finish(job, outcomes.failed("InternalError", repr(error)))
            elif isinstance(job, Question):
                self._errands.ask(job)
            else:
                self._errands.fork(job)

    def next(self) -> None:
        """The current job has been answered for."""
        self.release()
        self.pump()

    def release(self) -> Job | None:
        """Nobody works on the current job any more."""
        job, self.current = self.current, None
        self.patience.end()
        if job is not None and job.is_use:
            self.last_used_at = time.time()
            self.family.kernel_stirred(self)
        return job

    def abort_queue(self, loss: Loss) -> None:
        self.results.abort(self.queue.empty(), loss)

    def _start(self, job: Execution) -> None:
        if job.expect_epoch is not None and job.expect_epoch != self.truth.epoch:
            self.results.mismatch(job)
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
        self.patience.begin(job)
        if job.language == "bash":
            self.bash.start(job)
            return
        assert self.member is not None
        self.member.oom_before = job.oom_before
        guard, fds = self.travel.before_cell(job)
        if not job.internal and not job.silent:
            self.cells += 1
        request = job.request()
        request.update(guard)
        self.member.send(request, fds)
        self.travel.sent(job)

    def _cell_done(self, job: Execution, frame: Frame) -> None:
        job.reply = frame
        outcome = outcomes.of_cell(job, frame)
        self.execution_count = max(self.execution_count, frame.get("execution_count") or 0)
        if outcome["status"] != "success" and self.travel.is_guarded(job):
            self.succession.undo(job, outcome)
            return
        self.travel.cell_done(job)
        self.finish(job, outcome)

    def finish(self, job: Execution, outcome: Outcome) -> None:
        """The current execution has ended so; the next job may start."""
        result = self.results.finish(job, outcome)
        remembered = job.store_history and not job.silent and not job.internal
        if remembered and job.language == "python" and result["state"] != "rewound":
            count = result.get("execution_count")
            if count is not None:
                self.history.add(count, job.code, result.get("return_value"))
        self.next()

    def refuse(self, job: Execution, refusal: BoxError) -> None:
        """Answer the current execution with an error of ours: it was not run."""
        self._background.take_back(job)
        self.results.refuse(job, refusal)
        self.next()

    def _interrupt(self, job: Job, *, hard: bool = False) -> None:
        if isinstance(job, Execution) and job.language == "bash":
            self.bash.interrupt(hard=hard)
        elif self.member is not None:
            self.member.interrupt()

    def _kill(self, job: Execution, why: str) -> None:
        if job.language == "bash":
            self.bash.kill(why)
        elif self.member is not None:
            self.member.kill(why)

    # -- what it is like --------------------------------------------------------------------

    def record(self) -> dict[str, Any]:
        return portrait.record(self)

    @property
    def busy(self) -> bool:
        return self.current is not None or bool(self.queue) or not self.beginning.ready

    def members(self) -> list[Member | BashMember]:
        return [member for member in (self.member, self.bash.shell) if member is not None]

    def background_work(self) -> bool:
        """Processes that a cell or a bash command left running."""
        if self.family.hands is not None:
            inside = [member.inner_pid for member in self.members() if member.inner_pid]
            return self.family.hands.has_children(inside)
        pids = [member.pid for member in self.members() if member.pid]
        # Bash reaps a job that has ended only when it comes to its next command.
        return any(linux.is_running(child) for pid in pids for child in linux.children(pid))

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
