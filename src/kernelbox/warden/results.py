"""The telling of results: every job ends in exactly one, and all who have to know hear of it."""

from __future__ import annotations

from typing import Any, Protocol

from kernelbox.errors import BoxError
from kernelbox.spool import Event
from kernelbox.warden import outcomes
from kernelbox.warden.execution import Execution, Result
from kernelbox.warden.jobs import Job, Question
from kernelbox.warden.outcomes import Outcome
from kernelbox.warden.shelf import Shelf
from kernelbox.warden.truth import Loss, Truth


class Observer(Protocol):
    """A lane that is told all that happens in a kernel (the Jupyter lane)."""

    def started(self, job: Execution | Question) -> None: ...
    def happened(self, job: Execution | Question | None, event: Event) -> None: ...
    def finished(self, job: Execution | Question) -> None: ...


class Results:
    """Who asked hears first, then the observers; the shelf keeps what ran."""

    def __init__(self, truth: Truth, shelf: Shelf, observers: list[Observer]) -> None:
        self._truth = truth
        self._shelf = shelf
        self._observers = observers

    def finish(self, job: Execution, outcome: Outcome) -> Result:
        """The result of an execution that ran to its end; what its outcome says of the state is so.

        It tells of a loss that nobody has heard of yet, and who looks from now on finds none.
        """
        said = {**self._truth.facts(), **outcome}
        if not job.internal:
            self._truth.told()
        return self._conclude(job, said)

    def tell_lost(self, job: Execution, outcome: Outcome) -> None:
        """The namespace is gone with it; others are to hear of that, too."""
        self._conclude(job, {**self._truth.facts(), **outcome})

    def refuse(self, job: Execution, refusal: BoxError) -> None:
        """An error of ours instead of a result: it was begun with, and not run."""
        job.finish({"status": "error", "refusal": refusal, **self._truth.facts()})
        self._finished(job)

    def mismatch(self, job: Execution) -> None:
        """Its caller expected another epoch, so it was not even begun with."""
        job.finish({"status": "error", "mismatch": True, **self._truth.facts()})

    def answer(self, job: Question, content: dict[str, Any]) -> None:
        job.on_answer(content)
        self._finished(job)

    def cancel(self, job: Execution) -> None:
        """It waited, and will not run."""
        words = "cancelled while it waited; it did not run"
        self._not_run(job, outcomes.failed("Cancelled", words))

    def abort(self, jobs: list[Job], loss: Loss) -> None:
        """They waited, and what they waited for will not be."""
        for job in jobs:
            if isinstance(job, Execution):
                self._not_run(job, outcomes.not_run(loss))
            elif isinstance(job, Question):
                job.close()
                job.on_answer(None)
            else:
                job.close()
                job.on_fork(loss.cause, {})

    def lose(self, job: Job, loss: Loss) -> None:
        """It ran, and the namespace is gone under it."""
        if isinstance(job, Execution):
            self.tell_lost(job, outcomes.of_loss(job, loss))
            return
        self.abort([job], loss)
        if isinstance(job, Question):
            self._finished(job)

    def _conclude(self, job: Execution, said: Outcome) -> Result:
        result = job.finish({"exit_code": None, **said})
        self._finished(job)
        if not job.internal:
            self._shelf.keep(job)
        return result

    def _not_run(self, job: Execution, outcome: Outcome) -> None:
        job.finish({"exit_code": None, **self._truth.facts(), **outcome})

    def _finished(self, job: Execution | Question) -> None:
        for observer in self._observers:
            observer.finished(job)
