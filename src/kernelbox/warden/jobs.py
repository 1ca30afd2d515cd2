"""What a kernel does one at a time: executions, questions between cells, and forks."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kernelbox.reactor import Timer
from kernelbox.warden.execution import Execution
from kernelbox.wire import Frame


@dataclass(slots=True, eq=False)
class Question:
    """Something a client asks of the interpreter between cells; ``on_answer(None)``: it died."""

    what: str
    fields: dict[str, Any]
    on_answer: Callable[[dict[str, Any] | None], None]
    origin: Any = None
    fds: list[int] = field(default_factory=list)
    with_bash: bool = False
    bash: str | None = None
    deadline: Timer | None = None
    patience: float = 60.0  # once it has its turn; only with_bash, for a shell may not answer
    is_use: bool = True
    """Whether the kernel is used by it: not if it is only asked whether anything goes on."""

    def request(self) -> Frame:
        """For the interpreter."""
        return {**self.fields, "op": "ask", "what": self.what, "fds": len(self.fds)}

    def close(self) -> None:
        _close(self.fds)


@dataclass(slots=True, eq=False)
class ForkOrder:
    """A branch or a checkpoint that waits for its turn; ``on_fork(error, facts)`` says what became
    of it."""

    is_use: ClassVar[bool] = True

    order: Frame
    fds: list[int]
    """For the copy; they are closed here when it has them, or when there will be none."""
    on_fork: Callable[[str | None, Frame], None]
    deadline: Timer | None = None
    patience: float = 60.0  # once it has its turn
    with_bash: bool = False
    bash: str | None = None
    """What gives a new shell the state of this kernel's, if it has one."""

    def request(self) -> Frame:
        """For the interpreter."""
        return {**self.order, "fds": len(self.fds)}

    def close(self) -> None:
        _close(self.fds)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
    fds.clear()


Job = Execution | Question | ForkOrder
