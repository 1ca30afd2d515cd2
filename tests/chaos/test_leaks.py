"""After hundreds of kernels our processes hold no more than before: no descriptors, no zombies."""

from __future__ import annotations

import contextlib
import gc
import os
import resource

import pytest
from processes import below, zombies

from kernelbox import Box


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def cycle(box: Box, count: int) -> None:
    for number in range(count):
        record = box.get_or_create(f"k{number % 3}")
        assert box.execute(record, f"{number}*2").return_value == str(number * 2)
        assert box.destroy(record)


@pytest.mark.parametrize("count", [200])
def test_kernels_that_come_and_go_leave_nothing_in_keeper_and_root(stage, waiting, count) -> None:
    box: Box = stage.box
    box.get_or_create("stays")
    cycle(box, 5)
    keeper, root = stage.keeper(), stage.root()
    before = descriptors(keeper), descriptors(root), descriptors(os.getpid())
    cycle(box, count)
    assert (stage.keeper(), stage.root()) == (keeper, root)
    waiting(
        lambda: (descriptors(keeper), descriptors(root)) <= before[:2],
        what=f"descriptors to be closed: {before} before",
        seconds=5,
    )
    gc.collect()
    # Connections to kernels that ended are closed when a few have gathered.
    assert descriptors(os.getpid()) <= before[2] + 20
    waiting(lambda: not zombies(below(keeper)), what="every zombie to be reaped", seconds=5)


@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.soak)])
def test_cells_of_every_kind_leave_nothing_in_the_warden(stage, waiting, count) -> None:
    box: Box = stage.box
    box.get_or_create("a")
    warden = stage.pid("a", "warden")

    def work(times: int) -> None:
        for number in range(times):
            box.execute("a", f"print({number})")
            box.execute("a", "1/0")
            box.execute("a", f"echo {number}", language="bash")
            if number % 10 == 0:
                box.execute("a", "exit 3", language="bash")
                box.execute("a", "import os; os._exit(1)")
                box.branch("a", "copy")
                box.destroy("copy")
                list(box.stream("a", "print(1)"))
                box.restart("a")
                box.execute("a", "print('x' * 200_000)")
                box.complete("a", "impor")

    work(10)
    before = descriptors(warden)
    work(count)
    # Output that is kept on disk holds a descriptor per file; see KERNELBOX_SPOOL_KEEP.
    spools = sum(
        "spool-" in os.readlink(f"/proc/{warden}/fd/{fd}")
        for fd in os.listdir(f"/proc/{warden}/fd")
    )
    waiting(
        lambda: descriptors(warden) <= before + spools,
        what=f"descriptors to be closed: {before} before, {spools} of the spool",
        seconds=5,
    )
    waiting(lambda: not zombies(below(warden)), what="every zombie to be reaped", seconds=5)


def test_deaths_leave_nothing_in_the_warden(stage, waiting) -> None:
    box: Box = stage.box
    box.get_or_create("a")
    warden = stage.pid("a", "warden")
    box.execute("a", "import os; os._exit(1)")
    box.execute("a", "1")
    before = descriptors(warden)
    for _ in range(30):
        assert box.execute("a", "import os; os._exit(1)").state == "lost"
        assert box.execute("a", "1").ok
    waiting(lambda: descriptors(warden) <= before, what="descriptors to be closed", seconds=5)
    waiting(lambda: not zombies(below(warden)), what="every zombie to be reaped", seconds=5)


def test_killed_families_leave_nothing_in_the_keeper(stage, waiting) -> None:
    box: Box = stage.box
    box.get_or_create("stays")
    stage.kill(stage.pid(box.get_or_create("k"), "warden"))
    keeper = stage.keeper()
    before = descriptors(keeper)
    for _ in range(10):
        stage.kill(stage.pid(box.get_or_create("k"), "warden"))
    waiting(lambda: descriptors(keeper) <= before, what="descriptors to be closed", seconds=5)
    waiting(lambda: not zombies(below(keeper)), what="every zombie to be reaped", seconds=5)


def test_a_caller_with_few_descriptors_is_told_so_and_leaks_none(stage) -> None:
    box: Box = stage.box
    box.get_or_create("a")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    hogged = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors(os.getpid()) + 20, hard))
        box.close()
        with contextlib.suppress(OSError):
            while True:
                hogged.append(os.dup(0))
        with pytest.raises(OSError, match="Too many open files"):
            box.execute("a", "1")
    finally:
        for fd in hogged:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert box.execute("a", "1+1").return_value == "2"
