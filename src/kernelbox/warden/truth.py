"""The truth about a kernel's namespace: which one it is, and what became of the one before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Loss:
    """Why a namespace is not what it was."""

    state: str
    cause: str
    ename: str = "KernelDied"


class Truth:
    """What every result and every record says of the namespace."""

    __slots__ = ("epoch", "kernel_id", "loss")

    def __init__(self, kernel_id: str, epoch: int) -> None:
        self.kernel_id = kernel_id
        self.epoch = epoch
        """Counts up each time the namespace is not what it was."""
        self.loss: Loss | None = None
        """Happened, and not yet told to anybody."""

    @property
    def state(self) -> str:
        return self.loss.state if self.loss else "kept"

    @property
    def cause(self) -> str | None:
        return self.loss.cause if self.loss else None

    def lost(self, loss: Loss) -> None:
        self.epoch += 1
        self.loss = loss

    def told(self) -> None:
        """Whoever had to know of the loss does."""
        self.loss = None

    def facts(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "cause": self.cause,
            "epoch": self.epoch,
            "kernel_id": self.kernel_id,
        }
