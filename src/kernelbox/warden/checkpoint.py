"""A checkpoint: a moment of a kernel, and all that belongs to it but the interpreter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kernelbox.warden.history import History
from kernelbox.warden.parked import Parked


@dataclass(slots=True, eq=False)
class Checkpoint:
    """A moment of a kernel that can be gone back to."""

    id: str
    label: str | None
    automatic: bool
    created_at: float
    execution_count: int
    cells: int
    """How many cells had been run, by whomever: what undo counts by."""
    past: frozenset[str]
    """The automatic ones that there were: those of its own past, and of no other."""
    parked: Parked
    history: History = field(default_factory=History)
    """Copied when it is kept: most guards are not, and a kernel's history may be long."""
    bash: str | None = None
    """What gives a new shell the directory, variables and functions of that moment."""
    knows_bash: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def words(self) -> str:
        return f"checkpoint {(self.label or self.id)!r}"

    def facts(self) -> dict[str, Any]:
        """As a caller sees it."""
        facts = self.parked.facts()
        return {
            "checkpoint_id": self.id,
            "label": self.label,
            "automatic": self.automatic,
            "created_at": self.created_at,
            "execution_count": self.execution_count,
            "private_kb": facts.get("private_kb", 0),
            "notes": self.notes,
        }
