"""The queue of a kernel: what waits, and what may start next."""

from __future__ import annotations

from collections import deque

from kernelbox.warden.execution import Execution
from kernelbox.warden.jobs import Job


class Queue:
    """Jobs that have not started, in the order in which they will."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        self._jobs.append(job)

    def add_first(self, job: Job) -> None:
        self._jobs.appendleft(job)

    def next(self, *, ready: bool, handed_out: bool) -> Job | None:
        """Take the job that starts now; None: nothing can.

        A first cell need not wait until the interpreter has answered that it has begun: what it is
        sent, it does in order. ``handed_out``: that is how it is.
        """
        if not self._jobs:
            return None
        job = self._jobs[0]
        if ready or (handed_out and isinstance(job, Execution) and job.language == "python"):
            return self._jobs.popleft()
        return None

    def find(self, execution_id: str) -> Execution | None:
        for job in self._jobs:
            if isinstance(job, Execution) and job.id == execution_id:
                return job
        return None

    def withdraw(self, job: Job) -> bool:
        """Take a job out again; False if it is not here any more."""
        if job in self._jobs:
            self._jobs.remove(job)
            return True
        return False

    def empty(self) -> list[Job]:
        """Take all of them out, because none will start."""
        jobs = list(self._jobs)
        self._jobs.clear()
        return jobs
