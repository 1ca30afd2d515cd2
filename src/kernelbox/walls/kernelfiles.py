"""Small files of the kernel's, which are read whole and written by one call."""

from __future__ import annotations

import os


def read(path: str) -> str:
    """Empty when it is not there, or not for us."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def tell(path: str, words: str) -> None:
    """Not by ``open``, which takes five times as long, and would make the file where the kernel has
    none, were this not its file system."""
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, words.encode())
    finally:
        os.close(file)
