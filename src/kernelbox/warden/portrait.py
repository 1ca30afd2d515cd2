"""A kernel as others see it: its record, and its status."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from kernelbox.warden.execution import Execution
from kernelbox.warden.member import process_facts

if TYPE_CHECKING:
    from kernelbox.warden.kernel import Kernel

_RECENT = 10


def record(kernel: Kernel) -> dict[str, Any]:
    """What the keeper writes down, and callers have."""
    identity, truth = kernel.identity, kernel.truth
    return {
        "kernel_id": identity.kernel_id,
        "connection_file": identity.connection_file,
        "name": identity.name,
        "created_at": identity.created_at,
        "last_used_at": kernel.last_used_at,
        "status": "busy" if kernel.current is not None else "idle",
        "session_name": identity.session_name,
        "attempt_count": kernel.attempt_count,
        "tags": identity.tags,
        "kernel_type": identity.kernel_type,
        "epoch": truth.epoch,
        "state": truth.state,
        "cause": truth.cause,
        "parent": identity.parent,
        "made_by": identity.made_by,
        "profile": identity.profile,
        "walls": identity.walls,
        "notes": identity.notes,
        "address": identity.address,
    }


def status(kernel: Kernel) -> dict[str, Any]:
    """What runs, for how long, and what waits."""
    processes = [
        process_facts(member.pid, member.role) for member in kernel.members() if member.pid
    ]
    return {
        "alive": True,
        "kernel": record(kernel),
        "running": _running(kernel.current),
        "queued": len(kernel.queue),
        "cwd": kernel.identity.cwd,
        "recent": kernel.shelf.recent(_RECENT),
        "processes": [*processes, *kernel.travel.processes],
        "stack": None,
    }


def _running(job: object) -> dict[str, Any] | None:
    if not isinstance(job, Execution):
        return None
    return {
        "execution_id": job.id,
        "language": job.language,
        "code": job.code[:2000],
        "seconds": round(time.monotonic() - job.started_at, 3),
        "timeout": job.timeout,
    }


def memory(kernel: Kernel) -> int:
    """Bytes that the interpreter has in memory."""
    try:
        with open(f"/proc/{kernel.member.pid if kernel.member else 0}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
