"""What a cell starts behind our backs is gone when its kernel is."""

from __future__ import annotations

from pathlib import Path

import pytest
from psutil import Process

from kernelbox import Box, KernelRecord

DOUBLE_FORK = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in (0, 1, 2): os.close(fd)
        os.closerange(3, 1024)
        fd = os.open({path!r}, os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(fd, str(os.getpid()).encode())
        os.close(fd)
        while True: time.sleep(1)
    os._exit(0)
while not (os.path.exists({path!r}) and open({path!r}).read()): time.sleep(0.005)
"""


def pid_in(path: Path) -> int:
    return int(path.read_text())


def test_a_double_forked_daemon_ends_with_its_kernel(
    shared_stage, kernel: KernelRecord, tmp_path
) -> None:
    box: Box = shared_stage.box
    path = tmp_path / "pid"
    assert box.execute(kernel, DOUBLE_FORK.format(path=str(path)), timeout=20).ok
    assert box.execute(kernel, "1+1").return_value == "2"
    assert box.destroy(kernel)
    shared_stage.gone(pid_in(path), seconds=3)


@pytest.mark.parametrize(
    "command",
    [
        "nohup sleep 1000 >/dev/null 2>&1 &",
        "setsid sleep 1000 >/dev/null 2>&1 &",
        "(setsid sh -c 'trap \"\" TERM HUP INT; while :; do sleep 1; done' &)",
        "sleep 1000 & disown",
    ],
)
def test_a_background_program_of_bash_ends_with_its_kernel(
    shared_stage, kernel: KernelRecord, command: str
) -> None:
    box: Box = shared_stage.box
    assert box.execute(kernel, command, language="bash", timeout=20).ok
    before = Process(shared_stage.pid(kernel, "warden")).children(recursive=True)
    assert len(before) > 3, "stub, interpreter, bash and the program"
    assert box.destroy(kernel)
    shared_stage.gone(*(process.pid for process in before), seconds=3)


def test_a_daemon_outlives_a_restart_but_not_its_kernel(
    shared_stage, kernel: KernelRecord, tmp_path
) -> None:
    box: Box = shared_stage.box
    path = tmp_path / "pid"
    assert box.execute(kernel, DOUBLE_FORK.format(path=str(path)), timeout=20).ok
    box.restart(kernel)
    assert box.execute(kernel, "1+1").return_value == "2"
    box.destroy(kernel)
    shared_stage.gone(pid_in(path), seconds=3)


def test_a_daemon_ends_when_its_keeper_was_killed_before(
    shared_stage, kernel: KernelRecord, tmp_path
) -> None:
    box: Box = shared_stage.box
    path = tmp_path / "pid"
    assert box.execute(kernel, DOUBLE_FORK.format(path=str(path)), timeout=20).ok
    shared_stage.kill(shared_stage.keeper())
    assert box.destroy(kernel)
    shared_stage.gone(pid_in(path), seconds=3)


def test_a_fork_bomb_is_gone_after_destroy(shared_stage, kernel: KernelRecord, tmp_path) -> None:
    """Every process forks a new one whenever a sibling dies, up to two hundred of them."""
    box: Box = shared_stage.box
    pids = tmp_path / "pids"
    pids.mkdir()
    bomb = f"""
import os, time
def explode(depth):
    while True:
        if len(os.listdir({str(pids)!r})) < 200 and os.fork() == 0:
            if depth % 2: os.setsid()
            open(os.path.join({str(pids)!r}, str(os.getpid())), 'w').close()
            depth += 1
        time.sleep(0.002)
if os.fork() == 0:
    explode(0)
deadline = time.monotonic() + 30
while len(os.listdir({str(pids)!r})) < 150 and time.monotonic() < deadline: time.sleep(0.01)
"""
    result = box.execute(kernel, bomb, timeout=60)
    assert result.ok, result.error
    assert box.destroy(kernel)
    shared_stage.gone(*(int(path.name) for path in pids.iterdir()), seconds=5)
