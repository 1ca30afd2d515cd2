"""Colours for terminals that want them."""

from __future__ import annotations

import os
from typing import IO

_CODES = {"red": "31", "green": "32", "yellow": "33", "bold": "1", "dim": "2", "bold red": "1;31"}


def wanted_on(stream: IO[str] | None) -> bool:
    """Whether this stream is a terminal, and nobody has asked for none (https://no-color.org)."""
    if stream is None or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def painted(text: str, colour: str, *, on: bool) -> str:
    """A text in a colour, if colours are on."""
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if on and colour and text else text


def traceback_lines(lines: list[str], *, on: bool) -> str:
    """A traceback: its frame is dim, the line at fault bold, and what went wrong red."""
    rows = "\n".join(lines).split("\n")
    while rows and not rows[-1].strip():
        rows.pop()
    last = len(rows) - 1
    return "".join(
        painted(row, _part(row, last=number == last), on=on) + "\n"
        for number, row in enumerate(rows)
    )


def _part(row: str, *, last: bool) -> str:
    if last:
        return "bold red"
    if row.startswith("----> "):
        return "bold"
    return "dim" if row.startswith("-----") else ""
