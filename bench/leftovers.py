"""What a run left behind: processes that carry its mark, found in /proc and ended by pid."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def sweep(mark: str, *, patience: float) -> list[str]:
    """Wait for marked processes to end by themselves, end the rest, and say what they were."""
    found = wait(mark, patience=patience)
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return list(found.values())


def wait(mark: str, *, patience: float) -> dict[int, str]:
    """Wait for marked processes to end by themselves; those that have not, and what they run."""
    deadline = time.monotonic() + patience
    while (found := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _marked(mark: str) -> dict[int, str]:
    """Processes with the mark in environment or command line, what is below them, what they run."""
    commands: dict[int, str] = {}
    parents: dict[int, int] = {}
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        pid = int(entry.name)
        try:
            command = (entry / "cmdline").read_bytes()
            environment = (entry / "environ").read_bytes()
            # The name in parentheses may hold spaces and parentheses of its own.
            parents[pid] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        commands[pid] = command.replace(b"\0", b" ").decode(errors="replace").strip()
        if mark.encode() in command or mark.encode() in environment:
            found[pid] = commands[pid]
    # A scrubbed environment hides the mark, but not whose child a process is.
    while below := {pid for pid, parent in parents.items() if parent in found} - found.keys():
        found |= {pid: commands[pid] for pid in below}
    return found
