"""Many kernels alive at once: what each has in memory for itself, and whether all answer."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from kernelbox import Box, BoxError, KernelRecord
from walled.figures import WALLED


@dataclass
class Crowd:
    """So many kernels alive at once; kilobytes of each that nothing shares, by kind of process."""

    wanted: int
    private: list[float] = field(default_factory=list)
    by_name: Counter[str] = field(default_factory=Counter)
    answered: int = 0
    took: float = 0.0
    why_not: str = ""


def crowd(box: Box, count: int) -> Crowd:
    found = Crowd(count)
    kernels: list[KernelRecord] = []
    try:
        began = time.perf_counter()
        for number in range(count):
            kernel = box.get_or_create(f"crowd-{number}", profile=WALLED)
            kernels.append(kernel)
            box.execute(kernel, "1+1")
        found.took = time.perf_counter() - began
        known = [{fact["pid"] for fact in box.status(each)["processes"]} for each in kernels]
        children = whose_children()
        for pids in known:
            sizes = [private_kb(pid) for pid in family(pids, children)]
            found.private.append(sum(size for _, size in sizes) / 1024)
            for name, size in sizes:
                found.by_name[name] += size
        for kernel in kernels:
            found.answered += box.execute(kernel, "1+1").return_value == "2"
    except (BoxError, OSError) as error:
        found.why_not = f"after {len(kernels)}: {error}"
    finally:
        for kernel in kernels:
            with contextlib.suppress(BoxError):
                box.destroy(kernel)
    return found


def whose_children() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name in parentheses may hold spaces and parentheses of its own.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    return children


def family(pids: set[int], children: dict[int, list[int]]) -> set[int]:
    """What the warden knows of, and all that is below: pid 1 of the sandbox is no secret here."""
    found = set(pids)
    while below := {child for pid in found for child in children.get(pid, ())} - found:
        found |= below
    return found


def private_kb(pid: int) -> tuple[str, int]:
    """What it calls itself, and what it alone has in memory."""
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    total = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(("Private_Clean:", "Private_Dirty:")):
            total += int(line.split()[1])
    return name, total
