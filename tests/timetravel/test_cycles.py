"""A thousand times back and forth: nothing grows."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from processes import below, such, zombies

from kernelbox import Box
from kernelbox.keeper.home import locate

Waiting = Callable[..., None]
CYCLES = 1000


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_nothing_grows_in_a_thousand_cycles(box: Box, waiting: Waiting) -> None:
    kernel = box.get_or_create("k")
    box.execute(kernel, "x = [1]")
    (warden,) = (p["pid"] for p in box.status(kernel)["processes"] if p["role"] == "warden")
    home = locate(box.settings)
    (keeper,) = such(lambda p: "kernelbox.keeper" in p.cmdline() and home.rundir in p.cmdline())

    def cycle(number: int) -> None:
        point = box.checkpoint(kernel)
        box.execute(kernel, "x.append(2)")
        box.rewind(kernel, point)
        box.drop_checkpoint(kernel, point)
        box.branch(kernel, "b")
        box.destroy("b")
        if number % 10 == 0:
            assert box.execute(kernel, "x.append(3); 1/0", atomic=True).state == "rewound"

    def grown() -> dict[str, int]:
        return {
            "processes": len(below(warden)),
            "descriptors of the warden": descriptors(warden),
            "descriptors of the keeper": descriptors(keeper.pid),
            "sockets": len(list(Path(home.rundir).glob("*.sock"))),
            "files": len(list(Path(home.runtime_dir).iterdir())),
        }

    for number in range(20):
        cycle(number)
    waiting(lambda: len(below(warden)) == 2, what="what was dropped to end")
    before = grown()
    memory = [psutil.Process(pid).memory_info().rss for pid in (warden, keeper.pid)]
    for number in range(CYCLES):
        cycle(number)
    waiting(lambda: grown() == before, what=f"nothing to grow: {before}, {grown()}", seconds=30)
    assert not zombies(below(warden))
    after = [psutil.Process(pid).memory_info().rss for pid in (warden, keeper.pid)]
    for start, end in zip(memory, after, strict=True):
        assert end - start < 8 << 20, (memory, after)
    assert box.execute(kernel, "x").return_value == "[1]"
    assert box.execute(kernel, "import os; len(os.listdir('/proc/self/fd'))").ok
