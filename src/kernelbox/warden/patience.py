"""The patience with what runs: a job that takes too long is interrupted, again, and then killed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kernelbox.reactor import Reactor, Timer
from kernelbox.warden.execution import Execution
from kernelbox.warden.jobs import ForkOrder, Job, Question

_BASH_REPEATS, _BASH_PAUSE = 3, 0.3


class Interrupt(Protocol):
    """Interrupts the process that works on a job; ``hard`` spares nothing that it has started."""

    def __call__(self, job: Job, *, hard: bool = False) -> None: ...


class Patience:
    """Timers of one job at a time; when its time is over, all of them go."""

    def __init__(
        self, reactor: Reactor, *, interrupt: Interrupt, kill: Callable[[Execution, str], None]
    ) -> None:
        self._reactor = reactor
        self._interrupt = interrupt
        self._kill = kill
        self._job: Job | None = None
        self._timers: list[Timer] = []

    def begin(self, job: Execution) -> None:
        """The time of an execution starts when it does."""
        self._job = job
        if job.timeout is not None:
            self._timers = [self._reactor.call_later(job.timeout, lambda: self._timed_out(job))]

    def begin_answer(self, job: ForkOrder | Question, too_late: Callable[[], None]) -> None:
        """Somebody else has a part in the answer, and may never do it."""
        self._job = job
        self._timers = [self._reactor.call_later(job.patience, too_late)]

    def end(self) -> None:
        """It has ended, or takes what it takes from now on."""
        self._job = None
        for timer in self._timers:
            timer.cancel()
        self._timers = []

    def interrupt(self, job: Job, *, hard: bool = False) -> None:
        """Now, whatever its time. A program that a shell was just starting may have missed it."""
        self._interrupt(job, hard=hard)
        if isinstance(job, Execution) and job.language == "bash":
            self._repeat(job, _BASH_REPEATS)

    def _repeat(self, job: Execution, times: int) -> None:
        def again() -> None:
            if self._job is job:
                self._interrupt(job)
                self._repeat(job, times - 1)

        if times:
            self._reactor.call_later(_BASH_PAUSE, again)

    def _timed_out(self, job: Execution) -> None:
        job.timed_out = True
        job.steps.append(f"interrupted after {job.timeout:g} s")
        later = self._reactor.call_later
        self._timers = [
            later(job.interrupt_grace, lambda: self._interrupt_again(job)),
            later(job.kill_grace, lambda: self._killed(job)),
        ]
        self.interrupt(job)

    def _interrupt_again(self, job: Execution) -> None:
        job.steps.append(f"interrupted again {job.interrupt_grace:g} s later")
        self.interrupt(job, hard=True)

    def _killed(self, job: Execution) -> None:
        job.steps.append(f"killed {job.kill_grace:g} s after the first interrupt")
        self._kill(
            job,
            f"killed: it did not stop {job.kill_grace:g} s after its timeout of {job.timeout:g} s",
        )
