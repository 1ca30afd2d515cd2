"""A kernel without a process: what it does when we ourselves fail it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from kernelbox.reactor import Reactor
from kernelbox.warden.execution import Execution
from kernelbox.warden.exits import Exit
from kernelbox.warden.identity import Identity
from kernelbox.warden.jobs import ForkOrder, Question
from kernelbox.warden.kernel import Kernel
from kernelbox.warden.landlord import Landlord
from kernelbox.warden.shelf import Shelf


class Player:
    """A member that is told things and says what the test has it say."""

    role, pid, inner_pid, forked, oom_before = "interpreter", 0, 0, False, 0

    def __init__(self) -> None:
        self.ended = None
        self.told: list[dict[str, Any]] = []
        self.fails_at = ""

    def send(self, frame: dict[str, Any], fds: list[int] | None = None) -> None:
        if frame["op"] == self.fails_at:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self.told.append(frame)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *given, **named: None


class House:
    """A family with one member after the other, and no descriptors when there are none."""

    hands = None

    def __init__(self) -> None:
        self.reactor = Reactor()
        self.members: list[Player] = []
        self.is_full = False

    def start_interpreter(self, kernel: Kernel) -> Player:
        if self.is_full:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self.members.append(Player())
        return self.members[-1]

    def start_bash(self, kernel: Kernel, cwd: str) -> Player:
        return Player()

    def clear_out(self, pid: int) -> None: ...

    def parked_arrived(self, parked: object) -> None: ...
    def kernel_changed(self, kernel: Kernel) -> None: ...
    def kernel_stirred(self, kernel: Kernel) -> None: ...


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    yield made
    made.reactor.close()


@pytest.fixture
def kernel(house: House, tmp_path: Path) -> Kernel:
    identity = Identity("id", "name", "", str(tmp_path / "socket"), str(tmp_path), {})
    shelf = Shelf(str(tmp_path / "spool"), limit=1000, total=1000, keep=10)
    return Kernel(cast(Landlord, house), identity, shelf=shelf, epoch=1)


def begin(kernel: Kernel, house: House) -> Player:
    kernel.succession.start()
    member = house.members[-1]
    kernel.member_said(cast(Any, member), {"op": "begun"})
    return member


def test_a_restart_in_the_midst_of_startup_code_waits_for_its_own(
    kernel: Kernel, house: House
) -> None:
    kernel.identity.startup_code = "x = 1"
    told: list[str] = []
    kernel.when_ready(lambda failure: told.append(f"first: {failure}"))
    begin(kernel, house)
    kernel.succession.restart(lambda failure: told.append(f"second: {failure}"))
    assert len(told) == 1
    assert "KernelRestarted" in told[0]
    member = house.members[-1]
    kernel.member_said(cast(Any, member), {"op": "begun"})
    kernel.member_said(cast(Any, member), {"op": "done", "ok": True})
    assert told[1:] == ["second: None"]


@pytest.mark.parametrize("startup", [None, "x = 1"])
def test_a_command_is_answered_also_if_python_does_not_come_up_again_meanwhile(
    kernel: Kernel, house: House, startup: str | None
) -> None:
    """Startup code that waited for the command to end took it along, unanswered."""
    kernel.identity.startup_code = startup
    first = begin(kernel, house)
    kernel.member_said(cast(Any, first), {"op": "done", "ok": True})
    command = Execution("a", "sleep 9", language="bash")
    kernel.submit(command)
    assert kernel.current is command
    kernel.member_ended(cast(Any, first), Exit(9, "died of SIGKILL"))
    second = house.members[-1]
    assert second is not first
    if startup:
        kernel.member_said(cast(Any, second), {"op": "begun"})
    kernel.member_ended(cast(Any, second), Exit(9, "died of SIGKILL"))
    assert kernel.current is command
    kernel.bash.bash_done(0)
    assert command.result is not None
    assert (command.result["status"], command.result["state"]) == ("success", "lost")
    assert kernel.current is None


def run(kernel: Kernel, name: str = "cell") -> Execution:
    job = Execution(name, "1")
    kernel.submit(job)
    return job


def test_a_cell_is_sent_and_its_end_is_its_result(kernel: Kernel, house: House) -> None:
    member = begin(kernel, house)
    first, second = run(kernel, "a"), run(kernel, "b")
    assert [frame["op"] for frame in member.told] == ["begin", "run"]
    kernel.member_said(cast(Any, member), {"op": "done", "ok": True, "execution_count": 1})
    assert first.result is not None
    assert (first.result["status"], first.result["state"]) == ("success", "kept")
    assert second.result is None
    assert kernel.current is second


def test_who_waits_for_an_interpreter_that_cannot_be_started_hears_of_it(
    kernel: Kernel, house: House
) -> None:
    """The job stayed in the queue, its caller was told that it had failed, and later it was run."""
    house.is_full = True
    told: list[str | None] = []
    kernel.when_ready(told.append)
    job = run(kernel)
    assert job.result is not None
    assert "no interpreter can be started" in job.result["error"]["evalue"]
    assert len(kernel.queue) == 0
    assert told == ["no interpreter can be started: Too many open files"]
    house.is_full = False
    member = begin(kernel, house)
    assert [frame["op"] for frame in member.told] == ["begin"]
    assert run(kernel).result is None


@pytest.mark.parametrize("op", ["ask", "checkpoint", "run"])
def test_what_cannot_be_sent_is_answered_and_the_next_is_sent(
    kernel: Kernel, house: House, op: str
) -> None:
    """A kernel was busy with it for ever."""
    member = begin(kernel, house)
    member.fails_at = op
    answers: list[object] = []
    fds = [os.memfd_create("for-the-interpreter")]
    if op == "ask":
        kernel.submit(Question("save", {}, answers.append, fds=fds))
    elif op == "checkpoint":
        order = {"op": "checkpoint"}
        kernel.submit(ForkOrder(order, fds, lambda error, facts: answers.append(error)))
    else:
        os.close(fds.pop())
        before = len(os.listdir("/proc/self/fd"))
        kernel.submit(Execution("a", "1", atomic=True, finishers=[answers.append]))
        assert len(os.listdir("/proc/self/fd")) == before
    (answer,) = answers
    assert "Too many open files" in str(answer)
    assert fds == []
    assert kernel.current is None
    member.fails_at = ""
    run(kernel, "next")
    assert member.told[-1]["op"] == "run"
