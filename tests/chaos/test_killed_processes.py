"""Each of our processes, killed while idle and while a cell runs: told at once, and no debris."""

from __future__ import annotations

import signal
import subprocess
import time

import psutil
import pytest

from kernelbox import Box, KernelLost, KernelRecord, StartupFailed

WAIT = "import time\nwhile True: time.sleep(0.01)"
FATAL = ["stub", "warden"]
"""Whose death is the end of the whole family."""
HARMLESS = ["root", "keeper"]
"""Whose death no kernel notices."""
SIGNALS = [signal.SIGKILL, signal.SIGTERM]


def family(pid: int) -> list[int]:
    """A warden and all below it."""
    warden = psutil.Process(pid)
    return [pid, *(child.pid for child in warden.children(recursive=True))]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_killed_interpreter_is_told_by_the_running_cell_at_once(
    shared_stage, kernel: KernelRecord, stopwatch, number: signal.Signals
) -> None:
    box: Box = shared_stage.box
    assert box.execute(kernel, "x = 1").epoch == kernel.epoch
    pid = shared_stage.pid(kernel, "interpreter")
    running = shared_stage.start(kernel, WAIT, first="print('last words')")
    watch = stopwatch()
    shared_stage.kill(pid, number)
    result = running.result(10)
    watch.within(1.5)
    assert (result.status, result.state) == ("error", "lost")
    assert result.error is not None
    assert number.name in result.error.evalue
    assert result.output == "last words\n"
    assert result.epoch == kernel.epoch + 1
    after = box.execute(kernel, "'x' in globals()")
    assert (after.return_value, after.state, after.epoch) == ("False", "kept", result.epoch)


def test_a_killed_idle_interpreter_is_told_by_the_next_result(
    shared_stage, kernel: KernelRecord
) -> None:
    shared_stage.kill(shared_stage.pid(kernel, "interpreter"))
    # Either it is known by now and the cell runs in a new one, or the cell met the dead one.
    result = shared_stage.box.execute(kernel, "1+1")
    assert result.state == "lost"
    assert "SIGKILL" in str(result.cause)
    assert result.return_value == "2" or "SIGKILL" in str(result.error)
    assert shared_stage.box.execute(kernel, "1+1").state == "kept"


def test_a_killed_interpreter_is_not_a_lost_bash(shared_stage, kernel: KernelRecord) -> None:
    box: Box = shared_stage.box
    box.execute(kernel, "x=42", language="bash")
    shared_stage.kill(shared_stage.pid(kernel, "interpreter"))
    assert box.execute(kernel, "echo $x", language="bash").output == "42\n"


def test_a_bash_command_goes_on_when_the_interpreter_is_killed(
    shared_stage, kernel: KernelRecord, tmp_path
) -> None:
    box: Box = shared_stage.box
    box.execute(kernel, "x=42", language="bash")
    go_on = tmp_path / "go-on"
    pid = shared_stage.pid(kernel, "interpreter")
    running = shared_stage.start(
        kernel,
        f"until [ -e {go_on} ]; do sleep 0.01; done; echo done",
        language="bash",
        timeout=20,
    )
    shared_stage.kill(pid)
    go_on.touch()
    result = running.result(10)
    assert (result.status, result.output) == ("success", "done\n")
    assert result.state == "lost"
    assert "SIGKILL" in str(result.cause)
    assert box.execute(kernel, "echo $x", language="bash").output == "42\n"
    assert box.execute(kernel, "1+1").state == "kept"


@pytest.mark.parametrize("number", SIGNALS)
def test_a_killed_bash_is_told_and_replaced(
    shared_stage, kernel: KernelRecord, stopwatch, number: signal.Signals
) -> None:
    box: Box = shared_stage.box
    box.execute(kernel, "x = 1")
    box.execute(kernel, "x=1", language="bash")
    pid = shared_stage.pid(kernel, "bash")
    running = shared_stage.start(kernel, "while :; do :; done", language="bash")
    watch = stopwatch()
    shared_stage.kill(pid, signal.SIGKILL if number == signal.SIGTERM else number)
    result = running.result(10)
    watch.within(1.5)
    assert (result.status, result.state) == ("error", "kept")  # which is about Python's variables
    assert "bash session was killed" in result.notes[0]
    assert box.execute(kernel, "echo new$x", language="bash").output == "new\n"
    assert box.execute(kernel, "x").return_value == "1"


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("role", FATAL)
def test_a_killed_family_is_told_by_the_running_cell_at_once(
    shared_stage, kernel: KernelRecord, stopwatch, role: str, number: signal.Signals
) -> None:
    box: Box = shared_stage.box
    box.execute(kernel, "sleep 1000 &", language="bash")
    box.execute(kernel, "import subprocess; subprocess.Popen(['sleep', '1000']); None")
    everybody = family(shared_stage.pid(kernel, "warden"))
    pid = shared_stage.pid(kernel, role)
    running = shared_stage.start(kernel, WAIT)
    watch = stopwatch()
    shared_stage.kill(pid, number)
    result = running.result(10)
    watch.within(2)
    assert (result.status, result.state) == ("error", "lost")
    assert result.error is not None
    assert "killed" in str(result.cause)
    shared_stage.gone(*everybody)
    with pytest.raises(KernelLost, match="killed"):
        box.execute(kernel, "1")


def test_a_branch_of_a_family_that_is_killed_is_told_so(
    shared_stage, kernel: KernelRecord, stopwatch
) -> None:
    box: Box = shared_stage.box
    running = shared_stage.start(kernel, WAIT)
    branching = shared_stage.submit(box.branch, kernel, "of the killed")
    deadline = time.monotonic() + 10
    while not box.status(kernel)["queued"]:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    watch = stopwatch()
    shared_stage.kill(shared_stage.pid(kernel, "warden"))
    with pytest.raises(StartupFailed, match=r"ended before branch 'of the killed' was made"):
        branching.result(10)
    watch.within(2)
    assert running.result(10).state == "lost"


@pytest.mark.parametrize("role", FATAL)
def test_an_idle_kernel_whose_family_was_killed_says_so_and_can_be_made_again(
    shared_stage, kernel: KernelRecord, role: str
) -> None:
    box: Box = shared_stage.box
    everybody = family(shared_stage.pid(kernel, "warden"))
    shared_stage.kill(shared_stage.pid(kernel, role))
    shared_stage.gone(*everybody)
    for call in (
        lambda: box.execute(kernel, "1"),
        lambda: box.execute(kernel.name, "1"),
        lambda: box.status(kernel.name),
        lambda: box.interrupt(kernel),
    ):
        with pytest.raises(KernelLost) as caught:
            call()
        assert "killed" in str(caught.value)
        assert f"get_or_create({kernel.name!r})" in str(caught.value)
    again = box.get_or_create(kernel.name)
    assert (again.state, again.epoch > kernel.epoch) == ("lost", True)
    assert "killed" in str(again.cause)
    first, second = box.execute(again, "1+1"), box.execute(again, "1+1")
    assert (first.state, second.state) == ("lost", "kept")
    box.destroy(again)


@pytest.mark.parametrize("role", FATAL)
def test_a_request_to_a_family_that_dies_meanwhile_is_answered(
    shared_stage, kernel: KernelRecord, role: str
) -> None:
    """Not only executions: a question that waits behind a cell is answered too."""
    pid = shared_stage.pid(kernel, role)
    running = shared_stage.start(kernel, WAIT)
    question = shared_stage.submit(shared_stage.box.complete, kernel, "impor")
    branch = shared_stage.submit(shared_stage.box.branch, kernel, f"{kernel.name}-copy")
    shared_stage.kill(pid)
    for waiting in (question, branch):
        with pytest.raises(Exception) as caught:
            waiting.result(10)
        assert type(caught.value).__module__ == "kernelbox.errors", repr(caught.value)
    assert running.result(10).state == "lost"


def test_warden_and_stub_killed_at_once_leave_nothing_running(
    shared_stage, kernel: KernelRecord
) -> None:
    box: Box = shared_stage.box
    box.execute(kernel, "setsid sleep 1000 & disown", language="bash")
    box.execute(
        kernel,
        "import os, subprocess, time\n"
        "subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "if os.fork() == 0:\n    os.setsid()\n    time.sleep(1000)",
    )
    warden = shared_stage.pid(kernel, "warden")
    everybody = family(warden)
    assert len(everybody) >= 7
    running = shared_stage.start(kernel, WAIT)
    subprocess.run(["kill", "-9", str(warden), str(shared_stage.pid(kernel, "stub"))], check=True)
    assert running.result(10).state == "lost"
    shared_stage.gone(*everybody)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("role", HARMLESS)
def test_no_kernel_notices_the_death_of_root_or_keeper(
    shared_stage, kernel: KernelRecord, tmp_path, role: str, number: signal.Signals
) -> None:
    box: Box = shared_stage.box
    box.execute(kernel, "x = 41")
    go_on = tmp_path / "go-on"
    running = shared_stage.start(
        kernel, f"import os, time\nwhile not os.path.exists({str(go_on)!r}): time.sleep(0.01)\nx+1"
    )
    shared_stage.kill(shared_stage.pid(kernel, role), number)
    go_on.touch()
    result = running.result(10)
    assert (result.return_value, result.state, result.epoch) == ("42", "kept", kernel.epoch)
    assert box.execute(kernel, "x").return_value == "41"
    assert box.execute(kernel.name, "x").return_value == "41"
    assert kernel.kernel_id in [record.kernel_id for record in box.list_kernels()]
    other = box.get_or_create(f"{kernel.name}-other")
    assert box.execute(other, "1+1").return_value == "2"
    assert box.destroy(other)
    assert box.get_or_create(kernel.name).kernel_id == kernel.kernel_id


@pytest.mark.parametrize("number", SIGNALS)
def test_keeper_and_root_killed_at_once_lose_no_kernel(
    shared_stage, kernel: KernelRecord, number: signal.Signals
) -> None:
    box: Box = shared_stage.box
    box.execute(kernel, "x = 1")
    keeper, root = shared_stage.keeper(), shared_stage.root()
    subprocess.run(["kill", f"-{number:d}", str(keeper), str(root)], check=True)
    shared_stage.gone(keeper, root)
    assert box.execute(kernel.name, "x").return_value == "1"
    assert box.get_or_create(kernel.name).kernel_id == kernel.kernel_id
    other = box.get_or_create(f"{kernel.name}-other")
    assert box.execute(other, "1+1").return_value == "2"
    assert box.destroy(other)


def test_a_kernel_that_dies_while_there_is_no_keeper_is_remembered_as_lost(
    shared_stage, kernel: KernelRecord
) -> None:
    warden = shared_stage.pid(kernel, "warden")
    everybody = family(warden)
    shared_stage.wait_until_written(kernel)
    shared_stage.kill(shared_stage.keeper())
    shared_stage.kill(warden)
    shared_stage.gone(*everybody)
    with pytest.raises(KernelLost, match="gone when a new keeper looked"):
        shared_stage.box.execute(kernel.name, "1")
    assert shared_stage.box.get_or_create(kernel.name).state == "lost"
    shared_stage.box.destroy(kernel.name)


def test_a_root_that_dies_while_it_makes_kernels_is_replaced(shared_stage, threads) -> None:
    box: Box = shared_stage.box
    box.destroy(box.get_or_create("warm-up"))
    roots = [shared_stage.root()]

    def make(number: int) -> str | None:
        if number == 0:
            shared_stage.kill(roots[0])
            return None
        record = box.get_or_create(f"made-{number}")
        return box.execute(record, f"{number}*2").return_value

    assert threads(make, 8) == [None, *(str(number * 2) for number in range(1, 8))]
    for number in range(1, 8):
        assert box.destroy(f"made-{number}")


def test_a_branch_and_its_parent_are_both_found_by_the_next_keeper(
    shared_stage, kernel: KernelRecord
) -> None:
    box: Box = shared_stage.box
    box.execute(kernel, "x = 1")
    copies = [box.branch(kernel, f"{kernel.name}-{n}") for n in range(3)]
    shared_stage.kill(shared_stage.keeper())
    assert {r.kernel_id for r in box.list_kernels()} >= {c.kernel_id for c in copies}
    # The new keeper hears of the end of one while the others live on.
    assert box.destroy(copies[0])
    with pytest.raises(Exception, match="no kernel named"):
        box.execute(copies[0], "1")
    assert [box.execute(copy, "x").return_value for copy in copies[1:]] == ["1", "1"]
    assert box.destroy(kernel)
    assert [box.execute(copy, "x").return_value for copy in copies[1:]] == ["1", "1"]
    for copy in copies[1:]:
        assert box.destroy(copy)
