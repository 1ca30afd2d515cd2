"""Waiting, and looking at processes that may end while one looks."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator

import psutil

DEADLINE = 20.0


def wait_until(condition: Callable[[], object], *, what: str, seconds: float = DEADLINE) -> None:
    """Wait for a condition, with a deadline; never sleep and hope."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain: {what}")
        time.sleep(0.005)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    return is_living(lambda: psutil.Process(pid))


def is_living(find: Callable[[], psutil.Process]) -> bool:
    try:
        return find().status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that run."""
    return [process for process in processes if is_living(lambda process=process: process)]


def zombies(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that have ended, and that nobody has reaped."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def such(test: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    """The living processes that pass a test; one that ends meanwhile does not."""
    return living(_such(test))


def _such(test: Callable[[psutil.Process], bool]) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and test(process):
                yield process


def below(pid: int) -> list[psutil.Process]:
    """All that descend from a process; none if it is gone."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
