"""What a run left behind: processes that carry its mark, found in /proc and ended by pid."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def sweep(mark: str, *, patience: float) -> list[str]:
    """Wait for marked processes to end by themselves, end the rest, and say what they were."""
    deadline = time.monotonic() + patience
    while (found := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return list(found.values())


def _marked(mark: str) -> dict[int, str]:
    """Processes whose environment or command line holds the mark, and what they run."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in command or mark.encode() in environment:
            found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found
