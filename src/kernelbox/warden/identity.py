"""Who a kernel is: what stays the same for as long as it lives."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


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
