"""Which file systems are mounted where, as the kernel tells of it in /proc/<pid>/mountinfo."""

from __future__ import annotations

import re
from typing import NamedTuple

_ESCAPED = re.compile(r"\\([0-7]{3})")


class Mounted(NamedTuple):
    """What of a file system (``root``) is seen where (``point``)."""

    device: str
    root: str
    point: str
    kind: str
    options: str
    """Those of the file system, which are the same wherever it is seen."""


def parse(text: str) -> list[Mounted]:
    """In the order of the kernel's: what was mounted over something comes after it."""
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        words = before.split(" ")
        kind, _, options = after.split(" ", 2)
        root, point = unescape(words[3]), unescape(words[4])
        found.append(Mounted(words[2], root, point, kind, options))
    return found


def unescape(word: str) -> str:
    """A space is written as \\040, so that words can be told apart."""
    if "\\" not in word:
        return word
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), word)
