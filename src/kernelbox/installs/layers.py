"""Layers: folders of installed packages, made once and lent to many families by hard links.

Everything here is decided by names and locks, so that any number of installers can be at work, and
one that is killed leaves nothing but a draft, which the next one takes away.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kernelbox.installs.failing import Failed
from kernelbox.installs.places import hold, sweep

_MANY = 1000
_SLOTS = 4
_LOOK_EVERY = 0.02
_MOST_ANSWERS = 2000
_FOLDERS = ("layers", "answers", "locks", "families", "drafts", "uv")


@dataclass(frozen=True, slots=True)
class Layer:
    """A finished one; its files are never written to again."""

    folder: str
    packages: dict[str, str]
    notes: list[str]
    size: int
    files: list[tuple[str, int, int]]
    """Each with its size and its time: one that was written to through a link is noticed."""
    folders: list[str]


class Cache:
    """The folder that all installers of a user share."""

    def __init__(self, root: str) -> None:
        self.root = root
        try:
            for name in ("", *_FOLDERS):
                os.makedirs(os.path.join(root, name), mode=0o700, exist_ok=True)
            facts = os.stat(root)
        except OSError as error:
            raise Failed(
                "disk_full" if error.errno == 28 else "failed",
                f"the folder for packages {root!r} cannot be made: {error.strerror}; point "
                "KERNELBOX_INSTALL_CACHE at one you own",
            ) from None
        if facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
            raise Failed(
                "failed",
                f"others can write to the folder for packages, {root!r}; point "
                "KERNELBOX_INSTALL_CACHE at one of your own",
            )

    def path(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)

    # -- locks ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def locked(self, name: str, deadline: float) -> Iterator[None]:
        """Alone with this name, among all installers."""
        fd = os.open(self.path("locks", name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _wait_for(fd, deadline)
            yield
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def slot(self, deadline: float) -> Iterator[None]:
        """One of a few: a crowd of kernels must not become a crowd of downloads."""
        fds = self._slots()
        try:
            while not any(map(_try_lock, fds)):
                _check_time(deadline)
                time.sleep(_LOOK_EVERY)
            yield
        finally:
            for fd in fds:
                os.close(fd)

    def _slots(self) -> list[int]:
        return [
            os.open(self.path("locks", f"slot-{n}"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            for n in range(_SLOTS)
        ]

    @contextlib.contextmanager
    def draft(self) -> Iterator[str]:
        """A folder for one's own work, gone afterwards."""
        folder = self.path("drafts", f"{os.getpid()}-{time.monotonic_ns()}")
        os.mkdir(folder, 0o700)
        fd = hold(folder)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(fd)

    # -- answers ----------------------------------------------------------------------------

    def answer(self, key: str) -> tuple[dict[str, str], float] | None:
        """What was resolved before, and how many seconds ago."""
        try:
            with open(self.path("answers", f"{key}.json")) as file:
                values = json.load(file)
            pins = {str(name): str(version) for name, version in values["pins"].items()}
            return pins, max(0.0, time.time() - float(values["time"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def keep_answer(self, key: str, pins: dict[str, str]) -> None:
        path = self.path("answers", f"{key}.json")
        _write(path, {"pins": pins, "time": time.time()})
        names = os.listdir(self.path("answers"))
        if len(names) > _MOST_ANSWERS:
            for name in names[: len(names) // 2]:
                with contextlib.suppress(OSError):
                    os.unlink(self.path("answers", name))

    # -- layers -----------------------------------------------------------------------------

    def find(self, key: str) -> Layer | None:
        folder = self.path("layers", key)
        try:
            with open(os.path.join(folder, "manifest.json")) as file:
                values = json.load(file)
            files = [(str(path), int(size), int(at)) for path, size, at in values["files"]]
            os.utime(folder)  # the oldest go first
            return Layer(
                os.path.join(folder, "files"),
                dict(values["packages"]),
                list(values["notes"]),
                int(values["size"]),
                files,
                list(values["folders"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def publish(self, key: str, draft: str, facts: dict[str, Any]) -> None:
        """Make a finished draft (its ``files`` folder) the layer of that key, whole or not."""
        _write(os.path.join(draft, "manifest.json"), facts)
        target = self.path("layers", key)
        shutil.rmtree(target, ignore_errors=True)  # one that was damaged
        os.rename(draft, target)

    def discard(self, key: str) -> None:
        shutil.rmtree(self.path("layers", key), ignore_errors=True)

    def make_room(self, most: int, *, spare: str) -> None:
        """Remove the layers that were not used for longest, and then what uv keeps. Families are
        not touched by it: what they have is linked."""
        found = []
        for name in os.listdir(self.path("layers")):
            with contextlib.suppress(OSError, ValueError, KeyError):
                with open(self.path("layers", name, "manifest.json")) as file:
                    size = int(json.load(file)["size"])
                found.append((os.stat(self.path("layers", name)).st_mtime, name, size))
        total = sum(size for _, _, size in found)
        kept = _size_of(self.path("uv"))
        for _, name, size in sorted(found):
            if total + kept <= most:
                return
            if name != spare:
                self.discard(name)
                total -= size
        if total + kept > most and kept:
            self._empty_uv()

    def _empty_uv(self) -> None:
        """Unless an uv is at work."""
        fds = self._slots()
        try:
            if all(map(_try_lock, fds)):
                shutil.rmtree(self.path("uv"), ignore_errors=True)
        finally:
            for fd in fds:
                os.close(fd)

    def sweep(self) -> None:
        """Take away what killed installers and wardens have left."""
        for kind in ("drafts", "families"):
            sweep(self.path(kind), most=_MANY)


def lend(layer: Layer, target: str) -> bool:
    """Link a layer's files to ``target``, which appears whole. False: the layer is not as it was
    when it was made."""
    draft = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        os.mkdir(draft, 0o755)
        for folder in layer.folders:
            os.mkdir(os.path.join(draft, folder), 0o755)
        for path, size, changed_at in layer.files:
            source = os.path.join(layer.folder, path)
            facts = os.lstat(source)
            as_made = facts.st_size == size and facts.st_mtime_ns == changed_at
            if not as_made or not stat.S_ISREG(facts.st_mode):
                return False
            _link(source, os.path.join(draft, path))
        os.rename(draft, target)
    except FileNotFoundError:
        return False
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return True


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (1, 18, 31):  # not allowed, another file system, too many links
            raise
        shutil.copy2(source, target, follow_symlinks=False)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait_for(fd: int, deadline: float) -> None:
    while not _try_lock(fd):
        _check_time(deadline)
        time.sleep(_LOOK_EVERY)


def _check_time(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise Failed("timeout", "other installs were in the way for too long; ask again")


def _write(path: str, values: dict[str, Any]) -> None:
    """Whole or not at all."""
    draft = f"{path}.{os.getpid()}"
    try:
        with open(draft, "w") as file:
            json.dump(values, file)
        os.rename(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


def _size_of(folder: str) -> int:
    total = 0
    waiting = [folder]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total
