"""Errands between cells: questions and forks, with the past of the shell where that matters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kernelbox.warden.jobs import ForkOrder, Question

if TYPE_CHECKING:
    from kernelbox.warden.kernel import Kernel
    from kernelbox.wire import Frame


class Errands:
    """Sends the interpreter on them, and takes home what it brings, or that it came too late."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def ask(self, job: Question) -> None:
        kernel = self._kernel
        kernel.current = kernel.last_job = job
        for observer in kernel.observers:
            observer.started(job)
        if job.with_bash and kernel.bash.shell is not None:
            self._expect(job)

        def go(past: str | None) -> None:
            if kernel.current is job:
                kernel.patience.end()  # the shell has answered; the question takes what it takes
                self._send(job, past)

        self._with_past(job, go)

    def fork(self, job: ForkOrder) -> None:
        kernel = self._kernel
        kernel.current = job
        self._expect(job)

        def go(past: str | None) -> None:
            if kernel.current is job:
                self._send(job, past)

        self._with_past(job, go)

    def answered(self, job: Question, frame: Frame) -> None:
        self._kernel.results.answer(job, frame.get("content") or {})
        self._kernel.next()

    def forked(self, job: ForkOrder, frame: Frame) -> None:
        error = None if frame.get("ok") else str(frame.get("error") or "the fork failed")
        job.on_fork(error, frame)
        self._kernel.next()

    def _send(self, job: ForkOrder | Question, past: str | None) -> None:
        member = self._kernel.member
        if member is None:
            return
        job.bash = past
        try:
            member.send(job.request(), job.fds)
        except Exception as error:  # noqa: BLE001
            # Our own failure (no descriptors are left, say): who asked hears of it.
            self._fail(job, "InternalError", repr(error))
        else:
            job.close()

    def _with_past(self, job: ForkOrder | Question, go: Callable[[str | None], None]) -> None:
        """Ask the shell, if it matters, what another would need to take over."""
        if job.with_bash:
            self._kernel.bash.ask_past(go)
        else:
            go(None)

    def _expect(self, job: ForkOrder | Question) -> None:
        if job.deadline is not None:
            job.deadline.cancel()
        self._kernel.patience.begin_answer(job, lambda: self._too_late(job))

    def _too_late(self, job: ForkOrder | Question) -> None:
        """A hook of the user's hangs in the fork, or the shell does not answer. What waits behind
        it has timeouts of its own."""
        words = f"the fork did not end within {job.patience:g} s"
        if self._kernel.bash.is_asked:
            words = f"the shell did not answer within {job.patience:g} s, and was ended"
            self._kernel.bash.renew(None)
        self._fail(job, "TimeoutError", words)

    def _fail(self, job: ForkOrder | Question, ename: str, words: str) -> None:
        job.close()
        if isinstance(job, ForkOrder):
            job.on_fork(words, {})
        else:
            failure = {"status": "error", "ename": ename, "evalue": words}
            self._kernel.results.answer(job, failure)
        self._kernel.next()
