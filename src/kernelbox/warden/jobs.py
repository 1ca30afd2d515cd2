"""What a kernel does one at a time: executions, questions between cells, and forks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernelbox.reactor import Timer
from kernelbox.warden.execution import Execution

if TYPE_CHECKING:
    from kernelbox.warden.python_member import PythonMember


@dataclass(slots=True, eq=False)
class Question:
    """Something a client asks of the interpreter between cells; ``on_answer(None)``: it died."""

    what: str
    fields: dict[str, Any]
    on_answer: Callable[[dict[str, Any] | None], None]
    origin: Any = None
    id: int = 0


@dataclass(slots=True, eq=False)
class ForkOrder:
    """A branch that waits for its turn; ``on_fork(error, notes)`` says what became of it."""

    copy: PythonMember
    on_fork: Callable[[str | None, list[str]], None]
    deadline: Timer | None = None
    patience: float = 60.0  # once it has its turn


Job = Execution | Question | ForkOrder
