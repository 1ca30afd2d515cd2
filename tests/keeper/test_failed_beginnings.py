"""A kernel that could not even be begun is told of, and leaves its name to whoever asks next."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from kernelbox import BadInput, Box, BoxError, KernelLost, StartupFailed
from kernelbox.keeper.home import locate

Waiting = Callable[..., None]
Find = Callable[[Box], list[psutil.Process]]


@pytest.fixture
def keeper(box: Box, keepers: Find, waiting: Waiting) -> psutil.Process:
    """With one kernel, and nothing to do: as many descriptors are open as will stay so."""
    record = box.get_or_create("first")
    registry = Path(box.settings.registry_path)
    waiting(
        lambda: registry.exists() and record.kernel_id in registry.read_text(),
        what="the registry to be written",
    )
    (found,) = keepers(box)
    return found


@contextlib.contextmanager
def room_for(descriptors: int, process: psutil.Process) -> Iterator[None]:
    """It may open so many more, and no more."""
    taken = {int(name) for name in os.listdir(f"/proc/{process.pid}/fd")}
    free = (number for number in itertools.count() if number not in taken)
    soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    most = next(itertools.islice(free, descriptors, None))
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("descriptors", [1, 2])  # for half a pair of sockets; for no copy of one
def test_without_descriptors_there_is_an_error_and_later_a_kernel(
    box: Box, keeper: psutil.Process, descriptors: int, waiting: Waiting
) -> None:
    with room_for(descriptors, keeper), pytest.raises(StartupFailed, match="Too many open files"):
        box.get_or_create("second")
    second = box.get_or_create("second")
    assert box.execute(second, "1 + 1").return_value == "2"
    third = box.get_or_create("third")  # and nobody's process is taken for another's
    (warden,) = (p["pid"] for p in box.status(third)["processes"] if p["role"] == "warden")
    psutil.Process(warden).kill()
    waiting(lambda: "third" not in {r.name for r in box.list_kernels()}, what="its burial")
    with pytest.raises(KernelLost, match="SIGKILL"):
        box.execute(third, "1")
    assert box.execute(second, "1 + 1").return_value == "2"


def test_callers_for_whom_there_is_no_descriptor_wait_and_keep_nobody_busy(
    box: Box, keeper: psutil.Process
) -> None:
    with socket.socket(socket.AF_UNIX) as caller:
        with room_for(0, keeper):
            caller.connect(locate(box.settings).keeper_address)
            before = sum(keeper.cpu_times()[:2])
            time.sleep(0.6)
            assert sum(keeper.cpu_times()[:2]) - before < 0.2
        with Box(box.settings) as other:
            assert [record.name for record in other.list_kernels()] == ["first"]


def test_a_request_that_makes_no_sense_does_not_keep_the_name(
    box: Box, keeper: psutil.Process
) -> None:
    with pytest.raises(BoxError, match="executable"):
        box._driver.run(box._calls.keeper({"op": "get_or_create", "name": "second"}))
    with pytest.raises(BadInput, match="names is empty"):
        box._driver.run(box._calls.keeper({"op": "branch", "kernel": "first", "names": []}))
    assert box.execute(box.get_or_create("second"), "1 + 1").return_value == "2"
    assert len(box.wipe()) == 2
