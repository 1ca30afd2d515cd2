"""A kernel's folder over HTTP: files below it, and no way out.

Every path is walked one part at a time from a descriptor of the folder, and no link is followed, so
that code in the kernel cannot swap a folder for a link between our looking and our opening. All of
this blocks; callers use threads.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from kernelbox.errors import in_short
from kernelbox.server.errors import Refused

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_PARTS = 100
_DRAFT = ".kernelbox-upload-"
_ABANDONED = 3600.0
"""Seconds without a byte after which a draft is nobody's."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in a folder: ``kind`` is ``file``, ``folder``, ``link`` or ``other``."""

    name: str
    kind: str
    size: int
    modified_at: float


def parts_of(path: str) -> list[str]:
    """The parts of a relative path; what could lead out is refused before anything is opened."""
    if "\0" in path or path.startswith("/"):
        raise _outside(path)
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise _outside(path)
    if len(parts) > _MOST_PARTS:
        raise Refused(404, "FileNotFound", f"{in_short(path)} is too deep to be a file here")
    return parts


@dataclass(frozen=True, slots=True)
class Start:
    """A folder as it was when we first saw it: its path without links, and which one it was."""

    path: str
    identity: tuple[int, int]

    @classmethod
    def at(cls, path: str) -> Start:
        with _said("."):
            real = os.path.realpath(path)
            return cls(real, _identity(os.stat(real)))


class Folder:
    """The files below one folder, but for ``hidden`` places and what is in them; ``home`` is hidden
    too, unless it is the folder itself."""

    def __init__(self, start: Start, hidden: Sequence[str] = (), *, home: str = "") -> None:
        self._start = start
        self._never = hidden
        self._hidden = (*hidden, home) if home else hidden

    def entries(self, path: str) -> list[Entry]:
        """What is in a folder, by name."""
        with self._opened(path, parts_of(path)) as fd, os.scandir(fd) as entries:
            found = []
            for entry in entries:
                if entry.name.startswith(_DRAFT):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    found.append(_entry(entry))
        return sorted(found, key=lambda entry: entry.name)

    def read(self, path: str) -> tuple[BinaryIO, os.stat_result]:
        """An open file and what it is."""
        parts = parts_of(path)
        if not parts:
            raise _not_a_file(path)
        with self._opened(path, parts[:-1]) as folder, _said(path):
            # Not blocking: opening a pipe would wait for a writer.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            self._refuse_hidden(path, folder, parts[-1])
            fd = os.open(parts[-1], flags, dir_fd=folder)
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            os.close(fd)
            raise _not_a_file(path)
        return open(fd, "rb", buffering=0), facts

    def begin(self, path: str) -> Upload:
        """Start to write a file; folders on the way are made."""
        parts = parts_of(path)
        if not parts or path.endswith("/"):
            raise _not_a_file(path)
        with contextlib.ExitStack() as stack, _said(path):
            folder = stack.enter_context(self._opened(path, parts[:-1], make=True))
            with contextlib.suppress(FileNotFoundError):
                facts = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
                if not stat.S_ISREG(facts.st_mode):
                    raise _not_a_file(path)
            self._refuse_hidden(path, folder, parts[-1])
            _tidy(folder)
            draft = _DRAFT + secrets.token_hex(8)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(draft, flags, 0o666, dir_fd=folder)
            return Upload(path, parts[-1], draft, fd=fd, folder=os.dup(folder))
        raise AssertionError("an upload was begun or refused")

    def delete(self, path: str) -> None:
        """Remove a file, a link or an empty folder."""
        parts = parts_of(path)
        if not parts:
            raise Refused(409, "NotAFile", "the kernel's folder itself cannot be deleted")
        with self._opened(path, parts[:-1]) as folder, _said(path):
            self._refuse_hidden(path, folder, parts[-1])
            facts = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(facts.st_mode):
                os.rmdir(parts[-1], dir_fd=folder)
            else:
                os.unlink(parts[-1], dir_fd=folder)

    @contextlib.contextmanager
    def _opened(self, path: str, parts: list[str], *, make: bool = False) -> Iterator[int]:
        with _said(path):
            fd = os.open(self._start.path, _FOLDER)
        try:
            if _identity(os.fstat(fd)) != self._start.identity:
                raise _replaced()
            if any(_is_at(place, self._start.identity) for place in self._never):
                raise _ours(path)
            with _said(path):
                for part in parts:
                    self._refuse_hidden(path, fd, part)
                    if make:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(part, dir_fd=fd)
                    below = os.open(part, _FOLDER, dir_fd=fd)
                    os.close(fd)
                    fd = below
            yield fd
        finally:
            os.close(fd)

    def _refuse_hidden(self, path: str, folder: int, name: str) -> None:
        """By name, so that nobody puts one there before we do."""
        for place in self._hidden:
            above, own_name = os.path.split(place)
            if own_name == name and _is_at(above, _identity(os.fstat(folder))):
                raise _ours(path)


class Upload:
    """A file that is being written under another name, until it is whole."""

    def __init__(self, path: str, name: str, draft: str, *, fd: int, folder: int) -> None:
        self._path = path
        self._name = name
        self._draft = draft
        self._fd = fd
        self._folder = folder
        self.size = 0

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        with _said(self._path):
            while view:
                view = view[os.write(self._fd, view) :]
        self.size += len(data)

    def finish(self) -> None:
        """Give the file its name; who reads it sees the old one or the new one, never half."""
        with _said(self._path):
            os.rename(self._draft, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._draft = ""

    def close(self) -> None:
        """What is not finished is gone."""
        if self._draft:
            with contextlib.suppress(OSError):
                os.unlink(self._draft, dir_fd=self._folder)
        os.close(self._fd)
        os.close(self._folder)


def _tidy(folder: int) -> None:
    """Remove drafts of uploads that nobody finishes any more: the service that took them died."""
    horizon = time.time() - _ABANDONED
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(_DRAFT):
                continue
            with contextlib.suppress(OSError):
                facts = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(facts.st_mode) and facts.st_mtime < horizon:
                    os.unlink(entry.name, dir_fd=folder)


def _is_at(path: str, identity: tuple[int, int]) -> bool:
    try:
        return _identity(os.stat(path)) == identity
    except OSError:
        return False


def _identity(facts: os.stat_result) -> tuple[int, int]:
    return facts.st_dev, facts.st_ino


def _entry(entry: os.DirEntry[str]) -> Entry:
    facts = entry.stat(follow_symlinks=False)
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
    kind = kinds.get(stat.S_IFMT(facts.st_mode), "other")
    # A name need not be UTF-8; what JSON cannot say is shown as it is escaped.
    name = entry.name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return Entry(name, kind, facts.st_size, facts.st_mtime)


@contextlib.contextmanager
def _said(path: str) -> Iterator[None]:
    """What the system says of a path, as the one shape of errors."""
    try:
        yield
    except OSError as error:
        raise _refusal(path, error) from None
    except ValueError:
        raise _outside(path) from None


def _refusal(path: str, error: OSError) -> Refused:
    shown = in_short(path)
    if error.errno in (errno.ENOENT, errno.ENAMETOOLONG):
        return Refused(404, "FileNotFound", f"there is no {shown} in the kernel's folder")
    if error.errno == errno.ELOOP:
        return Refused(
            403, "OutsideFolder", f"{shown} leads over a link, and links are not followed"
        )
    if error.errno == errno.ENOTDIR:
        return Refused(404, "FileNotFound", f"a part of {shown} is not a folder, or is a link")
    if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
        return Refused(409, "FolderNotEmpty", f"{shown} is a folder with something in it")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Refused(403, "NotAllowed", f"{shown}: {error.strerror}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Refused(507, "DiskFull", f"{shown} cannot be written: {error.strerror}")
    if error.errno in (errno.EISDIR, errno.ENXIO):
        return _not_a_file(path)
    return Refused(409, "NotAFile", f"{shown}: {error.strerror}")


def _outside(path: str) -> Refused:
    return Refused(
        403,
        "OutsideFolder",
        f"{in_short(path)} is not below the kernel's folder",
        hint="paths are relative, without '..'",
    )


def _ours(path: str) -> Refused:
    return Refused(403, "NotAllowed", f"{in_short(path)} belongs to KernelBox itself")


def _replaced() -> Refused:
    return Refused(
        403,
        "OutsideFolder",
        "the kernel's folder is not the one any more that it started in; another is in its place",
        hint="POST /kernels/{id}/restart starts the kernel in the folder that is there now",
    )


def _not_a_file(path: str) -> Refused:
    return Refused(409, "NotAFile", f"{in_short(path)} is there, but is no file")
