"""Unix sockets of the host in what a sandbox is shown: who connects to one speaks to somebody
outside, with the rights of a neighbour.

A mount that is read-only does not keep anybody from connecting, system calls can be filtered by
numbers and not by paths, and Landlock has a rule for it from version 9 on only. So each socket that
has a name when a sandbox is planned is looked for, to be covered. No folder is walked through: the
kernel lists the names (/proc/net/unix), and each is looked up where it was given, which is in the
view of the file system that its owner has. A file is known by its file system and its place there,
whatever it is mounted on.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kernelbox.walls import mountinfo
from kernelbox.walls.mountinfo import Mounted
from kernelbox.walls.trees import inside

MOST = 1000
"""Sockets that are covered; each takes a mount."""
_MOST_SIDES = 64
_MOST_DESCRIPTORS = 50_000
_MOST_ENTRIES = 50_000
_LONGEST_NAME = 108

# Address, counts, protocol, flags, type, state, inode, and the name: bytes as they were given.
_LINE = re.compile(
    rb"[0-9A-Fa-f]+: [0-9A-F]{8} [0-9A-F]{8} [0-9A-F]{8} [0-9A-F]{4} [0-9A-F]{2} +([0-9]+)( .*)?"
)


class Found(NamedTuple):
    """``places``: where sockets are, as the sandbox would see them; ``notes``: what is unknown."""

    places: tuple[str, ...]
    notes: tuple[str, ...] = ()


class Bound(NamedTuple):
    """A socket with a name, and its number, by which it is known among descriptors."""

    name: str
    inode: str


def find(shown: Sequence[tuple[str, str]], hidden: Sequence[str] = ()) -> Found:
    """``shown``: the files and folders of the host that a sandbox sees, without links, and where;
    ``hidden``: places that are covered anyway. A socket that is shown by name is left alone."""
    _real.cache_clear()
    sides = list(_sides())
    search = _Search(Views(shown, sides[0].points))
    notes = []
    if not sides[0].table():
        notes.append("the sockets of the host could not be listed, so that none is covered")
    if len(sides) > _MOST_SIDES:
        words = f"of {len(sides)} views that processes have of the file system, {_MOST_SIDES} were"
        notes.append(f"{words} searched for sockets of the host")
    homeless: dict[str, str] = {}
    for side in sides[:_MOST_SIDES]:
        for name, inode in bound(side.table()):
            if name.startswith("/"):
                search.look(side.whole(name), side.points)
            else:
                homeless[inode] = name
    if homeless and (lost := _take_home(homeless, search)):
        notes.append(
            f"{lost} sockets of the host have names that do not begin at the root, and it is not "
            "known where they are: one that lies in what is shown could be connected to"
        )
    if search.looked_at > _MOST_ENTRIES:
        notes.append(
            "folders in which sockets of the host had names were too large to look for other names"
        )
    named = {target for source, target in shown if _is_socket(source)}
    places = [place for place in search.places if place not in named and not inside(place, hidden)]
    return Found(tuple(places), tuple(notes))


# --- what is decided -----------------------------------------------------------------------------


def bound(table: bytes) -> list[Bound]:
    """The names in /proc/net/unix that are paths. They stand there as they were given, those with
    the ends of lines in them, too; what begins with @ has no place among files."""
    found: list[Bound] = []
    inode = name = b""
    for line in [*table.split(b"\n")[:-1], b"0: 00000000 00000000 00000000 0000 00 0"]:
        words = _LINE.fullmatch(line)
        if words is None:
            name += b"\n" + line if name else b""
            continue
        if name and len(name) <= _LONGEST_NAME and not name.startswith(b"@"):
            found.append(Bound(os.fsdecode(name), inode.decode()))
        inode, name = words[1], (words[2] or b"")[1:]
    return list(dict.fromkeys(found))


def locate(path: str, points: Mapping[str, Mounted]) -> tuple[str, str]:
    """The file system that a path leads to, and the place there."""
    for above, rest in _ways(path):
        if mount := points.get(above):
            return mount.device, mount.root.rstrip("/") + rest or "/"
    return "", path


def _ways(path: str) -> Iterator[tuple[str, str]]:
    """A path and each folder above it, the nearest first, with the way from there, which begins
    with a slash."""
    yield path, ""
    end = len(path)
    while (end := path.rfind("/", 0, end)) > 0:
        yield path[:end], path[end:]
    yield "/", path


class Views:
    """What is seen of the host: by file systems and places in them, and by our own paths, each with
    where we see it and where the sandbox does."""

    def __init__(self, shown: Iterable[tuple[str, str]], points: Mapping[str, Mounted]) -> None:
        self.points = points
        self.seen: dict[str, list[str]] = {}
        self._parts: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for source, target in shown:
            self.seen.setdefault(source, []).append(target)
            self._parts.setdefault(locate(source, points), []).append((source, target))
        for point, mount in points.items():  # what is mounted below comes along
            for above, rest in _ways(point):
                for target in self.seen.get(above, ()) if rest else ():
                    part = self._parts.setdefault((mount.device, mount.root), [])
                    part.append((point, target + rest))

    def of(self, path: str, points: Mapping[str, Mounted]) -> set[tuple[str, str]]:
        """Where a file of somebody who has these mounts is: for us, and in the sandbox."""
        device, place = locate(path, points)
        found = {
            (source + rest, target + rest)
            for above, rest in _ways(place)
            for source, target in self._parts.get((device, above), ())
            if rest
        }
        # Ours by its path, too: mounts that are covered by others could lead astray.
        for above, rest in _ways(path) if points is self.points else ():
            found |= {(path, target + rest) for target in self.seen.get(above, ()) if rest}
        return found


# --- what is looked at ---------------------------------------------------------------------------


class _Search:
    """Collects the places of sockets in a sandbox."""

    def __init__(self, views: Views) -> None:
        self.views = views
        self.places: dict[str, None] = {}
        self.looked_at = 0
        self._listed: dict[str, list[str]] = {}

    def look(self, path: str, points: Mapping[str, Mounted]) -> bool:
        """For a socket that was given this name by somebody who has these mounts. Whether it, or
        another beside it, was found."""
        found = False
        for here, place in self.views.of(path, points):
            found |= self._take(here, place)
        return found

    def _take(self, path: str, place: str) -> bool:
        """Some give a socket its last name by a link or by moving it, and mostly in one folder: if
        this name is not the only one, all that are in the folder are taken."""
        folder, name = os.path.split(path)
        if (real := _real(folder)) != folder:  # a link in the view of somebody else
            return self.look(f"{real.rstrip('/')}/{name}", self.views.points)
        found = False
        if _is_socket(path):
            self.places[place] = None
            found = True
            if os.lstat(path).st_nlink == 1:
                return True
        there = os.path.dirname(place)
        for name in self._sockets_in(folder):
            self.places[f"{there.rstrip('/')}/{name}"] = None
            found = True
        return found

    def _sockets_in(self, folder: str) -> list[str]:
        if folder not in self._listed:
            names = self._listed[folder] = []
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    self.looked_at += 1
                    if self.looked_at > _MOST_ENTRIES:
                        break
                    if not (entry.is_file(follow_symlinks=False) or entry.is_symlink()):
                        names += [entry.name] if _is_socket(entry.path) else []
        return self._listed[folder]


class _Side:
    """How a process sees the world: its network, which names belong to, and its files."""

    def __init__(self, process: str, network: str, tables: dict[str, bytes]) -> None:
        self._process = process
        self._network = network
        self._tables = tables

    def table(self) -> bytes:
        if self._network not in self._tables:
            self._tables[self._network] = _bytes(f"{self._process}/net/unix")
        return self._tables[self._network]

    @functools.cached_property
    def points(self) -> dict[str, Mounted]:
        return _points(self._process)

    def whole(self, name: str) -> str:
        """A name without links; those of another's view cannot be followed from here."""
        if self._process != "/proc/self":
            return os.path.normpath(name)
        folder, last = os.path.split(name)
        return os.path.join(_real(folder), last)


def _sides() -> Iterator[_Side]:
    """Ours, and one process for each other that we may look at."""
    tables: dict[str, bytes] = {}
    ours = _namespaces("/proc/self") or ("", "")
    yield _Side("/proc/self", ours[0], tables)
    seen = {ours}
    for process in _processes():
        namespaces = _namespaces(process)
        if namespaces is not None and namespaces not in seen:
            seen.add(namespaces)
            yield _Side(process, namespaces[0], tables)


def _namespaces(process: str) -> tuple[str, str] | None:
    try:
        return os.readlink(f"{process}/ns/net"), os.readlink(f"{process}/ns/mnt")
    except OSError:
        return None


def _processes() -> list[str]:
    return [f"/proc/{name}" for name in os.listdir("/proc") if name.isdigit()]


def _take_home(homeless: dict[str, str], search: _Search) -> int:
    """Names that begin where their owners stood: where these stand now, or in what is shown. How
    many were not found."""
    left = dict(homeless)
    for source, targets in search.views.seen.items():
        for inode, name in homeless.items():
            path = os.path.normpath(f"{source}/{name}")
            if path.startswith(f"{source}/") and _is_socket(path):
                search.places |= dict.fromkeys(to + path[len(source) :] for to in targets)
                left.pop(inode, None)
    for process, inode in _owners(set(left)):
        with contextlib.suppress(OSError):
            folder = os.readlink(f"{process}/cwd")
            path = os.path.normpath(f"{folder}/{homeless[inode]}")
            if search.look(path, _points(process)) or os.path.lexists(f"{process}/root{path}"):
                left.pop(inode, None)
    return len(left)


def _owners(inodes: set[str]) -> Iterator[tuple[str, str]]:
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    looked = 0
    for process in _processes() if wanted else ():
        try:
            descriptors = os.listdir(f"{process}/fd")
        except OSError:
            continue
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                if inode := wanted.get(os.readlink(f"{process}/fd/{descriptor}")):
                    yield process, inode
        looked += len(descriptors)
        if looked > _MOST_DESCRIPTORS:
            return


@functools.cache
def _real(folder: str) -> str:
    """For one search: many sockets are in one folder."""
    return os.path.realpath(folder)


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def _points(process: str) -> dict[str, Mounted]:
    """Where something is mounted, and what of it is on top."""
    text = os.fsdecode(_bytes(f"{process}/mountinfo"))
    return {mount.point: mount for mount in mountinfo.parse(text)}


def _bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
