"""How an install fails: one line that says what to do, and a word that a program can compare."""

from __future__ import annotations

import re

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
_LONGEST = 600


class Failed(Exception):
    """Why nothing was installed. ``reason`` is one word of a short list, see docs/installs.md."""

    def __init__(self, reason: str, words: str) -> None:
        super().__init__(words)
        self.reason = reason
        self.words = in_one_line(words)


def in_one_line(text: str, longest: int = _LONGEST) -> str:
    """For an agent to read: no line breaks, no passwords, no page of it."""
    line = _CREDENTIALS.sub("****@", " ".join(text.split()))
    line = "".join(each if each.isprintable() else "?" for each in line)
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
