"""How tests of the keeper look at its processes from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import psutil
import pytest
from processes import alive, such

from kernelbox import Box
from kernelbox.keeper.home import locate


def _named(box: Box, module: str) -> list[psutil.Process]:
    """The processes of a home that were started as ``python -m kernelbox.<module>``."""
    rundir = locate(box.settings).rundir

    def is_one(process: psutil.Process) -> bool:
        command = process.cmdline()
        return f"kernelbox.{module}" in command and rundir in " ".join(command)

    return such(is_one)


def _parent(process: psutil.Process) -> int:
    """0: it has ended."""
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return 0


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


@pytest.fixture
def gone() -> Callable[[Iterable[int]], bool]:
    """Whether processes have ended; one that only waits to be reaped has."""
    return lambda pids: not any(map(alive, pids))


@pytest.fixture
def keepers() -> Callable[[Box], list[psutil.Process]]:
    """The keepers of a home; there should never be two."""
    return lambda box: _named(box, "keeper")


@pytest.fixture
def roots() -> Callable[[Box], list[psutil.Process]]:
    """The roots of a home: what was started as one, without the wardens and stubs it forked."""

    def find(box: Box) -> list[psutil.Process]:
        family = _named(box, "warden")
        parents = {process: _parent(process) for process in family}
        pids = {process.pid for process in family}
        # A fork's parent may end while we look, so names count as well.
        return [
            process
            for process, parent in parents.items()
            if parent not in pids | {0} and _name(process) in ("kb-root", "python", "python3")
        ]

    return find


@pytest.fixture
def wardens() -> Callable[[Box], list[psutil.Process]]:
    """The wardens of a home, spares included."""

    def find(box: Box) -> list[psutil.Process]:
        return [process for process in _named(box, "warden") if _name(process) == "kb-warden"]

    return find
