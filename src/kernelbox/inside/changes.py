"""Which files of a folder have changed: their names before, and a look at them after."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Container, Iterable, Iterator

_CLOCK_REALTIME_COARSE = 5  # Linux has it; Python has no name for it
_MOST_FILES = 2_000
_LONGEST_LOOK = 0.002
"""Seconds: somebody waits for it before each atomic cell."""
_MOST_NAMED = 20
_NOT_WATCHED = {"__pycache__", "node_modules"}


class Folder:
    """The names of the files below the working directory; of many, those that were found in time.

    Hidden folders are not looked into. What is there later and has been changed since this look
    (which no program can deny: a file's ctime is the system's own) was changed.
    """

    def __init__(
        self,
        *,
        most: int = _MOST_FILES,
        patience: float = _LONGEST_LOOK,
        besides: Iterable[str] = (),
        path: str | None = None,
    ) -> None:
        """``besides``: whole paths of folders that are not the session's. ``path``: another folder
        than the working directory."""
        self._besides = frozenset(besides)
        self._path = path or "."
        self._names: set[str] = set()
        self.whole = True
        # The clock that files are stamped by, ticks and all.
        self._looked_at = time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)
        deadline = time.perf_counter() + patience
        with contextlib.suppress(OSError):
            self._path = path or os.getcwd()
            for entry, name in _walk(self._path, self._besides):
                if len(self._names) == most or time.perf_counter() > deadline:
                    self.whole = False
                    break
                if not entry.is_dir(follow_symlinks=False):
                    self._names.add(name)

    def changes(self) -> list[str]:
        """What is new, different or gone since, in words for a sentence."""
        seen: set[str] = set()
        words: dict[str, str] = {}
        with contextlib.suppress(OSError):
            for entry, name in _walk(self._path, self._besides):
                if len(seen) == 4 * _MOST_FILES:
                    self.whole = False
                    break
                if entry.is_dir(follow_symlinks=False):
                    continue
                seen.add(name)
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_ctime_ns >= self._looked_at:
                        new = self.whole and name not in self._names
                        words[name] = f"{name} (new)" if new else name
        for name in self._names - seen:
            if not os.path.lexists(os.path.join(self._path, name)):
                words[name] = f"{name} (deleted)"
        shown = [words[name] for name in sorted(words)]
        if len(shown) > _MOST_NAMED:
            shown[_MOST_NAMED:] = [f"and {len(shown) - _MOST_NAMED} more"]
        if shown and not self.whole:
            shown.append("perhaps more (there are too many files to watch them all)")
        return shown


def _walk(top: str, besides: Container[str]) -> Iterator[tuple[os.DirEntry[str], str]]:
    """Near files before deep ones; not into other file systems, /proc above all."""
    folders = [""]
    device = os.stat(top).st_dev
    while folders:
        folder = folders.pop(0)
        with contextlib.suppress(OSError), os.scandir(os.path.join(top, folder)) as entries:
            for entry in entries:
                name = os.path.join(folder, entry.name) if folder else entry.name
                yield entry, name
                hidden = entry.name.startswith(".") or entry.name in _NOT_WATCHED
                if hidden or not entry.is_dir(follow_symlinks=False):
                    continue
                here = entry.stat(follow_symlinks=False).st_dev == device
                if here and os.path.join(top, name) not in besides:
                    folders.append(name)


def copy_folder(source: str, target: str) -> None:
    """All that is in a folder, but for what KernelBox itself keeps there."""
    keep_out = os.path.dirname(os.path.realpath(target))

    def ignored(folder: str, names: list[str]) -> list[str]:
        return [
            name
            for name in names
            if name == ".kernelbox"
            or os.path.realpath(os.path.join(folder, name)) == keep_out
            or not _can_be_copied(os.path.join(folder, name))
        ]

    shutil.copytree(source, target, symlinks=True, ignore=ignored)


def _can_be_copied(path: str) -> bool:
    """Sockets, pipes and devices cannot."""
    mode = os.lstat(path).st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)
