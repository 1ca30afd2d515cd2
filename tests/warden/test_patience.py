"""The patience with what runs, by a clock that is turned by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from kernelbox.reactor import Reactor, Timer
from kernelbox.warden.execution import Execution
from kernelbox.warden.jobs import ForkOrder
from kernelbox.warden.patience import Patience


class Clock:
    """A reactor that has timers only."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[Timer] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(self.now + delay, callback)
        self._timers.append(timer)
        return timer

    def turn_to(self, time: float) -> None:
        while due := [timer for timer in self._timers if timer.due <= time]:
            timer = min(due, key=lambda timer: timer.due)
            self._timers.remove(timer)
            self.now = timer.due
            if timer.callback is not None:
                timer.callback()
        self.now = time


class Scene:
    """Writes down what is done to a job, and when."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.done: list[tuple[float, str]] = []
        self.patience = Patience(
            cast(Reactor, self.clock),
            interrupt=self._interrupt,
            kill=lambda job, why: self._note("kill"),
        )

    def _interrupt(self, job: Any, *, hard: bool = False) -> None:
        self._note("hard interrupt" if hard else "interrupt")

    def _note(self, what: str) -> None:
        self.done.append((round(self.clock.now, 3), what))


@pytest.fixture
def scene() -> Scene:
    return Scene()


def cell(**fields: Any) -> Execution:
    return Execution("e", "1", timeout=10.0, interrupt_grace=2.0, kill_grace=5.0, **fields)


def test_a_cell_is_interrupted_again_and_then_killed(scene: Scene) -> None:
    job = cell()
    scene.patience.begin(job)
    scene.clock.turn_to(9.9)
    assert (scene.done, job.timed_out) == ([], False)
    scene.clock.turn_to(60)
    assert scene.done == [(10, "interrupt"), (12, "hard interrupt"), (15, "kill")]
    assert job.timed_out
    assert job.steps == [
        "interrupted after 10 s",
        "interrupted again 2 s later",
        "killed 5 s after the first interrupt",
    ]


@pytest.mark.parametrize(("ends_at", "steps"), [(9.9, 0), (11.0, 1), (14.0, 2)])
def test_a_job_that_has_ended_is_left_alone(scene: Scene, ends_at: float, steps: int) -> None:
    job = cell()
    scene.patience.begin(job)
    scene.clock.turn_to(ends_at)
    scene.patience.end()
    scene.clock.turn_to(60)
    assert len(job.steps) == len(scene.done) == steps


def test_a_job_without_a_timeout_takes_what_it_takes(scene: Scene) -> None:
    job = cell()
    job.timeout = None
    scene.patience.begin(job)
    scene.clock.turn_to(1e6)
    assert (scene.done, job.timed_out) == ([], False)


def test_a_shell_is_interrupted_a_few_times_as_long_as_its_command_runs(scene: Scene) -> None:
    job = cell(language="bash")
    scene.patience.begin(job)
    scene.patience.interrupt(job)
    scene.clock.turn_to(9)
    assert scene.done == [(at, "interrupt") for at in (0, 0.3, 0.6, 0.9)]
    scene.patience.interrupt(job)
    scene.patience.end()
    scene.patience.begin(cell(language="bash"))
    scene.clock.turn_to(12)
    assert scene.done[4:] == [(9, "interrupt")], "the next command has done nothing wrong"


def test_a_fork_has_a_time_of_its_own(scene: Scene) -> None:
    order = ForkOrder({"op": "checkpoint"}, [], lambda error, facts: None, patience=3.0)
    scene.patience.begin_answer(order, lambda: scene.done.append((scene.clock.now, "too late")))
    scene.clock.turn_to(2.9)
    assert scene.done == []
    scene.clock.turn_to(60)
    assert scene.done == [(3.0, "too late")]
