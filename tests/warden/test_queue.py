"""The queue: what may start next, and what is taken out of it."""

from __future__ import annotations

from kernelbox.warden.execution import Execution
from kernelbox.warden.jobs import ForkOrder, Job, Question
from kernelbox.warden.queue import Queue


def cell(name: str = "a", language: str = "python") -> Execution:
    return Execution(name, "1", language=language)


def question() -> Question:
    return Question("complete", {}, lambda content: None)


def fork() -> ForkOrder:
    return ForkOrder({"op": "checkpoint"}, [], lambda error, facts: None)


def started(job: Job, *, ready: bool, handed_out: bool) -> bool:
    queue = Queue()
    queue.add(job)
    taken = queue.next(ready=ready, handed_out=handed_out)
    assert len(queue) == (0 if taken else 1)
    assert taken in (job, None)
    return taken is job


def test_nothing_starts_before_the_interpreter_is_there() -> None:
    for job in (cell(), cell(language="bash"), question(), fork()):
        assert not started(job, ready=False, handed_out=False)
        assert started(job, ready=True, handed_out=False)


def test_a_first_cell_need_not_wait_until_the_interpreter_has_begun() -> None:
    assert started(cell(), ready=False, handed_out=True)
    for job in (cell(language="bash"), question(), fork()):
        assert not started(job, ready=False, handed_out=True)


def test_jobs_start_in_their_order_and_startup_code_before_them() -> None:
    queue = Queue()
    assert queue.next(ready=True, handed_out=True) is None
    first, second, startup = cell("a"), cell("b"), cell("startup")
    queue.add(first)
    queue.add(second)
    queue.add_first(startup)
    order = [queue.next(ready=True, handed_out=False) for _ in range(4)]
    assert order == [startup, first, second, None]


def test_a_job_is_found_and_withdrawn_as_long_as_it_waits() -> None:
    queue = Queue()
    first, asked = cell("a"), question()
    queue.add(first)
    queue.add(asked)
    assert queue.find("a") is first
    assert queue.find("b") is None
    assert queue.withdraw(asked)
    assert not queue.withdraw(asked)
    assert queue.empty() == [first]
    assert len(queue) == 0
