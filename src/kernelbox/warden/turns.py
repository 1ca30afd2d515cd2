"""Turns: which words of an interpreter answer what it was asked, and which are strays.

User code has the interpreter's end of the lifeline, and can write there what looks like the end of
its own cell. What it gains is that its own result is a lie; but the true end comes later, when the
next cell runs, and must not be taken for the end of that one.
"""

from __future__ import annotations

import os

from kernelbox.wire import Frame

_BEGIN = frozenset(("run", "ask", "branch", "checkpoint"))
_END = frozenset(("done", "answer", "forked"))
OF_A_TURN = _END | {"running", "guarded", "input_request"}
"""What is said in a turn or not at all; the rest (output, a hello) belongs to none."""


def new_turn() -> int:
    """A number that cannot be guessed: a process that an earlier cell has left running may write to
    the lifeline, too."""
    return int.from_bytes(os.urandom(6))


class Turns:
    """An interpreter does one thing at a time, and each ends once."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: int | None = None

    def number(self, frame: Frame) -> None:
        """A request is about to be sent: it gets its number, if it is one that is answered."""
        if frame["op"] in _BEGIN:
            self._open = frame["turn"] = new_turn()

    def names(self, frame: Frame) -> bool:
        """Whether a frame names the turn that it is."""
        return self._open is not None and frame.get("turn") == self._open

    def admit(self, frame: Frame) -> bool:
        """Whether something of a turn is said in its turn. Its end is said once."""
        op = frame["op"]
        if op == "input_request":
            return self._open is not None
        if not self.names(frame):
            return False
        if op in _END:
            self._open = None
        return True
