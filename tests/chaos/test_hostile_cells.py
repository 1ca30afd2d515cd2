"""What a cell can do to its own process, and to ours: it is told what happened, and can go on."""

from __future__ import annotations

import re
import time

import psutil
import pytest

from kernelbox import Box, ExecutionResult, KernelRecord

HOLD_THE_GIL = "import time; sum(range({}))"
"""``sum`` looks at no signal and lets no other thread run until it is done."""


def streamed(result: ExecutionResult) -> str:
    """All that was printed, also by what earlier cells left running."""
    return "".join(item.text or "" for item in result.outputs if item.kind == "stream")


@pytest.fixture(scope="module")
def gil_seconds(shared_box: Box):
    """How far ``sum`` gets in a second, so that tests can hold the GIL for as long as they mean."""
    shared_box.get_or_create("calibrate")
    result = shared_box.execute(
        "calibrate",
        "import time; t = time.perf_counter(); sum(range(10**7)); time.perf_counter() - t",
    )
    shared_box.destroy("calibrate")
    per_second = 10**7 / float(result.return_value or 1)
    return lambda seconds: HOLD_THE_GIL.format(int(per_second * seconds))


def test_the_last_words_before_os_exit_arrive(shared_box: Box, kernel: KernelRecord) -> None:
    for code in (0, 3):
        result = shared_box.execute(
            kernel,
            f"import os, sys; print('last'); print('words', file=sys.stderr)\nos._exit({code})",
        )
        assert (result.output, result.stderr) == ("last\n", "words\n")
        assert (result.status, result.state) == ("error", "lost")
        assert f"exit code {code}" in str(result.cause)


def test_a_megabyte_of_last_words_arrives(shared_box: Box, kernel: KernelRecord) -> None:
    result = shared_box.execute(
        kernel, "import os; print('x' * 1_000_000 + 'end'); os._exit(1)", execution_id="words"
    )
    assert result.output.endswith("end\n")
    assert shared_box.output(kernel, "words", start=-10).text == "xxxxxxend\n"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import os; os.abort()", "SIGABRT"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "SIGTERM"),
    ],
    ids=["segfault", "abort", "suicide", "sigterm"],
)
def test_a_crash_is_a_result_with_its_cause(
    shared_box: Box, kernel: KernelRecord, stopwatch, code: str, words: str
) -> None:
    watch = stopwatch()
    result = shared_box.execute(kernel, f"print('before')\n{code}", timeout=30)
    watch.within(2)
    assert result.status == "error"
    assert result.error is not None
    assert words in str(result.error)
    assert result.output == "before\n"
    after = shared_box.execute(kernel, "1+1")
    assert (after.return_value, after.epoch) == ("2", result.epoch)


@pytest.mark.parametrize("code", ["import sys; sys.exit(3)", "raise SystemExit('bye')", "exit()"])
def test_sys_exit_is_an_error_and_the_kernel_lives(
    shared_box: Box, kernel: KernelRecord, code: str
) -> None:
    shared_box.execute(kernel, "x = 42")
    result = shared_box.execute(kernel, code)
    assert (result.status, result.state) == ("error", "kept")
    assert result.error is not None
    assert result.error.ename == "SystemExit"
    assert shared_box.execute(kernel, "x").return_value == "42"


def test_a_fork_in_a_cell_does_not_come_back_as_a_second_interpreter(
    shared_stage, kernel: KernelRecord
) -> None:
    box: Box = shared_stage.box
    result = box.execute(
        kernel,
        "import os\nx = 1\npid = os.fork()\nif pid == 0:\n    x = 2\n    print('child')\n"
        "else:\n    os.waitpid(pid, 0)\n    print('parent')",
    )
    assert result.output == "child\nparent\n"
    assert box.execute(kernel, "x").return_value == "1"
    interpreter = psutil.Process(shared_stage.pid(kernel, "interpreter"))
    assert interpreter.children() == []


def test_the_child_of_a_fork_ends_with_the_cell_however_it_ends(
    shared_stage, kernel: KernelRecord
) -> None:
    box: Box = shared_stage.box
    for ending, code in (
        ("1/0", "1"),
        ("raise SystemExit(3)", "3"),
        ("raise KeyboardInterrupt", "1"),
        ("import os; os._exit(4)", "4"),
    ):
        result = box.execute(
            kernel,
            f"import os\npid = os.fork()\nif pid == 0:\n    {ending}\n"
            "os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])",
        )
        assert result.ok, result.error
        assert result.return_value == code, ending
    assert box.execute(kernel, "1+1").return_value == "2"


def test_fifty_forked_children_all_print_and_end(shared_stage, kernel: KernelRecord) -> None:
    box: Box = shared_stage.box
    result = box.execute(
        kernel,
        "import os\nkids = []\nfor n in range(50):\n    pid = os.fork()\n    if pid == 0:\n"
        "        print(f'child {n}')\n        break\n    kids.append(pid)\n"
        "else:\n    for pid in kids: os.waitpid(pid, 0)\n    print('all done')",
        timeout=30,
    )
    assert result.ok, result.error
    # Fifty processes write at once: a line of one may land in a line of another, but none is lost.
    assert result.output.endswith("all done\n")
    assert sorted(map(int, re.findall(r"child (\d+)", result.output))) == list(range(50))
    interpreter = psutil.Process(shared_stage.pid(kernel, "interpreter"))
    assert interpreter.children(recursive=True) == []


def test_children_that_outlive_the_cell_keep_printing_and_end_with_the_kernel(
    shared_stage, kernel: KernelRecord, tmp_path
) -> None:
    box: Box = shared_stage.box
    go_on = tmp_path / "go-on"
    result = box.execute(
        kernel,
        "import os, time\npid = os.fork()\nif pid == 0:\n"
        f"    while not os.path.exists({str(go_on)!r}): time.sleep(0.01)\n"
        "    print('late', flush=True)\n    time.sleep(1000)\npid",
    )
    child = int(result.return_value or 0)
    assert psutil.pid_exists(child)
    go_on.touch()
    heard = ""
    deadline = time.monotonic() + 10
    while "late\n" not in heard and time.monotonic() < deadline:
        heard += streamed(box.execute(kernel, "None"))
    assert heard == "late\n"
    box.destroy(kernel)
    shared_stage.gone(child)


@pytest.mark.parametrize("fd", [0, 1, 2])
def test_a_cell_that_closes_a_standard_descriptor_can_go_on(
    shared_box: Box, kernel: KernelRecord, fd: int
) -> None:
    result = shared_box.execute(kernel, f"import os; os.close({fd}); print('said all the same')")
    assert result.output == "said all the same\n"
    result = shared_box.execute(kernel, "import subprocess; subprocess.call(['echo', 'hello'])")
    assert (result.output, result.return_value) == ("hello\n", "0")
    assert shared_box.execute(kernel, "!echo from a shell").output == "from a shell\n"


def test_a_cell_that_redirects_fd_1_keeps_python_output(
    shared_box: Box, kernel: KernelRecord
) -> None:
    code = "import os; n = os.open('/dev/null', os.O_WRONLY); os.dup2(n, 1); print('still here')"
    assert shared_box.execute(kernel, code).output == "still here\n"
    assert shared_box.execute(kernel, "print('and here')").output == "and here\n"


def test_a_cell_that_closes_every_descriptor_is_told_that_its_kernel_is_lost(
    shared_box: Box, kernel: KernelRecord, stopwatch
) -> None:
    watch = stopwatch()
    result = shared_box.execute(kernel, "import os; os.closerange(0, 1 << 16); 7", timeout=30)
    watch.within(5)
    assert (result.status, result.state) == ("error", "lost")
    assert "descriptors" in str(result.cause) or "exit code" in str(result.cause)
    assert shared_box.execute(kernel, "1+1").return_value == "2"


def test_a_cell_that_closes_or_replaces_sys_stdout_can_go_on(
    shared_box: Box, kernel: KernelRecord
) -> None:
    for code in ("sys.stdout.close()", "sys.stdout = None", "del sys.stdout", "sys.stderr = 7"):
        shared_box.execute(kernel, f"import sys; {code}", timeout=10)
        assert shared_box.execute(kernel, "1/0", timeout=10).status == "error"
        result = shared_box.execute(kernel, "print('back'); 6*7")
        assert (result.output, result.return_value) == ("back\n", "42"), code


def test_two_hundred_kilobytes_from_c_while_the_gil_is_held_arrive(
    shared_box: Box, kernel: KernelRecord, stopwatch
) -> None:
    watch = stopwatch()
    result = shared_box.execute(
        kernel,
        "import ctypes\nlibc = ctypes.PyDLL(None)\ndata = b'x' * 199_999 + b'\\n'\n"
        "written = 0\nwhile written < len(data):\n"
        "    written += libc.write(1, data[written:], len(data) - written)\nwritten",
        execution_id="held",
    )
    watch.within(10)
    assert result.return_value == "200000"
    assert shared_box.output(kernel, "held", length=300_000).text == "x" * 199_999 + "\n"


def test_status_answers_with_the_stack_while_the_gil_is_held(
    shared_stage, kernel: KernelRecord, gil_seconds, stopwatch
) -> None:
    running = shared_stage.start(kernel, f"def hold_it():\n    {gil_seconds(2)}\nhold_it()")
    stack = ""
    while "hold_it" not in stack and not running.done():
        watch = stopwatch()
        status = shared_stage.box.status(kernel)
        watch.within(1)
        stack = status["stack"] or ""
    assert "hold_it" in stack
    assert running.result(30).ok


def test_an_interrupt_takes_effect_as_soon_as_the_gil_is_free(
    shared_stage, kernel: KernelRecord, gil_seconds, stopwatch
) -> None:
    shared_stage.box.execute(kernel, "x = 42")
    running = shared_stage.start(kernel, f"{gil_seconds(1.5)}\ntime.sleep(60)")
    watch = stopwatch()
    assert shared_stage.box.interrupt(kernel) is True
    watch.within(1)
    result = running.result(30)
    watch.within(15)
    assert (result.status, result.state) == ("error", "kept")
    assert result.error is not None
    assert result.error.ename == "KeyboardInterrupt"
    assert shared_stage.box.execute(kernel, "x").return_value == "42"


def test_a_timeout_kills_what_holds_the_gil_for_too_long(
    environment, gil_seconds, monkeypatch, stopwatch
) -> None:
    monkeypatch.setenv("KERNELBOX_INTERRUPT_GRACE", "0.2")
    monkeypatch.setenv("KERNELBOX_KILL_GRACE", "0.5")
    with Box() as box:
        box.get_or_create("a")
        watch = stopwatch()
        result = box.execute("a", f"print('begun')\n{gil_seconds(20)}", timeout=0.3)
        watch.within(4)
        assert (result.status, result.state, result.output) == ("timeout", "lost", "begun\n")
        assert len(result.steps) == 3
        assert "killed" in result.steps[-1]
        assert box.execute("a", "1+1").return_value == "2"


def test_destroy_does_not_wait_for_the_gil(
    shared_stage, kernel: KernelRecord, gil_seconds, stopwatch
) -> None:
    interpreter = shared_stage.pid(kernel, "interpreter")
    running = shared_stage.start(kernel, gil_seconds(20))
    watch = stopwatch()
    assert shared_stage.box.destroy(kernel) is True
    result = running.result(10)
    watch.within(3)
    assert (result.status, result.state) == ("error", "lost")
    assert "destroyed" in str(result.cause)
    shared_stage.gone(interpreter)


def test_a_thread_that_prints_between_cells_is_heard_by_the_next(
    shared_box: Box, kernel: KernelRecord, tmp_path
) -> None:
    done = tmp_path / "done"
    shared_box.execute(
        kernel,
        "import threading, time\ndef talk():\n    for n in range(20): print('tick', n)\n"
        f"    open({str(done)!r}, 'w').close()\n    time.sleep(1000)\n"
        "go = threading.Event()\n"
        "threading.Thread(target=lambda: (go.wait(), talk()), daemon=True).start()",
    )
    before = shared_box.execute(kernel, "threading.Timer(0.2, go.set).start()")
    deadline = time.monotonic() + 10
    while not done.exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    heard = shared_box.execute(kernel, "print('cell')")
    ticks = "".join(f"tick {n}\n" for n in range(20))
    assert streamed(before) + streamed(heard) == f"{ticks}cell\n"


def test_threads_that_never_stop_printing_do_not_stop_cells(
    shared_box: Box, kernel: KernelRecord, stopwatch
) -> None:
    shared_box.execute(
        kernel,
        "import threading, time\ndef talk():\n    while True: print('noise'); time.sleep(0.001)\n"
        "for _ in range(5): threading.Thread(target=talk, daemon=True).start()",
    )
    watch = stopwatch()
    for number in range(20):
        result = shared_box.execute(kernel, f"{number}*2")
        assert result.return_value == str(number * 2)
    watch.within(10)


def test_a_forged_mark_disturbs_only_the_order_of_its_own_output(
    shared_box: Box, kernel: KernelRecord
) -> None:
    result = shared_box.execute(
        kernel,
        "import os\nfor n in range(100):\n"
        "    os.write(1, b'\\x1e\\x00' + b'0' * 16 + b'H%08x\\x1e' % n)\n"
        "print('end')",
    )
    assert result.ok
    assert result.output.endswith("end\n")
    assert shared_box.execute(kernel, "1+1").return_value == "2"


def test_a_cell_that_stops_its_own_process_can_be_killed_by_its_timeout(
    environment, monkeypatch, stopwatch
) -> None:
    monkeypatch.setenv("KERNELBOX_INTERRUPT_GRACE", "0.1")
    monkeypatch.setenv("KERNELBOX_KILL_GRACE", "0.3")
    with Box() as box:
        box.get_or_create("a")
        watch = stopwatch()
        stop = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
        result = box.execute("a", stop, timeout=0.3)
        watch.within(4)
        assert (result.status, result.state) == ("timeout", "lost")
        assert box.execute("a", "1+1").return_value == "2"


def test_a_cell_that_ignores_every_signal_can_be_killed_by_its_timeout(
    environment, monkeypatch, stopwatch
) -> None:
    monkeypatch.setenv("KERNELBOX_INTERRUPT_GRACE", "0.1")
    monkeypatch.setenv("KERNELBOX_KILL_GRACE", "0.3")
    deaf = (
        "import signal, time\n"
        "for n in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:\n"
        "    signal.signal(n, signal.SIG_IGN)\n"
        "while True: time.sleep(1)"
    )
    with Box() as box:
        box.get_or_create("a")
        watch = stopwatch()
        result = box.execute("a", deaf, timeout=0.3)
        watch.within(4)
        assert (result.status, result.state) == ("timeout", "lost")
        assert box.execute("a", "1+1").return_value == "2"
