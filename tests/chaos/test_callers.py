"""Callers that die, give up or vanish: their cells go on or stop as promised, nothing leaks."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from processes import such

from kernelbox import Box, KernelNotFound

WAIT_FOR = "import os, time\nwhile not os.path.exists({0!r}): time.sleep(0.005)\n"
HUNDRED = "import time\ntry:\n    time.sleep(100)\nfinally:\n    stopped = True"


def test_a_cell_goes_on_when_its_caller_is_killed(stage, client, waiting, tmp_path: Path) -> None:
    stage.box.get_or_create("a")
    started, go_on = tmp_path / "started", tmp_path / "go-on"
    code = f"print('one'); open({str(started)!r}, 'w').close()\n"
    code += WAIT_FOR.format(str(go_on)) + "x = 42\nprint('two')"
    caller = client(
        f"from kernelbox import Box\nBox().execute('a', {code!r}, execution_id='mine', timeout=60)"
    )
    waiting(started.exists, what="the cell to start")
    caller.kill()
    caller.wait()
    go_on.touch()
    assert stage.box.execute("a", "x").return_value == "42"
    page = stage.box.output("a", "mine")
    assert page.text == "one\ntwo\n"


def test_ctrl_c_in_the_caller_interrupts_its_cell_and_no_other(
    stage, client, waiting, tmp_path: Path
) -> None:
    stage.box.get_or_create("a")
    started = tmp_path / "started"
    code = HUNDRED.replace("try:", f"try:\n    open({str(started)!r}, 'w').close()")
    caller = client(
        "from kernelbox import Box\n"
        "try:\n"
        f"    Box().execute('a', {code!r}, timeout=120)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')"
    )
    waiting(started.exists, what="the cell to start")
    queued = stage.submit(stage.box.execute, "a", "stopped")
    caller.send_signal(signal.SIGINT)
    assert caller.communicate(timeout=10)[0] == "interrupted\n"
    assert queued.result(10).return_value == "True"


def test_leaving_a_stream_interrupts_its_cell(stage, stopwatch) -> None:
    stage.box.get_or_create("a")
    watch = stopwatch()
    code = HUNDRED.replace("try:", "try:\n    print('begun')")
    for item in stage.box.stream("a", code, timeout=120):
        assert item.text == "begun\n"
        break
    assert stage.box.execute("a", "stopped").return_value == "True"
    watch.within(10)


def test_a_caller_that_never_reads_its_stream_stops_nobody(stage, stopwatch) -> None:
    """The spool takes what the caller does not; the cell, and other callers, go on."""
    stage.box.get_or_create("a")
    items = stage.box.stream("a", "for n in range(200): print('x' * 100_000)\ndone = 1", timeout=60)
    next(items)
    watch = stopwatch()
    assert stage.box.execute("a", "done").return_value == "1"
    watch.within(20)
    *_, result = items
    assert result.ok


MEMORY = """
import os, sys, time
os.environ["KERNELBOX_STORE_BACKEND"] = "memory"
from kernelbox import Box
from kernelbox.keeper.home import locate
box = Box()
box.get_or_create("a")
box.execute("a", "setsid sleep 1000 & disown", language="bash")
box.get_or_create("b")
box.branch("b", "c")
pids = [f["pid"] for k in "abc" for f in box.status(k)["processes"]]
sleeper = box.execute("a", "pgrep -s 0 -x sleep; pidof sleep", language="bash").output
print(locate(box.settings).rundir, *pids, flush=True)
{ending}
"""


@pytest.mark.parametrize(
    "ending",
    ["", "os._exit(1)", "os.abort()", "time.sleep(100)", "1/0", "box.execute('c', 'while 1: 0')"],
    ids=["return", "exit", "abort", "killed", "exception", "killed while a cell runs"],
)
def test_kernels_of_a_memory_store_end_with_their_process(
    environment, mark, client, waiting, ending: str
) -> None:
    caller = client(MEMORY.format(ending=ending))
    assert caller.stdout is not None
    line = caller.stdout.readline()
    rundir, *pids = line.split()
    assert len(pids) == 10, line + caller.stdout.read()
    if "time.sleep" in ending or "while" in ending:
        caller.kill()
    caller.wait(20)
    waiting(
        lambda: not any(psutil.pid_exists(int(pid)) for pid in pids),
        what="the kernels to end with their process",
        seconds=10,
    )
    waiting(lambda: not os.path.exists(rundir), what="their folder to go", seconds=10)
    waiting(lambda: not programs_with(mark), what="what they started to end", seconds=10)


def programs_with(mark: str) -> list[psutil.Process]:
    return such(lambda p: p.name() == "sleep" and p.environ().get("CHAOS_MARK") == mark)


def test_a_forked_process_has_a_memory_store_of_its_own(environment, monkeypatch) -> None:
    monkeypatch.setenv("KERNELBOX_STORE_BACKEND", "memory")
    with Box() as box:
        box.get_or_create("a")
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                box.execute("a", "1")
                os.write(write, b"it was there")
            except KernelNotFound:
                box.get_or_create("a")
                os.write(write, (box.execute("a", "2+2").return_value or "").encode())
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert os.read(read, 100) == b"4"
        os.close(read)
        os.close(write)
        assert box.execute("a", "1+1").return_value == "2"
        box.wipe()


def test_a_forked_process_may_use_the_box_of_its_parent(stage) -> None:
    stage.box.get_or_create("a")
    assert stage.box.execute("a", "x = 1").ok
    children = []
    for number in range(5):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                result = stage.box.execute("a", f"{number}*2")
                code = 0 if result.return_value == str(number * 2) else 2
            finally:
                os._exit(code)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 5
    assert stage.box.execute("a", "x").return_value == "1"


def test_a_keeper_that_does_not_answer_is_given_up_in_words(stage, monkeypatch, stopwatch) -> None:
    stage.box.get_or_create("a")
    keeper = stage.keeper()
    monkeypatch.setattr("kernelbox.client.creating.START_MARGIN", 0.0)
    monkeypatch.setenv("KERNELBOX_START_TIMEOUT", "0.5")
    os.kill(keeper, signal.SIGSTOP)
    try:
        # Kernels that are known need no keeper.
        assert stage.box.execute("a", "1+1").return_value == "2"
        with Box() as other:
            other._calls._greeted = True
            watch = stopwatch()
            with pytest.raises(Exception, match="no answer in time"):
                other.get_or_create("b")
            watch.within(5)
    finally:
        os.kill(keeper, signal.SIGCONT)
    assert stage.box.execute("a", "1+1").return_value == "2"


def test_startup_code_that_never_ends_is_given_up_and_ended(
    stage, monkeypatch, stopwatch, waiting
) -> None:
    monkeypatch.setenv("KERNELBOX_STARTUP_CODE", "import time; time.sleep(1000)")
    monkeypatch.setenv("KERNELBOX_START_TIMEOUT", "1.5")
    with Box() as box:
        watch = stopwatch()
        with pytest.raises(Exception, match=r"did not come up within 1\.5 s"):
            box.get_or_create("a")
        watch.within(5)
        assert box.list_kernels() == []
        runtime = Path(stage.home.runtime_dir)
        waiting(lambda: not list(runtime.iterdir()), what="its files to be removed")


def test_a_connection_that_sends_garbage_is_closed_and_nobody_else_notices(stage) -> None:
    import socket

    record = stage.box.get_or_create("a")
    for address in (stage.home.keeper_address, record.address):
        for garbage in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"\0\0\0\x02[]",
            b"\xff" * 1000,
            b"\0\0\0\x05{}",
        ):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(5)
                sock.connect(address)
                sock.sendall(garbage)
                if garbage != b"\0\0\0\x05{}":
                    assert sock.recv(100) == b""
    assert stage.box.execute("a", "1+1").return_value == "2"
    assert [kernel.name for kernel in stage.box.list_kernels()] == ["a"]


def test_a_thousand_idle_connections_stop_nobody(stage) -> None:
    import resource
    import socket

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(1000, (hard if hard > 0 else 1 << 20) - 100)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted + 100), hard))
    record = stage.box.get_or_create("a")
    socks = []
    try:
        for number in range(wanted):
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(stage.home.keeper_address if number % 2 else record.address)
            socks.append(sock)
        start = time.monotonic()
        assert stage.box.execute("a", "1+1").return_value == "2"
        assert len(stage.box.list_kernels()) == 1
        assert time.monotonic() - start < 5
    finally:
        for sock in socks:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
