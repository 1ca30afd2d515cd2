"""Interrupts, cancels and time-outs stop the right cell, keep the state, and say what they did."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from kernelbox import Box, ExecutionResult, KernelRecord

Run = Callable[..., ExecutionResult]
Background = Callable[..., "Running"]


class Running:
    """A cell that runs in a thread of the test."""

    def __init__(self, box: Box, kernel: KernelRecord, code: str, **options: object) -> None:
        self._result: list[ExecutionResult] = []
        self._thread = threading.Thread(
            target=lambda: self._result.append(
                box.execute(kernel, code, **{"timeout": 30, **options})  # type: ignore[arg-type]
            )
        )
        self._thread.start()

    def result(self, seconds: float = 10) -> ExecutionResult:
        self._thread.join(seconds)
        assert self._result, f"no result after {seconds} s"
        return self._result[0]


@pytest.fixture
def start(
    shared_box: Box, kernel: KernelRecord, waiting: Callable[..., None], tmp_path
) -> Iterator[Background]:
    """Start a cell; return when it has come to ``READY`` (at its beginning by default)."""
    cells: list[Running] = []

    def start_cell(code: str, **options: object) -> Running:
        started = tmp_path / f"started-{len(cells)}"
        code = code if "READY" in code else f"READY\n{code}"
        code = code.replace("READY", f"open({str(started)!r}, 'w').close()")
        cell = Running(shared_box, kernel, code, **options)
        cells.append(cell)
        waiting(started.exists, what="the cell to start")
        return cell

    yield start_cell
    for cell in cells:
        cell._thread.join(15)


# -- interrupt ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "import time; time.sleep(60)",
        "while True: pass",
        "import threading; threading.Event().wait()",
        "import subprocess; subprocess.run(['sleep', '60'])",
        "import asyncio; await asyncio.sleep(60)",
        "import asyncio; asyncio.run(asyncio.sleep(60))",
        "while True: print('x' * 1000)",
        "from IPython.display import display\nwhile True: display('x')",
        "import time\nclass A:\n    def __repr__(self): time.sleep(60)\nA()\nraise KeyboardInterrupt",
    ],
    ids=["sleep", "busy", "lock", "process", "await", "asyncio.run", "print", "display", "repr"],
)
def test_an_interrupt_ends_the_cell_and_keeps_the_state(
    shared_box: Box, kernel: KernelRecord, start: Background, ran: Run, code: str
) -> None:
    ran("x = 5")
    cell = start(code)
    assert shared_box.interrupt(kernel)
    result = cell.result()
    assert result.status == "error"
    assert result.error is not None
    assert result.error.ename == "KeyboardInterrupt"
    assert result.state == "kept"
    after = ran("print('fine'); x")
    assert (after.output, after.return_value) == ("fine\n", "5")


def test_an_interrupt_waits_for_a_c_call_to_return(
    shared_box: Box, kernel: KernelRecord, start: Background
) -> None:
    cell = start("sum(range(20_000_000))\nprint('never')")
    shared_box.interrupt(kernel)
    result = cell.result(20)
    assert result.error is not None
    assert result.error.ename == "KeyboardInterrupt"
    assert "never" not in result.output


def test_a_cell_may_swallow_the_interrupt(
    shared_box: Box, kernel: KernelRecord, start: Background
) -> None:
    cell = start(
        "import time\n"
        "try:\n    READY; time.sleep(60)\n"
        "except KeyboardInterrupt:\n    print('swallowed')"
    )
    shared_box.interrupt(kernel)
    result = cell.result()
    assert result.ok
    assert result.output == "swallowed\n"


def test_a_handler_of_the_users_own_is_called(
    shared_box: Box, kernel: KernelRecord, start: Background, ran: Run
) -> None:
    ran("import signal, time; ours = signal.signal(signal.SIGINT, lambda *_: print('mine'))")
    cell = start("time.sleep(0.3); print('slept')")
    shared_box.interrupt(kernel)
    result = cell.result()
    assert result.ok
    assert result.output == "mine\nslept\n"
    ran("_ = signal.signal(signal.SIGINT, ours)")
    cell = start("time.sleep(60)")
    shared_box.interrupt(kernel)
    assert cell.result().status == "error"


def test_an_interrupt_between_cells_is_ignored(
    shared_box: Box, kernel: KernelRecord, ran: Run
) -> None:
    pid = int(ran("import os; os.getpid()").return_value or 0)
    assert shared_box.interrupt(kernel) is False
    import os
    import signal

    for _ in range(20):  # also one that does not come through us
        os.kill(pid, signal.SIGINT)
    assert ran("1 + 1").return_value == "2"


def test_a_late_interrupt_never_hits_the_next_cell(
    shared_box: Box, kernel: KernelRecord, ran: Run
) -> None:
    """200 interrupts race with the end of a cell; each stops at most the cell it was meant for."""
    ran("import time")
    ran("%xmode Minimal")  # a long traceback would take longer than all the rest
    chance = random.Random(7)
    stopped = 0
    for _ in range(200):
        interrupt = threading.Timer(chance.random() * 0.003, shared_box.interrupt, [kernel])
        interrupt.start()
        first = shared_box.execute(kernel, "time.sleep(0.001); 'first'")
        interrupt.join()
        second = shared_box.execute(kernel, "'second'")
        assert first.state == second.state == "kept"
        assert second.return_value == "'second'"
        stopped += not first.ok
    assert 0 < stopped < 200, "the race was not run"


def test_an_alarm_of_the_users_own_raises_in_its_cell_and_harms_nothing_between_cells(
    ran: Run, run: Run, waiting: Callable[..., None], tmp_path
) -> None:
    rung = tmp_path / "rung"
    ran(
        "import pathlib, signal, time; x = 5\n"
        "def ring(*_):\n"
        f"    pathlib.Path({str(rung)!r}).touch()\n"
        "    raise TimeoutError('alarm')\n"
        "_ = signal.signal(signal.SIGALRM, ring)"
    )
    result = run("signal.setitimer(signal.ITIMER_REAL, 0.05); time.sleep(20)")
    assert result.error is not None
    assert result.error.evalue == "alarm"
    rung.unlink()
    ran("signal.setitimer(signal.ITIMER_REAL, 0.05)")
    waiting(rung.exists, what="the alarm between cells")
    after = ran("x")
    assert after.return_value == "5"
    assert "TimeoutError: alarm" in "".join(i.text or "" for i in after.outputs)


# -- cancel -------------------------------------------------------------------------------------


def test_cancel_stops_the_running_cell(
    shared_box: Box, kernel: KernelRecord, start: Background, ran: Run
) -> None:
    ran("import time; x = 5")
    cell = start("time.sleep(60)", execution_id="mine")
    assert not shared_box.cancel(kernel, "another")
    assert shared_box.cancel(kernel, "mine")
    result = cell.result()
    assert result.error is not None
    assert (result.error.ename, result.error.evalue) == ("KeyboardInterrupt", "cancelled")
    assert ran("x").return_value == "5"


def test_cancel_takes_a_waiting_cell_out_of_the_queue(
    shared_box: Box, kernel: KernelRecord, start: Background, ran: Run, waiting: Callable[..., None]
) -> None:
    running = start("import time; time.sleep(0.5); 'ran'")
    queued = Running(shared_box, kernel, "x = 'must not run'", execution_id="queued")
    waiting(lambda: shared_box.status(kernel)["queued"] == 1, what="the cell to queue")
    assert shared_box.cancel(kernel, "queued")
    result = queued.result()
    assert result.status == "error"
    assert result.error is not None
    assert "did not run" in result.error.evalue
    assert running.result().return_value == "'ran'"
    assert ran("'x' in globals()").return_value == "False"
    assert not shared_box.cancel(kernel, "queued")


# -- time-outs ----------------------------------------------------------------------------------


@pytest.fixture
def hasty(shared_box: Box) -> Iterator[Box]:
    """A Box that waits less long before it interrupts again, and kills."""
    with Box(replace(shared_box.settings, interrupt_grace=0.1, kill_grace=0.4)) as box:
        yield box


def test_a_timeout_interrupts_and_keeps_the_state(ran: Run, run: Run) -> None:
    result = run("import time; x = 5; print('hm'); time.sleep(60)", timeout=0.2)
    assert result.status == "timeout"
    assert result.error is not None
    assert result.error.ename == "TimeoutError"
    assert result.output == "hm\n"
    assert result.state == "kept"
    assert result.steps == ["interrupted after 0.2 s"]
    assert ran("x").return_value == "5"


def test_a_cell_that_ignores_interrupts_is_killed_and_says_so(
    hasty: Box, kernel: KernelRecord, ran: Run
) -> None:
    code = (
        "import time; x = 5\n"
        "while True:\n"
        "    try: time.sleep(60)\n"
        "    except KeyboardInterrupt: print('no')"
    )
    result = hasty.execute(kernel, code, timeout=0.2)
    assert result.status == "timeout"
    assert result.state == "lost"
    assert result.output == "no\nno\n"
    assert [step.split()[0] for step in result.steps] == ["interrupted", "interrupted", "killed"]
    assert result.cause is not None
    assert "killed" in result.cause
    after = ran("'x' in globals()")
    assert after.return_value == "False"
    assert after.epoch == result.epoch == 2


def test_a_c_call_that_holds_the_gil_is_killed_in_time(hasty: Box, kernel: KernelRecord) -> None:
    began = time.monotonic()
    result = hasty.execute(kernel, "sum(range(10**10))", timeout=0.2)
    assert time.monotonic() - began < 5
    assert (result.status, result.state) == ("timeout", "lost")


def test_the_clock_starts_with_the_cell_not_with_the_queue(
    shared_box: Box, kernel: KernelRecord, start: Background
) -> None:
    first = start("import time; time.sleep(0.6)")
    second = shared_box.execute(kernel, "'on time'", timeout=0.4)
    assert second.return_value == "'on time'"
    assert first.result().ok


# -- looking on ---------------------------------------------------------------------------------


def test_status_shows_the_stack_without_disturbing_a_sleep(
    shared_box: Box, kernel: KernelRecord, start: Background
) -> None:
    cell = start(
        "import time\n"
        "def nap():\n"
        "    began = time.monotonic(); READY; time.sleep(0.5); return time.monotonic() - began\n"
        "nap()"
    )
    for _ in range(5):
        status = shared_box.status(kernel)
        assert "in nap" in status["stack"]
        assert "IPython" not in status["stack"], "what is below the cell is noise"
        assert "def nap" in status["running"]["code"]
    result = cell.result()
    assert float(result.return_value or 0) >= 0.5
    assert [item.kind for item in result.outputs] == ["execute_result"]
    assert result.stderr == ""


def test_status_shows_the_stack_of_a_c_call_that_holds_the_gil(
    shared_box: Box, kernel: KernelRecord, start: Background
) -> None:
    cell = start("def count():\n    READY; return sum(range(30_000_000))\ncount()")
    began = time.monotonic()
    status = shared_box.status(kernel)
    assert time.monotonic() - began < 2
    assert "in count" in status["stack"]
    assert cell.result(30).return_value == str(sum(range(30_000_000)))


def test_status_of_an_idle_kernel_has_no_stack(
    shared_box: Box, kernel: KernelRecord, ran: Run
) -> None:
    ran("1")
    status = shared_box.status(kernel)
    assert status["alive"]
    assert status["running"] is None
    assert status["stack"] is None
    roles = {process["role"] for process in status["processes"]}
    assert {"interpreter", "warden", "stub"} <= roles
