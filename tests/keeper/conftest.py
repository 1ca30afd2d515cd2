"""How tests of the keeper look at its processes from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import psutil
import pytest

from kernelbox import Box
from kernelbox.keeper.home import locate


def _named(box: Box, module: str) -> list[psutil.Process]:
    """The processes of a home that were started as ``python -m kernelbox.<module>``."""
    rundir = locate(box.settings).rundir
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            alive = process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
        if alive and f"kernelbox.{module}" in command and rundir in " ".join(command):
            found.append(process)
    return found


@pytest.fixture
def gone() -> Callable[[Iterable[int]], bool]:
    """Whether processes have ended; one that only waits to be reaped has."""

    def ended(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return lambda pids: all(map(ended, pids))


@pytest.fixture
def keepers() -> Callable[[Box], list[psutil.Process]]:
    """The keepers of a home; there should never be two."""
    return lambda box: _named(box, "keeper")


@pytest.fixture
def roots() -> Callable[[Box], list[psutil.Process]]:
    """The roots of a home: what was started as one, without the wardens and stubs it forked."""

    def find(box: Box) -> list[psutil.Process]:
        family = _named(box, "warden")
        pids = {process.pid for process in family}
        return [process for process in family if process.ppid() not in pids]

    return find


@pytest.fixture
def wardens() -> Callable[[Box], list[psutil.Process]]:
    """The wardens of a home, spares included."""

    def find(box: Box) -> list[psutil.Process]:
        return [process for process in _named(box, "warden") if process.name() == "kb-warden"]

    return find
