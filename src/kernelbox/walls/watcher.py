"""How much a family has, where no control group counts it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kernelbox.walls.kernelfiles import read


class Watcher:
    """Looks at a family's memory and processes where no control group counts them.

    It only looks, when asked; between two looks a family can be over any limit.
    """

    def __init__(self, pids: Callable[[], Iterable[int]], memory: int) -> None:
        self._pids = pids
        self._memory = memory

    def over(self) -> tuple[int, int] | None:
        """When the family has more than its memory: the member with most, and what *all* have.

        Counted is what cannot be dropped: anonymous memory, that which is shared included
        (``mmap.mmap(-1, …)``), swapped out or not. Pages that members share copy-on-write count
        once, where we may look closely; elsewhere once for each.
        """
        pids = list(self._pids())
        # Pages counted once per member: too much, but cheap, and mostly not too much even so.
        held = {pid: _resident(pid) for pid in pids}
        if sum(held.values()) <= self._memory:
            return None
        for pid in pids:
            share = _share(pid)
            held[pid] = held[pid] if share is None else share
        total = sum(held.values())
        if total <= self._memory:
            return None
        return max(held, key=lambda pid: held[pid]), total

    def processes_over(self, limit: int) -> int | None:
        """How many there are, when more than ``limit``; threads too, as pids.max counts them."""
        total = 0
        for pid in self._pids():
            total += _kilobytes(read(f"/proc/{pid}/status")).get("Threads", 0)
        return total if total > limit else None


def _resident(pid: int) -> int:
    sizes = _kilobytes(read(f"/proc/{pid}/status"))
    return sum(sizes.get(name, 0) for name in ("RssAnon", "RssShmem", "VmSwap")) << 10


def _share(pid: int) -> int | None:
    """Its share of the pages it has: a page of four processes is a quarter. None: we may not look,
    or the kernel (< 5.3) does not tell memory from file cache."""
    sizes = _kilobytes(read(f"/proc/{pid}/smaps_rollup"))
    if "Pss_Anon" not in sizes:
        return None
    return sum(sizes.get(name, 0) for name in ("Pss_Anon", "Pss_Shmem", "SwapPss")) << 10


def _kilobytes(text: str) -> dict[str, int]:
    """The lines ``Name: number`` of a file in /proc, most of them in kB."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0])
    return found
