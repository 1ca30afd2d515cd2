"""How values are said in messages: sizes, what was given, and what may have been meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MB: Final = 1000**2
MIB: Final = 1024**2
GIB: Final = 1024**3

_UNITS = (
    ("GiB", GIB), ("GB", 1000**3), ("MiB", MIB), ("MB", MB), ("KiB", 1024), ("kB", 1000),
)  # fmt: skip


def size_in_words(size: int) -> str:
    """``512 MB``, ``1 GiB``: in the largest unit that says it exactly."""
    for unit, factor in _UNITS:
        if size and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size:,} bytes"


def shown(value: object) -> str:
    """A value as an error shows it: never a page of it."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """``; did you mean 'memory'?`` where a name is a near miss; else nothing."""
    from difflib import get_close_matches  # only who mistyped waits for it

    folded = {each.casefold(): each for each in known}
    near = get_close_matches(str(name).casefold(), folded, n=1, cutoff=0.6)
    return f"; did you mean {folded[near[0]]!r}?" if near else ""
