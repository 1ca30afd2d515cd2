"""User code has the interpreter's end of every pipe and socket in its hands. Whatever it does with
them, the warden keeps its time, its memory and the other kernels of the family."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from processes import alive

from kernelbox import Box, ExecutionResult, KernelRecord
from kernelbox.warden.events import Nonsense, check, event_of, weight
from kernelbox.warden.exits import explain

FORGE = """
import ctypes, json, os, signal, socket, struct, sys, threading, time
LIFELINE, DUMP = 500, 503
def frame(fields):
    body = json.dumps(fields).encode()
    return struct.pack('!I', len(body)) + body
"""


@pytest.fixture
def quick(shared_box: Box) -> Iterator[Box]:
    """The same home, for a caller with little patience."""
    settings = replace(shared_box.settings, interrupt_grace=0.2, kill_grace=0.5)
    with Box(settings) as box:
        yield box


@pytest.fixture
def branch(quick: Box, kernel: KernelRecord) -> Iterator[KernelRecord]:
    """A sibling in the same family, which has done nothing wrong."""
    quick.execute(kernel, FORGE)
    made = quick.branch(kernel, f"{kernel.name}-sibling"[-60:])
    quick.execute(made, "x = 1")
    yield made
    quick.destroy(made)


@pytest.fixture
def started(quick: Box, kernel: KernelRecord) -> Iterator[Callable[..., Future[ExecutionResult]]]:
    """Starts a cell and leaves it running."""
    with ThreadPoolExecutor(1) as pool:

        def start(code: str, timeout: float) -> Future[ExecutionResult]:
            running = pool.submit(quick.execute, kernel, code, timeout=timeout)
            deadline = time.monotonic() + 10
            while quick.status(kernel)["running"] is None and not running.done():
                assert time.monotonic() < deadline
            return running

        yield start


def process(box: Box, kernel: KernelRecord, role: str) -> psutil.Process:
    (pid,) = [p["pid"] for p in box.status(kernel)["processes"] if p["role"] == role]
    return psutil.Process(pid)


SOON = 15.0
"""Seconds. What is tested here once took for ever; how long it takes now is for a benchmark."""


def slowest(calls: int, call: Callable[[], object]) -> float:
    """The longest that one of a few calls has taken."""
    longest = 0.0
    for _ in range(calls):
        began = time.monotonic()
        call()
        longest = max(longest, time.monotonic() - began)
    return longest


# -- floods -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "forged",
    [
        "{'op': 'nothing'}",
        "{'op': 'nothing', 'n': 10 ** 9}",
        "{'op': 'clear', 'wait': True}",
        "{'op': 'display', 'data': {'text/plain': 'x' * 5000}}",
    ],
    ids=["unknown", "numbered", "clear", "display"],
)
def test_a_flood_of_frames_delays_nobody_and_ends_with_its_timeout(
    quick: Box,
    kernel: KernelRecord,
    branch: KernelRecord,
    started: Callable[..., Future[ExecutionResult]],
    forged: str,
) -> None:
    warden = process(quick, kernel, "warden")
    before = warden.memory_info().rss
    most = [before]
    watched = threading.Event()

    def watch() -> None:
        while not watched.wait(0.02):
            most.append(warden.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.monotonic()
    running = started(
        f"signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"s = socket.socket(fileno=os.dup(LIFELINE))\nflood = frame({forged}) * 10_000\n"
        "while True: s.sendall(flood)",
        timeout=1.5,
    )
    try:
        assert slowest(5, lambda: quick.execute(branch, "x")) < SOON
        result = running.result(20)
    finally:
        watched.set()
        watcher.join()
    assert (result.status, result.state) == ("timeout", "lost")
    assert "killed" in str(result.cause)
    assert time.monotonic() - began < SOON
    assert max(most) - before < 150 << 20
    assert quick.execute(kernel, "1+1").return_value == "2"
    assert quick.execute(branch, "x").return_value == "1"


def test_printing_to_both_streams_delays_neither_timeouts_nor_siblings(
    quick: Box,
    kernel: KernelRecord,
    branch: KernelRecord,
    started: Callable[..., Future[ExecutionResult]],
) -> None:
    began = time.monotonic()
    running = started(
        "def talk():\n    while True: sys.stdout.write('a\\n'); sys.stderr.write('b\\n')\n"
        "threading.Thread(target=talk, daemon=True).start()\n"
        "for n in range(10**9): print('a'); print('b', file=sys.stderr)",
        timeout=1,
    )
    assert slowest(5, lambda: quick.execute(branch, "x")) < SOON
    result = running.result(20)
    assert result.status == "timeout"
    assert time.monotonic() - began < SOON
    assert quick.execute(branch, "x").return_value == "1"


def test_the_order_of_both_streams_survives_a_reader_that_takes_turns(
    shared_box: Box, kernel: KernelRecord
) -> None:
    result = shared_box.execute(
        kernel,
        "import sys\nfor n in range(3000):\n    print(n, file=sys.stderr if n % 2 else sys.stdout)",
        timeout=30,
    )
    shown = [(item.name, item.text) for item in result.outputs if item.kind == "stream"]
    expected = [("stderr" if n % 2 else "stdout", f"{n}\n") for n in range(3000)]
    assert not result.truncated
    assert shown == expected


def test_a_stack_is_no_longer_than_a_stack(
    quick: Box, kernel: KernelRecord, started: Callable[..., Future[ExecutionResult]]
) -> None:
    quick.execute(kernel, FORGE)
    running = started(
        "for n in range(2): os.fork()\nwhile True: os.write(DUMP, b'x' * 65536)", timeout=2
    )
    began = time.monotonic()
    stack = quick.status(kernel)["stack"] or ""
    assert time.monotonic() - began < SOON
    assert len(stack) <= 1 << 18
    assert running.result(20).status == "timeout"


def test_descriptors_that_a_cell_gives_the_warden_are_refused(
    shared_box: Box, kernel: KernelRecord
) -> None:
    warden = process(shared_box, kernel, "warden")
    shared_box.execute(kernel, FORGE)
    before = warden.num_fds()
    shared_box.execute(
        kernel,
        "s = socket.socket(fileno=os.dup(LIFELINE))\n"
        "for n in range(50): socket.send_fds(s, [frame({'op': 'nothing'})], [0] * 10)\ns.close()",
    )
    shared_box.execute(kernel, "None")
    assert warden.num_fds() <= before + 2


# -- impostors ----------------------------------------------------------------------------------


def test_a_child_of_the_cell_cannot_pose_as_the_interpreter(
    quick: Box, kernel: KernelRecord
) -> None:
    quick.execute(kernel, FORGE)
    interpreter = process(quick, kernel, "interpreter")
    began = time.monotonic()
    result = quick.execute(
        kernel,
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "if ctypes.CDLL(None).fork() == 0:\n"
        "    os.write(LIFELINE, frame({'op': 'hello', 'pid': os.getpid()}))\n"
        "    time.sleep(30); os._exit(0)\n"
        "time.sleep(30)",
        timeout=0.5,
    )
    assert (result.status, result.state) == ("timeout", "lost")
    assert time.monotonic() - began < SOON
    assert not alive(interpreter.pid)
    assert quick.execute(kernel, "1+1").return_value == "2"


def test_a_second_hello_changes_nothing(shared_box: Box, kernel: KernelRecord) -> None:
    shared_box.execute(kernel, FORGE)
    before = process(shared_box, kernel, "interpreter").pid
    result = shared_box.execute(
        kernel, "os.write(LIFELINE, frame({'op': 'hello', 'pid': 1})); os.getpid()"
    )
    assert result.return_value == str(before)
    assert process(shared_box, kernel, "interpreter").pid == before
    copy = shared_box.branch(kernel, "hello-again")
    try:
        pid = int(shared_box.execute(copy, "os.getpid()").return_value or 0)
        assert process(shared_box, copy, "interpreter").pid == pid != before
        result = shared_box.execute(copy, "os._exit(3)")
        assert "exit code 3" in str(result.cause)
    finally:
        shared_box.destroy(copy)


# -- forged ends --------------------------------------------------------------------------------

SPY = """
from kernelbox.inside.shell import outbox
turn, true_send = None, outbox.lifeline.send
def send(fields):
    global turn
    turn = fields.get('turn', turn)
    true_send(fields)
outbox.lifeline.send = send
"""
"""From then on, a cell knows its own turn, and can forge what an interpreter would say in it."""

LEAVE_A_FORGER = """
if ctypes.CDLL(None).fork() == 0:
    end = time.monotonic() + {seconds}
    while time.monotonic() < end:
        for forged in {forged!r}: os.write(LIFELINE, frame(forged))
        time.sleep(0.0005)
    os._exit(0)
"""
"""A process that has the lifeline and writes to it until its time is over, whatever runs then."""


@pytest.mark.parametrize("times", [1, 3])
def test_a_forged_end_of_a_cell_does_not_shift_the_results_of_the_next(
    shared_box: Box, kernel: KernelRecord, times: int
) -> None:
    """The true end comes when the next cell runs. Once, it was taken for the end of that one."""
    shared_box.execute(kernel, FORGE + SPY)
    forged = shared_box.execute(
        kernel,
        "end = {'op': 'done', 'turn': turn, 'ok': True, 'execution_count': 77}\n"
        f"for n in range({times}): os.write(LIFELINE, frame(end))\n"
        "time.sleep(0.2)\n'of the forger'",
    )
    assert (forged.execution_count, forged.return_value) == (77, None), "the lie is its own"
    assert shared_box.execute(kernel, "x = 1", timeout=20).return_value is None
    for n in range(4):
        result = shared_box.execute(kernel, f"print({n}); {n} * 11", timeout=20)
        assert (result.status, result.return_value) == ("success", str(n * 11))
        assert f"{n}\n" in result.output
    failing = shared_box.execute(kernel, "1 / 0")
    assert failing.error is not None
    assert failing.error.ename == "ZeroDivisionError"


def test_a_forged_end_that_names_no_turn_is_no_end_at_all(
    shared_box: Box, kernel: KernelRecord
) -> None:
    shared_box.execute(kernel, FORGE)
    result = shared_box.execute(
        kernel,
        "for turn in (None, 0, 1, 2, 'x'):\n"
        "    os.write(LIFELINE, frame({'op': 'done', 'turn': turn, 'ok': True}))\n"
        "time.sleep(0.2)\n'mine'",
    )
    assert result.return_value == "'mine'"
    assert shared_box.execute(kernel, "1 + 1").return_value == "2"


def test_a_process_that_a_cell_has_left_does_not_end_later_cells(
    shared_box: Box, kernel: KernelRecord
) -> None:
    shared_box.execute(kernel, FORGE)
    forged = [{"op": "done", "ok": True, "turn": n} for n in (None, *range(10))]
    forged += [{"op": "running", "turn": n} for n in (None, 1, 2)]
    shared_box.execute(kernel, LEAVE_A_FORGER.format(seconds=2.5, forged=forged))
    began = time.monotonic()
    while time.monotonic() - began < 2:
        result = shared_box.execute(kernel, "time.sleep(0.05); 'whole'", timeout=20)
        assert (result.status, result.return_value) == ("success", "'whole'")
    shell = shared_box.execute(kernel, "sleep 0.2; echo whole", language="bash", timeout=20)
    assert (shell.exit_code, shell.output) == (0, "whole\n")


def test_a_forged_end_of_a_cell_is_not_the_end_of_a_bash_command(
    shared_box: Box, kernel: KernelRecord
) -> None:
    """A thread that knows the turn of its own cell says once more that it is done."""
    shared_box.execute(kernel, FORGE + SPY)
    shared_box.execute(
        kernel,
        "end = frame({'op': 'done', 'turn': turn, 'ok': True})\n"
        "def say():\n    for n in range(600): os.write(LIFELINE, end); time.sleep(0.002)\n"
        "threading.Thread(target=say).start()",
    )
    result = shared_box.execute(kernel, "sleep 0.4; echo whole", language="bash", timeout=20)
    assert (result.exit_code, result.output) == (0, "whole\n")


def test_forged_answers_are_not_taken_for_true_ones(shared_box: Box, kernel: KernelRecord) -> None:
    shared_box.execute(kernel, FORGE + "a_name_of_mine = 5")
    lie = {"status": "ok", "matches": ["forged"], "cursor_start": 0, "cursor_end": 0}
    forged = [{"op": "answer", "id": n, "turn": n, "content": lie} for n in (None, *range(10))]
    forged += [{"op": "forked", "ok": False, "error": "forged", "turn": n} for n in (None, 1, 2)]
    shared_box.execute(kernel, LEAVE_A_FORGER.format(seconds=2.5, forged=forged))
    began = time.monotonic()
    taken = 0
    while time.monotonic() - began < 2:
        assert "a_name_of_mine" in shared_box.complete(kernel, "a_name_of")
        point = shared_box.checkpoint(kernel)
        shared_box.drop_checkpoint(kernel, point)
        taken += 1
    assert taken


def test_an_interpreter_begins_once(shared_box: Box, tmp_path: Path) -> None:
    """Startup code that a cell has run again, and that dies, was a bad start and not a loss."""
    code = "import os\nbegun = globals().get('begun', 0) + 1\nif os.path.exists('die'): os._exit(3)"
    with Box(replace(shared_box.settings, startup_code=code)) as box:
        kernel = box.get_or_create("begins-once", cwd=str(tmp_path))
        try:
            box.execute(kernel, FORGE + "open('die', 'w').close()\nx = 5")
            box.execute(kernel, "os.write(LIFELINE, frame({'op': 'begun'}))")
            result = box.execute(kernel, "x, begun")
            assert (result.state, result.epoch, result.return_value) == ("kept", 1, "(5, 1)")
        finally:
            box.destroy(kernel)


# -- nonsense -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "forged",
    [
        "{'op': 'hello', 'pid': 'x'}",
        "{'op': 'done', 'ok': False, 'error': 'text'}",
        "{'op': 'answer', 'content': 'text'}",
        "{'op': 'forked', 'ok': True, 'notes': 5}",
        "{'op': 5}",
        "{}",
    ],
)
def test_a_member_that_speaks_nonsense_is_killed_and_its_family_lives(
    quick: Box, kernel: KernelRecord, branch: KernelRecord, forged: str
) -> None:
    result = quick.execute(
        kernel,
        f"for n in range(30): os.write(LIFELINE, frame({forged}))\ntime.sleep(20)",
        timeout=5,
    )
    assert (result.status, result.state) == ("error", "lost")
    assert "nonsense" in str(result.cause)
    for _ in range(2):
        assert quick.execute(kernel, "1+1").return_value == "2"
    assert quick.execute(branch, "x").return_value == "1"


def test_bytes_that_are_no_frames_are_nonsense_too(quick: Box, kernel: KernelRecord) -> None:
    result = quick.execute(
        kernel, "import os, time; os.write(500, b'GET / HTTP/1.1'); time.sleep(20)", timeout=5
    )
    assert (result.status, result.state) == ("error", "lost")
    assert "nonsense" in str(result.cause)
    assert quick.execute(kernel, "1+1").return_value == "2"


def test_what_a_users_object_may_say_is_made_to_fit(shared_box: Box, kernel: KernelRecord) -> None:
    shared_box.execute(kernel, FORGE)
    odd = [
        {"op": "display", "data": {"text/plain": 5}, "metadata": 7, "transient": "x"},
        {"op": "display", "data": "text"},
        {"op": "result", "data": {"text/plain": None}, "execution_count": "one"},
        {"op": "comm", "msg_type": 3, "content": 4, "metadata": [], "buffers": 6},
        {"op": "error", "ename": 1, "evalue": [], "traceback": 2},
        {"op": "display", "n": "first", "data": {}},
    ]
    result = shared_box.execute(
        kernel, f"for fields in {odd!r}: os.write(LIFELINE, frame(fields))\nprint('end')"
    )
    assert result.state == "kept"
    assert "end" in result.output
    shared_box.execute(kernel, "get_ipython().execution_count = 'many'")
    assert shared_box.execute(kernel, "x = 3").state == "kept"


def test_frames_are_checked_for_what_only_we_say() -> None:
    for good in ({"op": "done", "error": None}, {"op": "answer", "content": {}}, {"op": "new"}):
        check(dict(good))
    for bad in ({}, {"op": None}, {"op": "answer", "content": []}, {"op": "forked", "notes": {}}):
        with pytest.raises(Nonsense):
            check(bad)


# -- what is kept between cells -----------------------------------------------------------------


@pytest.mark.parametrize("field", ["data", "metadata", "transient"])
def test_an_event_weighs_what_it_holds(field: str) -> None:
    for held in ("y" * 10_000, ["y" * 10_000], {"deep": {"down": "y" * 10_000}}):
        event = event_of({"op": "display", field: {"a": held}})
        assert event is not None
        marked = {**event, "metadata": {**event["metadata"], "background": True}}
        assert 10_000 <= weight(event) == weight(marked) < 10_100
    assert weight({"kind": "stream", "name": "stdout", "text": "x" * 1000}) == 1000
    assert weight({"kind": "display_data", "data": {}, "metadata": {}}) > 0


def test_displays_between_cells_do_not_fill_the_warden(
    shared_box: Box, kernel: KernelRecord, waiting, tmp_path
) -> None:
    warden = process(shared_box, kernel, "warden")
    before = warden.memory_info().rss
    done = tmp_path / "done"
    shared_box.execute(
        kernel,
        "import threading, time, pathlib\nfrom IPython.display import display\ndef show():\n"
        "    time.sleep(0.2)\n    for n in range(150):\n"
        "        display({'text/plain': 'p'}, metadata={'a': 'y' * 1_000_000}, raw=True)\n"
        f"    pathlib.Path({str(done)!r}).touch()\nthreading.Thread(target=show).start()",
    )
    waiting(done.exists, what="the thread to end")
    assert shared_box.execute(kernel, "1+1").return_value == "2"
    assert warden.memory_info().rss - before < 60 << 20


# -- a stub that is silent ----------------------------------------------------------------------


def test_a_death_that_a_stopped_stub_does_not_report_is_noticed(
    shared_box: Box, kernel: KernelRecord
) -> None:
    began = time.monotonic()
    result = shared_box.execute(
        kernel,
        "import os, signal; os.kill(os.getppid(), signal.SIGSTOP); os._exit(7)",
        timeout=30,
    )
    assert time.monotonic() - began < SOON
    assert result.state == "lost"
    assert "exit code 7" in str(result.cause), "it was woken, and reports"
    assert shared_box.execute(kernel, "1+1").return_value == "2"


def test_a_death_that_nobody_ever_reports_is_told_without_its_status(
    shared_box: Box, kernel: KernelRecord
) -> None:
    """The stub is stopped again and again, for longer than the warden waits for its report."""
    stub = process(shared_box, kernel, "stub")
    running = threading.Event()

    def hold() -> None:
        while not running.wait(0.001):
            stub.suspend()

    holder = threading.Thread(target=hold)
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        holder.start()
        try:
            dying = pool.submit(shared_box.execute, kernel, "import os; os._exit(7)", timeout=30)
            result = dying.result(15)
        finally:
            running.set()
            holder.join()
            stub.resume()
    assert time.monotonic() - began < SOON
    assert result.state == "lost"
    # It may have had a moment between two stops.
    assert "unknown" in str(result.cause) or "exit code 7" in str(result.cause)
    assert shared_box.execute(kernel, "1+1", timeout=20).return_value == "2"


def test_an_unknown_exit_says_so() -> None:
    exit = explain(None)
    assert "unknown" in exit.cause
    assert exit.code == 255
    assert explain(None, killed_by_us="killed: by us").cause == "killed: by us"


def test_restarts_and_branches_leave_no_descriptor_behind(
    shared_box: Box, kernel: KernelRecord, waiting
) -> None:
    folder = f"/proc/{process(shared_box, kernel, 'warden').pid}/fd"

    def pipes_and_pidfds() -> int:
        kinds = [os.readlink(f"{folder}/{fd}").split(":")[0] for fd in os.listdir(folder)]
        return kinds.count("pipe") + kinds.count("anon_inode")

    shared_box.restart(kernel)
    shared_box.execute(kernel, "1")
    before = pipes_and_pidfds()
    for n in range(5):
        shared_box.restart(kernel)
        copy = shared_box.branch(kernel, f"leaf-{n}")
        shared_box.execute(copy, "1")
        shared_box.destroy(copy)
    shared_box.execute(kernel, "1")
    waiting(lambda: pipes_and_pidfds() <= before, what="the members' descriptors to be closed")
