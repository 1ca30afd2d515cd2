"""Progress on standard error of a terminal: what takes long, for how long, and its last line."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PATIENCE = 0.5
_PERIOD = 0.1


class working:  # noqa: N801 - read as a verb: with working("creating demo")
    """Shows that something is under way. Quick work shows nothing; neither does a pipe."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._last = ""
        self._shown = False
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> working:
        if is_terminal():
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            if self._shown:
                _draw("\r\x1b[K")

    def note(self, text: str) -> None:
        """What the work has just printed; its last line is shown."""
        lines = [line for line in text.replace("\r", "\n").split("\n") if line.strip()]
        if lines:
            self._last = lines[-1]

    def _show(self) -> None:
        import shutil

        began = time.monotonic()
        turn = 0
        wait = _PATIENCE
        while not self._over.wait(wait):
            wait = _PERIOD
            turn += 1
            seconds = time.monotonic() - began
            words = f"{_FRAMES[turn % len(_FRAMES)]} {self._what} · {seconds:.0f} s"
            if self._last:
                words += f" · {harmless(self._last)}"
            self._shown = True
            _draw(f"\r{fitting(words, shutil.get_terminal_size().columns - 1)}\x1b[K")


def is_terminal() -> bool:
    """Whether somebody watches standard error."""
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:
        return False


def harmless(text: str) -> str:
    """A line without what would move the cursor or change colours."""
    return "".join(character for character in text if character.isprintable())


def fitting(text: str, columns: int) -> str:
    """As much of a text as fits; wide characters take two columns."""
    from unicodedata import east_asian_width

    used = 0
    for place, character in enumerate(text):
        used += 2 if east_asian_width(character) in "WF" else 1
        if used > columns:
            return text[:place]
    return text


def _draw(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        pass  # a terminal that went away; the work goes on
