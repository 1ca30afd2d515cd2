"""SIGINT means "stop this cell": it is put off during frame I/O and ignored between cells."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Interrupts:
    """Decides what an arriving SIGINT does."""

    def __init__(self) -> None:
        self._cell_runs = False
        self._held = 0
        self._pending = False
        self.struck = False
        self._main = threading.main_thread().ident

    def install(self) -> None:
        """Take SIGINT over; a cell with a handler of its own gets what it asked for."""
        signal.signal(signal.SIGINT, self._arrived)

    @contextmanager
    def cell(self) -> Iterator[None]:
        """While this is entered, SIGINT raises KeyboardInterrupt."""
        self._pending = self.struck = False
        self._cell_runs = True
        try:
            yield
        finally:
            self._cell_runs = False

    @property
    def in_cell(self) -> bool:
        return self._cell_runs

    def stop(self) -> None:
        """The cell is over, also if an interrupt hit on the very way out of :meth:`cell`."""
        self._cell_runs = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Put SIGINT off: half a frame on the lifeline would desynchronise it for good."""
        if threading.get_ident() != self._main:
            yield  # signals are only ever handled in the main thread
            return
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            if self._pending and not self._held and self._cell_runs:
                self._pending = False
                self._strike()

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if not self._cell_runs:
            return
        if self._held:
            self._pending = True
            return
        self._strike()

    def _strike(self) -> NoReturn:
        self.struck = True  # IPython's own code may trip over it and raise something else
        raise KeyboardInterrupt
