"""What a kernel needs of the process that runs its code, ours or a foreign kernel's."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Protocol

from kernelbox.inside import linux
from kernelbox.warden.exits import Exit
from kernelbox.wire import Frame


class Member(Protocol):
    """Takes requests as frames; what it says, prints and dies of goes to its owner."""

    role: str
    pid: int
    inner_pid: int
    forked: bool
    ended: Exit | None
    oom_before: int

    def give_to(self, owner: MemberOwner) -> None: ...
    def send(self, frame: Frame, fds: list[int] | None = None) -> None: ...
    def catch_up(self) -> None: ...
    def interrupt(self) -> None: ...
    def kill(self, why: str | None) -> None: ...
    def close(self) -> None: ...
    def request_stack(self) -> bool: ...
    def read_stack(self) -> str: ...


class MemberOwner(Protocol):
    """Who is told what a member says, prints and dies of."""

    def member_started(self, member: Member) -> None: ...
    def member_said(self, member: Member, frame: Frame) -> None: ...
    def member_printed(self, member: Member, name: str, text: str) -> None: ...
    def member_ended(self, member: Member, exit: Exit) -> None: ...


def cell_stack(dump: str) -> str:
    """A stack dump without the frames below the cell, which are IPython's and our own."""
    kept, below = [], False
    for line in dump.splitlines():
        if not line.startswith("  File "):
            below = False
        elif "interactiveshell.py" in line and line.endswith(" in run_code"):
            below = True
        if not below:
            kept.append(line)
    return "\n".join(kept)


def process_facts(pid: int, role: str) -> dict[str, Any]:
    """A process for ``status``: what it is, its memory and its CPU time."""
    facts: dict[str, Any] = {"pid": pid, "role": role}
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/smaps_rollup") as file:
            sizes = dict(line.split(":", 1) for line in file if ":" in line)
        private = sum(int(sizes[key].split()[0]) for key in ("Private_Clean", "Private_Dirty"))
        facts["private_kb"] = private
        facts["rss_kb"] = int(sizes["Rss"].split()[0])
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        facts["cpu_seconds"] = ticks / os.sysconf("SC_CLK_TCK")
    return facts


def parent_of(pid: int) -> int:
    """The parent of a process; 0 if there is no such process, or it is not to be known."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])
    return 0


def stub_of(pid: int) -> int:
    """Our stub, if it is the parent of this process; otherwise 0. Only its children are ours.

    Behind walls it is pid 1 of its namespace, and the process of it that stayed outside is our
    child.
    """
    stub = parent_of(pid)
    if not stub:
        return 0
    above = parent_of(stub)
    if above == os.getpid():
        return stub
    walled = linux.pid_inside(stub) == 1 and above and parent_of(above) == os.getpid()
    return stub if walled else 0
