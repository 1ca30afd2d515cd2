"""The keeper starts itself, ends itself, is one for all, and is survived by its kernels."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil
import pytest

from kernelbox import Box, Settings
from kernelbox.keeper.home import locate

Waiting = Callable[..., None]
Find = Callable[[Box], list[psutil.Process]]
Gone = Callable[[Iterable[int]], bool]


def variant(box: Box, **changes: object) -> Box:
    return Box(Settings.from_wire({**box.settings.to_wire(), **changes}))


def test_the_first_call_starts_it_and_it_ends_itself_after_a_while(
    box: Box, keepers: Find, waiting: Waiting
) -> None:
    assert keepers(box) == []
    box.get_or_create("k")
    (keeper,) = keepers(box)
    assert keeper.cwd() == "/"
    assert os.getsid(keeper.pid) == keeper.pid
    assert os.readlink(f"/proc/{keeper.pid}/fd/0") == "/dev/null"
    assert os.readlink(f"/proc/{keeper.pid}/fd/1") == "/dev/null"
    assert keeper.ppid() != os.getpid()
    box.destroy("k")
    waiting(lambda: not keepers(box), what="the keeper to leave")
    assert list(Path(locate(box.settings).rundir).glob("*.sock")) == []
    assert box.get_or_create("k").state == "kept"


def test_it_lingers_as_long_as_the_setting_says(
    box: Box, keepers: Find, roots: Find, waiting: Waiting
) -> None:
    with variant(box, keeper_linger=1.5) as patient:
        patient.get_or_create("k")
        patient.destroy("k")
        ended = time.monotonic()
        (keeper,) = keepers(box)
        waiting(lambda: not keeper.is_running(), what="the keeper to leave", seconds=10)
        assert time.monotonic() - ended > 1.2
        waiting(lambda: not roots(box), what="its root to go with it")


def test_it_stays_while_there_is_a_kernel(box: Box, keepers: Find) -> None:
    box.get_or_create("k")
    (keeper,) = keepers(box)
    time.sleep(0.8)  # eight times the linger
    assert keepers(box) == [keeper]
    assert box.execute("k", "1").ok


def test_a_command_substitution_returns_though_the_keeper_lives_on(box: Box, keepers: Find) -> None:
    program = "import kernelbox; print(kernelbox.get_or_create('k').name)"
    started = time.monotonic()
    ended = subprocess.run(
        ["sh", "-c", f'x=$({sys.executable} -c "{program}" 2>&1); echo "got $x"'],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert ended.stdout == "got k\n"
    assert time.monotonic() - started < 30
    assert len(keepers(box)) == 1
    assert box.execute("k", "1").ok


def test_it_survives_the_hang_up_and_the_end_of_its_starter(
    box: Box, keepers: Find, waiting: Waiting
) -> None:
    program = (
        # Whoever runs the tests under nohup has us all ignore it.
        "import kernelbox, signal, time\nsignal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "kernelbox.execute(kernelbox.get_or_create('k'), 'x = 1')\n"
        "print('up', flush=True)\ntime.sleep(60)"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True
    )
    assert starter.stdout is not None
    assert starter.stdout.readline() == b"up\n"
    (keeper,) = keepers(box)
    os.killpg(starter.pid, signal.SIGHUP)
    starter.wait(10)
    starter.stdout.close()
    keeper.send_signal(signal.SIGHUP)
    keeper.send_signal(signal.SIGINT)
    assert box.execute("k", "x").return_value == "1"
    assert keepers(box) == [keeper]


def test_many_callers_at_once_start_one(box: Box, keepers: Find) -> None:
    program = "import kernelbox, sys; print(kernelbox.get_or_create('shared').kernel_id)"
    callers = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    ids: list[str] = []

    def create() -> None:
        with Box(box.settings) as mine:
            ids.append(mine.get_or_create("shared").kernel_id + "\n")

    threads = [threading.Thread(target=create) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    ids += [caller.communicate(timeout=60)[0] for caller in callers]
    assert len(ids) == 16
    assert len(set(ids)) == 1
    assert len(keepers(box)) == 1


def test_each_home_has_its_own(box: Box, keepers: Find, tmp_path: Path, waiting: Waiting) -> None:
    box.get_or_create("here")
    with variant(
        box,
        registry_path=str(tmp_path / "other" / "registry.json"),
        runtime_dir=str(tmp_path / "other" / "runtime"),
    ) as other:
        other.get_or_create("there")
        assert [record.name for record in box.list_kernels()] == ["here"]
        assert [record.name for record in other.list_kernels()] == ["there"]
        assert keepers(box) != keepers(other)
        other.wipe()
        waiting(lambda: not keepers(other), what="the other keeper to leave")


def test_a_killed_keeper_loses_no_kernel(box: Box, keepers: Find, waiting: Waiting) -> None:
    record = box.get_or_create("k")
    box.execute(record, "x = 'kept'")
    branch = box.branch(record, "b")
    (keeper,) = keepers(box)
    keeper.kill()
    waiting(lambda: not keepers(box), what="the keeper to die")
    assert box.execute(record, "x").return_value == "'kept'"  # nobody needs a keeper for this
    with Box(box.settings) as fresh:
        assert {r.name for r in fresh.list_kernels()} == {"k", "b"}
        assert fresh.get_or_create("k").kernel_id == record.kernel_id
        result = fresh.execute("k", "x")
        assert (result.return_value, result.state, result.epoch) == ("'kept'", "kept", 1)
        assert fresh.execute("b", "x").return_value == "'kept'"
        assert len(keepers(box)) == 1
        assert fresh.destroy("b") is True
        assert fresh.destroy(record) is True
    assert branch.parent == record.kernel_id


def test_a_cell_that_runs_while_the_keeper_is_killed_goes_on(
    box: Box, keepers: Find, tmp_path: Path, waiting: Waiting
) -> None:
    record = box.get_or_create("k")
    results = []
    code = (
        "import pathlib, time\npathlib.Path('up').touch()\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.01)\n'done'"
    )
    thread = threading.Thread(target=lambda: results.append(box.execute(record, code)))
    thread.start()
    waiting((tmp_path / "up").exists, what="the cell")
    (keeper,) = keepers(box)
    keeper.kill()
    (tmp_path / "go").touch()
    thread.join(10)
    assert results[0].return_value == "'done'"
    assert results[0].state == "kept"


def test_a_killed_root_loses_no_kernel_and_is_replaced(
    box: Box, roots: Find, waiting: Waiting
) -> None:
    first = box.get_or_create("first")
    box.execute(first, "x = 1")
    (root,) = roots(box)
    root.kill()
    waiting(lambda: root not in roots(box), what="the root to die")
    assert box.execute(first, "x").return_value == "1"
    second = box.get_or_create("second")
    assert box.execute(second, "2").return_value == "2"
    assert box.execute(first, "x").return_value == "1"
    assert box.restart(first).epoch == 2
    assert box.execute(first, "'also after'").ok


def test_kernels_that_died_without_a_keeper_are_told_of_later(
    box: Box, keepers: Find, waiting: Waiting, gone: Gone
) -> None:
    record = box.get_or_create("k")
    warden = next(p["pid"] for p in box.status(record)["processes"] if p["role"] == "warden")
    (keeper,) = keepers(box)
    registry = Path(box.settings.registry_path)
    # It is written a moment after the kernel is there; until then only the warden knows of it.
    waiting(
        lambda: registry.exists() and record.kernel_id in registry.read_text(),
        what="the registry to be written",
    )
    keeper.kill()
    waiting(lambda: not keepers(box), what="the keeper to die")
    os.kill(warden, signal.SIGKILL)
    waiting(lambda: gone([warden]), what="the warden to die")
    with Box(box.settings) as fresh:
        again = fresh.get_or_create("k")
        assert again.kernel_id != record.kernel_id
        assert (again.state, again.epoch) == ("lost", 2)
        assert "gone" in (again.cause or "")


@pytest.mark.parametrize("end", ["return", "os.kill(os.getpid(), 9)"])
def test_with_the_memory_store_kernels_end_with_the_process(
    environment: Path, end: str, waiting: Waiting, gone: Gone
) -> None:
    program = f"""
import os, kernelbox
def main():
    a, b = kernelbox.get_or_create("a"), kernelbox.get_or_create("b")
    kernelbox.execute(a, "x = 1")
    assert kernelbox.execute("a", "x").return_value == "1"
    kernelbox.execute(b, "sleep 300 &", language="bash")
    assert {{r.name for r in kernelbox.list_kernels()}} == {{"a", "b"}}
    for kernel in (a, b):
        print(*[p["pid"] for p in kernelbox.status(kernel)["processes"]], flush=True)
    {end}
main()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "KERNELBOX_STORE_BACKEND": "memory"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    pids = [int(word) for word in ended.stdout.split()]
    assert len(pids) >= 6, ended.stderr
    waiting(lambda: gone(pids), what="the kernels to end")
    assert [path for path in environment.rglob("*") if path.is_file()] == []


def test_the_memory_store_is_the_process_own(box: Box, environment: Path, waiting: Waiting) -> None:
    box.get_or_create("in the file store")
    with variant(box, store_backend="memory") as mine:
        assert mine.list_kernels() == []
        record = mine.get_or_create("mine")
        assert mine.execute(record, "1").ok
        assert mine.branch(record, "branch of mine").parent == record.kernel_id
        assert "mine" not in {r.name for r in box.list_kernels()}
        warden = next(p["pid"] for p in mine.status(record)["processes"] if p["role"] == "warden")
        os.kill(warden, signal.SIGKILL)
        waiting(lambda: mine.list_kernels() == [], what="the burial")
        assert not Path(record.connection_file).exists()
        assert mine.get_or_create("mine").state == "lost"
        assert len(mine.wipe()) == 1


def test_an_older_keeper_hands_over_to_a_newer_build(
    box: Box, keepers: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = box.get_or_create("k")
    box.execute(record, "x = 'kept'")
    (old,) = keepers(box)
    from kernelbox.client import calls, creating
    from kernelbox.wire import build_id

    version, newest = build_id()
    newer = [[*version, 1], newest]
    asked: list[object] = []

    def pretended() -> list[object]:
        # Newer only for the request and the first greeting: the keeper that comes is of the true
        # build.
        asked.append(1)
        return newer if len(asked) <= 2 else [version, newest]

    for module in (calls, creating):
        monkeypatch.setattr(module, "build_id", pretended)
    with Box(box.settings) as fresh:
        assert fresh.get_or_create("k").kernel_id == record.kernel_id
        assert fresh.execute("k", "x").return_value == "'kept'"
    (new,) = keepers(box)
    assert new.pid != old.pid
