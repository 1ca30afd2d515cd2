"""Which files of a folder have changed: a look before, and a look after."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator

_MOST_FILES = 2_000
_MOST_NAMED = 20
_NOT_WATCHED = {".git", ".hg", ".kernelbox", ".venv", "__pycache__", "node_modules"}

_Facts = tuple[int, int, int]


class Folder:
    """The files below the working directory as they are now; of many, the first thousands."""

    def __init__(self, *, most: int = _MOST_FILES) -> None:
        self._path = "."
        self._files: dict[str, _Facts] = {}
        self.whole = True
        with contextlib.suppress(OSError):
            self._path = os.getcwd()
            for path, facts in _walk(self._path):
                if len(self._files) == most:
                    self.whole = False
                    break
                self._files[path] = facts

    def changes(self) -> list[str]:
        """What is new, different or gone since, in words for a sentence."""
        now: dict[str, _Facts] = {}
        with contextlib.suppress(OSError):
            for path, facts in _walk(self._path):
                if len(now) == 2 * _MOST_FILES:
                    break
                now[path] = facts
        words = []
        for path in sorted({*now, *self._files}):
            if path not in self._files:
                if self.whole:
                    words.append(f"{path} (new)")
            elif path not in now:
                words.append(f"{path} (deleted)")
            elif now[path] != self._files[path]:
                words.append(path)
        if len(words) > _MOST_NAMED:
            words[_MOST_NAMED:] = [f"and {len(words) - _MOST_NAMED} more"]
        if not self.whole:
            words.append(f"(only the first {_MOST_FILES:,} files were watched)")
        return words


def _walk(top: str) -> Iterator[tuple[str, _Facts]]:
    """Near files before deep ones."""
    folders = [""]
    while folders:
        folder = folders.pop(0)
        with contextlib.suppress(OSError), os.scandir(os.path.join(top, folder)) as entries:
            for entry in entries:
                name = os.path.join(folder, entry.name)
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in _NOT_WATCHED:
                        folders.append(name)
                    continue
                facts = entry.stat(follow_symlinks=False)
                yield name, (facts.st_mtime_ns, facts.st_size, facts.st_ino)


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
