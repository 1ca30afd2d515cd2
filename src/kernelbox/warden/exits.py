"""Deaths as data: what a wait status means, in words that say what to do next."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended. ``ename`` is the error's name in a result; no ``status`` is known of
    one that nobody could wait for."""

    status: int | None
    cause: str
    ename: str = "KernelDied"

    @property
    def code(self) -> int:
        """As a shell would show it: 128 + n for signal n, 255 for what is not known."""
        if self.status is None:
            return 255
        if os.WIFSIGNALED(self.status):
            return 128 + os.WTERMSIG(self.status)
        return os.waitstatus_to_exitcode(self.status)


_SIGNAL_WORDS: dict[int, str] = {
    signal.SIGSEGV: "a segmentation fault in native code",
    signal.SIGBUS: "a bus error in native code",
    signal.SIGILL: "an illegal instruction in native code",
    signal.SIGFPE: "an arithmetic fault in native code",
    signal.SIGABRT: "an abort in native code",
    signal.SIGTERM: "SIGTERM: something asked the process to end",
    signal.SIGKILL: "SIGKILL: something killed the process",
}


def explain(
    status: int | None, *, killed_by_us: str | None = None, oom_kills: int = 0, limit: str = ""
) -> Exit:
    """What happened, from the wait status (if it is known) and what else is known: ``limit`` says
    how much memory there was to be had."""
    if killed_by_us is not None:
        out_of_memory = killed_by_us.startswith("out of memory")
        return Exit(status, killed_by_us, "OutOfMemory" if out_of_memory else "KernelDied")
    if status is None:
        return Exit(
            status,
            "the process ended; its exit status is unknown, because the process that parents it"
            " did not report",
        )
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL and oom_kills:
            cause = "out of memory: the kernel's OOM killer ended the process"
            return Exit(status, f"{cause}; {limit}" if limit else cause, "OutOfMemory")
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        words = _SIGNAL_WORDS.get(number)
        return Exit(status, f"died of {name}" + (f" ({words})" if words else ""))
    code = os.waitstatus_to_exitcode(status)
    return Exit(status, f"the process ended itself with exit code {code}")


_counted: tuple[float, int] = (0.0, 0)
_COUNT_EVERY = 1.0
_LARGEST_COUNTS = 1 << 16
_OOM_KILLS = re.compile(rb"^oom_kill (\d+)$", re.M)


def count_oom_kills_by(count: Callable[[], int]) -> None:
    """Behind walls with a limit of their own, only what they have killed counts."""
    global _count, _counted
    _count, _counted = count, (0.0, 0)


def oom_kills(*, fresh: bool = False) -> int:
    """How often the OOM killer has struck where we are so far.

    Before a cell a count of the last second will do; after a death it must be ``fresh``.
    """
    global _counted
    now = time.monotonic()
    if fresh or now - _counted[0] > _COUNT_EVERY:
        _counted = (now, _count())
    return _counted[1]


def _count_oom_kills() -> int:
    for path in _oom_counts():
        try:
            return int(b"".join(_OOM_KILLS.findall(_read(path))))
        except (OSError, ValueError):
            continue
    return 0


def _read(path: str) -> bytes:
    # Not open(), which takes ten times as long, before a cell that somebody waits for.
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, _LARGEST_COUNTS)
    finally:
        os.close(file)


@functools.cache
def _oom_counts() -> tuple[str, ...]:
    """Where kills are counted, the nearest first: those of our own control group, without what is
    below it, and those of the whole machine only where there is no other count."""
    groups: list[str] = []
    with contextlib.suppress(OSError), open("/proc/self/cgroup") as file:
        for line in file:
            number, controllers, path = line.rstrip("\n").split(":", 2)
            where = "" if path == "/" else path
            if "memory" in controllers.split(","):
                groups.append(f"/sys/fs/cgroup/memory{where}/memory.oom_control")
            elif number == "0":
                groups.append(f"/sys/fs/cgroup{where}/memory.events.local")
    there = [path for path in groups if os.path.exists(path)]
    return (*there, "/sys/fs/cgroup/memory.events", "/proc/vmstat")


_count: Callable[[], int] = _count_oom_kills
