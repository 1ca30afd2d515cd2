"""How a warden reaches members that have no pid on the host: its stub, beside them, does it.

In gVisor every process is known to the sandbox's own kernel only. What elsewhere is a signal from
here is an order there; and because the stub also reaps them, it never means somebody else.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from typing import TypeGuard

from kernelbox.reactor import Peer, Reactor, Timer
from kernelbox.wire import Frame

_MOST_PIDS = 1 << 22
_LONGEST_DEATH, _LONGEST_SILENCE = 5.0, 5.0


def is_member_pid(pid: object) -> TypeGuard[int]:
    """Whether what a process says of itself can be true of a member: pid 1 is the stub."""
    return type(pid) is int and 1 < pid < _MOST_PIDS


class Hands:
    """Orders to one stub. Pids are those of the sandbox."""

    def __init__(self, stub: Peer, reactor: Reactor, on_deaf: Callable[[], None]) -> None:
        """``on_deaf`` is called if one that was to be killed has not ended for long, and the stub
        does not answer either: then the whole sandbox hangs."""
        self._stub = stub
        self._reactor = reactor
        self._on_deaf = on_deaf
        self._doomed: dict[int, Timer] = {}
        self._silence: Timer | None = None
        self._waiting: dict[int, Callable[[bool], None]] = {}
        self._busy: bool | None = None
        self.on_shed: Callable[[], None] = lambda: None
        self.on_weight: Callable[[int], None] = lambda size: None

    def signal(self, pid: int, number: int, *, group: bool = False) -> None:
        self._order({"op": "signal", "pid": pid, "signal": int(number), "group": group})
        if number == signal.SIGKILL:
            self._expect_end(pid)

    def kill_all(self, pid: int, *, spare_jobs: bool = False) -> None:
        """A process and all below it."""
        self._order({"op": "kill", "pid": pid, "spare_jobs": spare_jobs})
        self._expect_end(pid)

    def note_jobs(self, shell: int, noted: Callable[[bool], None]) -> None:
        """What runs below a shell now is not what its next command starts. ``noted``: whether
        there is anything; the command may begin."""
        self._waiting[shell] = noted
        self._order({"op": "jobs", "pid": shell})

    def interrupt_shell(self, shell: int, *, hard: bool) -> None:
        self._order({"op": "interrupt_shell", "pid": shell, "hard": hard})

    def has_children(self, pids: Iterable[int]) -> bool:
        """Whether anything runs below them. Who does not know yet says so, and knows it when asked
        again: to be taken for busy once does no harm."""
        busy, self._busy = self._busy, None
        self._order({"op": "census", "pids": list(pids)})
        return busy is not False

    def shed(self, why: str) -> None:
        """End the process that has most memory, which is more than there is for all."""
        self._order({"op": "shed", "why": why})

    def weigh(self) -> None:
        """Ask how much memory all of them have."""
        self._order({"op": "weigh"})

    def heard(self, frame: Frame) -> None:
        """An answer of the stub's."""
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None
        if frame.get("op") == "census":
            self._busy = bool(frame.get("busy"))
        elif frame.get("op") == "weight":
            self.on_weight(int(frame["bytes"]))
        elif frame.get("op") == "shed":
            self.on_shed()
        elif frame.get("op") == "jobs":
            noted = self._waiting.pop(frame["pid"], None)
            if noted is not None:
                noted(bool(frame.get("jobs")))

    def ended(self, pid: int) -> None:
        """The stub has told so."""
        self._waiting.pop(pid, None)
        if (timer := self._doomed.pop(pid, None)) is not None:
            timer.cancel()

    def _expect_end(self, pid: int) -> None:
        if pid not in self._doomed:
            self._doomed[pid] = self._reactor.call_later(_LONGEST_DEATH, lambda: self._call(pid))

    def _call(self, pid: int) -> None:
        """Is anybody there? One that is not the stub's own child may have ended without a word."""
        self._doomed.pop(pid, None)
        if self._silence is None:
            self._silence = self._reactor.call_later(_LONGEST_SILENCE, self._on_deaf)
            self.weigh()

    def _order(self, order: Frame) -> None:
        self._stub.send(order)
