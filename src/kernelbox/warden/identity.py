"""Who a kernel is: what stays the same for as long as it lives."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kernelbox.config import Settings
from kernelbox.wire import Frame


@dataclass(slots=True)
class Identity:
    """Who a kernel is and how its interpreters begin; sent by the keeper, fixed for life."""

    kernel_id: str
    name: str
    connection_file: str
    address: str
    cwd: str
    environ: dict[str, str]
    kernel_type: str = "python3"
    startup_code: str | None = None
    start_timeout: float = 60.0
    session_name: str | None = None
    tags: Any = field(default_factory=dict)
    parent: str | None = None
    made_by: str = "start"
    scoped: bool = False
    """Whether its processes have a domain of their own: none leads to the kernel it came from."""
    profile: str = "open"
    """The name of the walls around it."""
    walls: str | None = None
    """All of that profile, for the keeper to compare."""
    soft_memory: int | None = None
    """Bytes at which a cell gets a MemoryError."""
    workspace: str | None = None
    """A folder that goes with the kernel."""
    notes: list[str] = field(default_factory=list)
    created_at: float = field(default_factory=time.time)
    open_files: list[int] | None = None
    wrote_connection_file: bool = True  # False: it belongs to the Jupyter client that started us

    def note(self, words: str) -> None:
        """Add to the notes what is not among them yet: a restart finds the same again."""
        if words and words not in self.notes:
            self.notes.append(words)


def identity_from(
    frame: Frame, settings: Settings, *, kernel_type: str, notes: Iterable[str]
) -> Identity:
    """As the keeper asks for it; ``notes`` is what every kernel of this warden has to say."""
    kernel_id = str(frame["kernel_id"])
    return Identity(
        kernel_id=kernel_id,
        name=str(frame["name"]),
        connection_file=frame.get("connection_file")
        or os.path.join(settings.runtime_dir, f"kernel-{kernel_id}.json"),
        address=str(frame["address"]),
        cwd=str(frame["cwd"]),
        environ=dict(frame["environ"]),
        kernel_type=kernel_type,
        startup_code=settings.startup_code,
        start_timeout=settings.start_timeout,
        session_name=frame.get("session_name"),
        tags=frame.get("tags") or {},
        parent=frame.get("parent"),
        made_by=str(frame.get("made_by") or "start"),
        scoped=bool(frame.get("scoped")),
        profile=str(frame.get("profile_name") or "open"),
        walls=frame.get("walls"),
        soft_memory=frame.get("soft_memory"),
        workspace=frame.get("workspace"),
        created_at=frame.get("created_at") or time.time(),
        notes=[*notes, *(frame.get("notes") or ())],
        open_files=frame.get("open_files"),
        wrote_connection_file=not frame.get("connection"),
    )
