"""Where packages are kept, and the folder of one family among them. Imports next to nothing: every
walled family comes by here."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Mapping

_YOUNG = 60.0
_FEW = 20


def cache_root(chosen: str, environ: Mapping[str, str]) -> str:
    """The folder that the settings name, or the one in the user's cache."""
    if chosen:
        return chosen
    caches = environ.get("XDG_CACHE_HOME") or ""
    if not os.path.isabs(caches):
        home = environ.get("HOME") or os.path.expanduser("~")
        caches = os.path.join(home, ".cache")
    return os.path.join(caches, "kernelbox", "packages")


class FamilyFolder:
    """What one family sees of all packages. It goes with the family."""

    def __init__(self, root: str, family: str) -> None:
        """``OSError`` if there can be none."""
        self.root = root
        self.path = os.path.join(root, "families", family)
        for folder in (root, os.path.dirname(self.path)):
            os.makedirs(folder, mode=0o700, exist_ok=True)  # only the last of a path is so private
        os.mkdir(self.path, 0o755)
        self._held = hold(self.path)

    def remove(self) -> None:
        """And what wardens that were killed have left."""
        import shutil

        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._held)
        sweep(os.path.dirname(self.path), most=_FEW)


def sweep(folder: str, *, most: int) -> None:
    """Remove the folders in it that nobody holds any more; at most so many are looked at."""
    import shutil

    with contextlib.suppress(OSError):
        for name in os.listdir(folder)[:most]:
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                if time.time() - os.lstat(path).st_mtime < _YOUNG:
                    continue  # whoever has just made it may not hold it yet
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
                finally:
                    os.close(fd)


def hold(folder: str) -> int:
    """Keep a folder from being swept away, for as long as the descriptor is open."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return fd
