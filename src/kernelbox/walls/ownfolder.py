"""A folder of the host that is one family's own, where a sandbox has no file system of its own."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile

PARTS = ("workspace", "home", "tmp")

_PREFIX = "kernelbox-walls-"
# Not the caller's TMPDIR: an ordinary uid must get there, too.
_PLACES = ("/tmp", "/var/tmp")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make(uid: int | None) -> tuple[str, int]:
    """A new one, whose parts only ``uid`` can use (None: the caller); and a descriptor that says,
    as long as somebody has it open, that the folder is in use."""
    cause = OSError(errno.ENOENT, "there is no folder for temporary files")
    for place in _PLACES:
        try:
            folder = tempfile.mkdtemp(prefix=_PREFIX, dir=place)
        except OSError as error:
            cause = error
            continue
        lock = os.open(folder, _FOLDER)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for part in PARTS:
                path = os.path.join(folder, part)
                os.mkdir(path, 0o700)
                if uid is not None:
                    os.chown(path, uid, uid)
            os.chmod(folder, 0o711)
        except OSError as error:
            os.close(lock)
            remove(folder)
            cause = error
            continue
        return folder, lock
    raise OSError(
        cause.errno,
        f"no folder for the sandbox could be made in {' or '.join(_PLACES)}: {cause.strerror}",
    )


def sweep() -> None:
    """Remove what families have left that were killed with all their keepers."""
    for place in _PLACES:
        with contextlib.suppress(OSError):
            for name in os.listdir(place):
                if name.startswith(_PREFIX):
                    with contextlib.suppress(OSError):
                        _remove_if_unused(os.path.join(place, name))


def _remove_if_unused(folder: str) -> None:
    lock = os.open(folder, _FOLDER)
    try:
        if os.fstat(lock).st_uid == os.geteuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(folder)
    finally:
        os.close(lock)


def remove(folder: str) -> None:
    """All of it, however deep: folders further down are brought up first. Nobody lives there any
    more; even so no link is followed."""
    with contextlib.suppress(OSError):
        top = os.open(folder, _FOLDER)
        try:
            _empty(top)
        finally:
            os.close(top)
        os.rmdir(folder)


def _empty(top: int) -> None:
    count = 0
    while names := _entries(top):
        for name, is_folder in names:
            if not is_folder:
                os.unlink(name, dir_fd=top)
                continue
            inner = _open(name, top)
            try:
                for deeper, is_inner_folder in _entries(inner):
                    if is_inner_folder:
                        os.close(_open(deeper, inner))  # with the rights to be moved
                        os.rename(deeper, f".{count}", src_dir_fd=inner, dst_dir_fd=top)
                        count += 1
                    else:
                        os.unlink(deeper, dir_fd=inner)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=top)


def _entries(folder: int) -> list[tuple[str, bool]]:
    with os.scandir(folder) as found:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]


def _open(name: str, where: int) -> int:
    """A folder below one of ours, with all rights over it: code may have taken away its own."""
    if os.geteuid() != 0 and stat.S_IMODE(os.lstat(name, dir_fd=where).st_mode) & 0o700 != 0o700:
        os.chmod(name, 0o700, dir_fd=where)
    return os.open(name, _FOLDER, dir_fd=where)
