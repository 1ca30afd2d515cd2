"""Ctrl-C and its relatives: the first interrupts the cell, the second leaves at once."""

from __future__ import annotations

import select
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from kernelbox.cli.printing import say_text
from kernelbox.errors import BoxError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PAUSE = 0.02
_GLANCE = 0.1


class Stopped(BaseException):
    """A signal asks us to leave; ``code`` is what a shell expects of a program that does."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


class Interrupting:
    """While it is entered, a signal interrupts the cell and its result is waited for.

    ``cancel`` interrupts the cell and is False while there is none to interrupt: then it is asked
    again, because the cell may be on its way. With ``patient`` every signal interrupts again, and
    none leaves.
    """

    def __init__(self, cancel: Callable[[], bool], *, patient: bool = False) -> None:
        self._cancel = cancel
        self._patient = patient
        self._before: dict[int, Any] = {}
        self._over = threading.Event()
        self._asking = False
        self.number = 0

    @property
    def code(self) -> int | None:
        """The exit code if a signal came."""
        return 128 + self.number if self.number else None

    def __enter__(self) -> Interrupting:
        for number in _SIGNALS:
            # A shell has its background jobs ignore Ctrl-C; so do we then.
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def ask(self, prompt: str) -> str | None:
        """Read an answer for the cell from the terminal; None: there is none. A signal ends the
        reading, and then interrupts the cell."""
        self._asking = True
        try:
            say_text(prompt)
            # Not at once a blocking read: a signal that came just before would wait for the line.
            while not select.select([sys.stdin], [], [], _GLANCE)[0]:
                continue
            line = sys.stdin.readline()
            return line.removesuffix("\n") if line else None
        except (Stopped, KeyboardInterrupt):
            self._begin()
            return None
        finally:
            self._asking = False

    def _arrived(self, number: int, _: FrameType | None) -> None:
        again, self.number = bool(self.number), number
        if self._asking or (again and not self._patient):
            raise Stopped(number)
        self._begin()

    def _begin(self) -> None:
        # In a thread: the one that was interrupted may hold a lock that cancelling needs.
        threading.Thread(target=self._interrupt, daemon=True).start()

    def _interrupt(self) -> None:
        while not self._over.is_set():
            try:
                if self._cancel():
                    return
            except (BoxError, OSError):
                return  # the kernel is gone, and the one who waits for it will hear so
            self._over.wait(_PAUSE)
