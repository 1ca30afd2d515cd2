"""The interpreters of a kernel: one at a time, and what one leaves undone is answered for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelbox.inside import linux
from kernelbox.warden import outcomes
from kernelbox.warden.beginning import Waiter
from kernelbox.warden.execution import Execution
from kernelbox.warden.exits import Exit, oom_kills
from kernelbox.warden.outcomes import Outcome
from kernelbox.warden.truth import Loss

if TYPE_CHECKING:
    from kernelbox.warden.kernel import Kernel
    from kernelbox.warden.member import Member


class Succession:
    """Starts, replaces and ends them, and says what that means for the namespace."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.undoing = False
        """Whether a cell has failed and its namespace is being taken back."""

    @property
    def is_down(self) -> bool:
        """Whether there is no interpreter, and none comes by itself: the last start failed."""
        return self._kernel.member is None and not self.undoing

    # -- starting ---------------------------------------------------------------------------

    def start(self, member: Member | None = None) -> None:
        """Start one (or take a spare) and make it the caller's: folder, environment, seed."""
        kernel = self._kernel
        begin = kernel.beginning.order()
        try:
            kernel.member = member = member or kernel.family.start_interpreter(kernel)
        except OSError as error:
            # No descriptors, no memory. Who waits hears of it, or would wait for ever.
            self._start_failed(f"no interpreter can be started: {error.strerror}")
            return
        member.give_to(kernel)
        member.send(begin)
        # Now, and not only before its first cell: it may be killed before it has had one.
        member.oom_before = oom_kills()
        if member.forked:
            kernel.member_started(member)

    def begun(self) -> None:
        """It is the caller's; startup code comes before all that waits."""
        kernel = self._kernel
        startup = kernel.beginning.begun()
        if startup is not None:
            kernel.queue.add_first(startup)
        if kernel.member is not None:
            kernel.pump()

    def adopt(self, member: Member) -> None:
        """Take over the copy of a fork, which is somebody already."""
        kernel = self._kernel
        kernel.member = member
        member.give_to(kernel)
        kernel.beginning.taken_over()
        kernel.pump()

    # -- replacing --------------------------------------------------------------------------

    def restart(self, on_ready: Waiter) -> None:
        """End the interpreter and start a fresh one; what runs or waits is answered first."""
        kernel = self._kernel
        pid = kernel.member.pid if kernel.member is not None else 0
        self._abandon(Loss("lost", "the kernel was restarted", "KernelRestarted"))
        kernel.family.clear_out(pid)
        kernel.truth.told()  # the caller of restart knows
        kernel.bash.renew(None)
        kernel.travel.restarted()
        kernel.beginning.when_next_ready(on_ready)
        self.start()

    def rewind(self, member: Member, cause: str) -> None:
        """Go on with a copy from an earlier time; what runs or waits is answered for."""
        if self._kernel.ending:
            member.kill(cause)
            return
        self._kernel.bash.abandon()
        self._abandon(Loss("rewound", f"aborted: {cause}", "Aborted"))
        self._kernel.truth.told()  # who rewinds knows
        self.adopt(member)

    def undo(self, job: Execution, outcome: Outcome) -> None:
        """An atomic cell has failed so: its answer waits until it has never been."""
        self._kernel.patience.end()
        self.undoing = True
        self._kernel.travel.undo_cell(job, outcome)

    def undone(self, job: Execution, member: Member, outcome: Outcome, cause: str) -> None:
        """Go on with a copy from before an atomic cell. What waits behind the cell goes on too."""
        kernel = self._kernel
        if kernel.current is not job or kernel.ending:
            member.kill(cause)  # restarted or rewound meanwhile: the job is answered for
            return
        self.undoing = False
        old, kernel.member = kernel.member, member
        if old is not None:
            if programs := len(linux.children(old.pid)):
                job.notes.append(f"programs that the session had started run on: {programs}")
            old.kill(cause)
        member.give_to(kernel)
        kernel.beginning.ready = True
        kernel.truth.epoch += 1
        kernel.family.kernel_changed(kernel)
        kernel.finish(job, outcomes.undone(outcome, cause, kernel.truth))
        kernel.beginning.tell(None)

    def lost_its_past(self, job: Execution, outcome: Outcome, cause: str) -> None:
        """An atomic cell failed and cannot be undone: nobody may take what it left for good."""
        kernel = self._kernel
        if kernel.current is not job or kernel.ending:
            return
        job.atomic = False
        loss = Loss("lost", cause)
        self._let_go(cause)
        kernel.release()
        kernel.truth.lost(loss)
        kernel.family.kernel_changed(kernel)
        kernel.results.tell_lost(job, outcome)
        kernel.abort_queue(loss)
        kernel.truth.told()  # all who were here have been
        self.start()

    # -- losing -----------------------------------------------------------------------------

    def died(self, exit: Exit) -> None:
        """The death of the interpreter: what ran, and what waited, hears of it now."""
        kernel = self._kernel
        kernel.member = None
        bad_start = kernel.beginning.died(exit.cause)
        if kernel.ending or self.undoing:
            return
        job = kernel.current
        if isinstance(job, Execution) and kernel.travel.is_guarded(job):
            self.undo(job, outcomes.of_death(job, exit.ename, exit.cause))
            return
        if bad_start is not None:
            if isinstance(job, Execution) and job.internal:
                kernel.release()  # startup code, which ran for nobody; a shell may run for somebody
            self._start_failed(bad_start)
            return
        loss = Loss("lost", exit.cause, exit.ename)
        if isinstance(job, Execution) and job.language == "bash":
            # The shell lives; its command goes on, and its result tells of Python's loss.
            kernel.truth.lost(loss)
            kernel.family.kernel_changed(kernel)
            kernel.abort_queue(loss)
        else:
            self._lose(loss)
            if isinstance(job, Execution):
                kernel.truth.told()  # by that execution's result
        self.start()

    def end(self, cause: str) -> None:
        """With the kernel."""
        self._abandon(Loss("lost", cause, "KernelEnded"))
        self._kernel.beginning.tell(cause)

    def _start_failed(self, words: str) -> None:
        """A broken start is never tried again by itself; the next request tries once more."""
        kernel = self._kernel
        kernel.beginning.tell(words)
        kernel.abort_queue(Loss("lost", words, "StartupFailed"))

    def _let_go(self, cause: str) -> None:
        """End the interpreter on purpose."""
        kernel = self._kernel
        member, kernel.member = kernel.member, None
        kernel.beginning.ready = self.undoing = False
        if member is not None:
            member.kill(cause)

    def _abandon(self, loss: Loss) -> None:
        """The same, and answer for it."""
        self._let_go(loss.cause)
        self._lose(loss)

    def _lose(self, loss: Loss) -> None:
        kernel = self._kernel
        kernel.truth.lost(loss)
        kernel.family.kernel_changed(kernel)
        job = kernel.release()
        if isinstance(job, Execution):
            kernel.travel.cell_done(job)
        if job is not None:
            kernel.results.lose(job, loss)
        kernel.abort_queue(loss)
