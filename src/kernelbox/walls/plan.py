"""What a sandbox will look like, decided outside before anything is built: plain data, no I/O but
looking."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelbox.errors import BadInput
from kernelbox.walls import trees
from kernelbox.walls.profiles import Profile
from kernelbox.walls.surroundings import credential_folders

INSIDE_UID = 1000
HOME = "/home/sandbox"
WORKSPACE = "/workspace"
GATE_PORT = 3128
RAW_RESOLVER = "198.18.99.3"
"""With raw sockets: where names are asked for, and answered by the host's name server."""
TRUSTED = "/etc/kernelbox/certificates.pem"
"""Where a sandbox with secrets finds whom to trust: the host's authorities, and its own."""
ROOTS_OWN = "/var/lib/kernelbox-sandbox"
"""In gVisor: where the root of the sandbox, and nobody else in it, can write."""
PRELOADED = f"{ROOTS_OWN}/preload"
"""There: what ``/etc/ld.so.preload`` leads to, if every program is to load something first."""

_MOST_ENTRIES = 500
_FIRST_HOST_UID = 1_900_000_000
"""As root: uids that nobody has, one for each family (its stub's pid is added)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that the stub needs to know; it travels to it as JSON."""

    shown: tuple[str, ...]
    """Trees of the interpreter; the system's are always shown."""
    overlay: bool
    mounts: tuple[tuple[str, str, bool], ...]
    """Source, target, and whether it can be written to."""
    links: tuple[tuple[str, str], ...]
    """Where a link is, and where it leads."""
    masked: tuple[str, ...]
    scratch: int
    """Bytes that each writable folder of its own holds; 0: as much as the system gives."""
    cwd: str
    network: str
    allow: tuple[str, ...]
    syscalls: str
    limits: Mapping[str, int]
    host_uid: int | None
    sockets: tuple[str, ...] = ()
    """Of the host, in what is shown: to be covered."""
    pinned: tuple[str, ...] = ()
    """Folders that cannot be moved, so that what is covered in them is found again next time."""
    trust: tuple[str, str] = ("", "")
    """The sandbox's own authority for certificates, in PEM, and the host's file of those that it
    trusts; empty where no TLS is ended."""

    def to_wire(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> Plan:
        names = ("shown", "masked", "allow", "sockets", "pinned", "trust")
        lists = {name: tuple(values[name]) for name in names}
        mounts = tuple((source, target, bool(rw)) for source, target, rw in values["mounts"])
        links = tuple((path, target) for path, target in values["links"])
        return cls(**{**values, **lists, "mounts": mounts, "links": links})


def plan_for(
    profile: Profile,
    *,
    shown: Sequence[str],
    cwd: str,
    private: Iterable[str],
    host_uid: int | None,
    sockets: Sequence[str] = (),
) -> tuple[Plan, list[str]]:
    """The plan, and what is to be noted. ``shown``: the trees of the interpreter; ``private``:
    folders of ours that no sandbox may see; ``sockets``: those of the host that are known to be in
    the trees, where these are not under an overlay, in which they would be other files."""
    notes: list[str] = []
    mounts: list[tuple[str, str, bool]] = []
    links: list[tuple[str, str]] = []
    ours = list(private)
    masked: list[str] = []
    inside_cwd = WORKSPACE
    home = os.path.realpath(os.path.expanduser("~"))
    if profile.home == "ro" and not os.path.isdir(home):
        notes.append(f"there is no home to show: {home} is not a folder")
    elif profile.home == "ro":
        entries, links = _without_keys(home)
        mounts += [(entry, entry, False) for entry in entries]
        masked += [os.path.join(home, folder) for folder in credential_folders()]
    if profile.cwd in ("ro", "rw"):
        _check_folder(cwd, home)
        mounts.append((cwd, cwd, profile.cwd == "rw"))
    mounts += [(mount.source, mount.target, mount.mode == "rw") for mount in profile.mounts]
    # Here, where links lead where they mean to.
    mounts = [(os.path.realpath(source), target, rw) for source, target, rw in mounts]
    if any(_shows(target, cwd) for _, target, _ in mounts):
        inside_cwd = cwd
    ours += _seen_elsewhere(ours, mounts)
    masked += ours
    masked += [os.path.join(target, ".kernelbox") for _, target, _ in mounts]
    masked += [os.path.join(tree, ".kernelbox") for tree in shown]
    # A folder of keys may be a link to another place that is shown.
    masked += [real for path in masked if (real := os.path.realpath(path)) != path]
    masked = list(dict.fromkeys([*masked, *trees.PRIVATE]))
    if profile.driver != "process":
        sockets = ()  # gVisor connects nobody to the host's
    elif mounts:
        seen = [(source, target) for source, target, _ in mounts]
        if profile.root == "readonly":
            seen += [(tree, tree) for tree in (*shown, *trees.SYSTEM)]
        sockets = _sockets(seen, masked, notes)
    limits = {
        name: value
        for name in ("open_files", "file_size")
        if (value := getattr(profile, name)) is not None
    }
    if profile.processes is not None:
        limits["processes"] = profile.processes  # counted in the family's own user namespace
    plan = Plan(
        shown=tuple(shown),
        overlay=profile.root == "overlay",
        mounts=tuple(mounts),
        links=tuple(links),
        masked=tuple(masked),
        scratch=profile.disk or 0,
        cwd=inside_cwd,
        network=profile.network,
        allow=tuple(profile.allow),
        syscalls=profile.syscalls,
        limits=limits,
        host_uid=host_uid,
        sockets=tuple(sockets),
        pinned=_above([*ours, *sockets], [to for _, to, rw in mounts if rw], masked),
    )
    return plan, notes


def host_uid_for(stub_pid: int) -> int | None:
    """Who the code is on the host: nobody else, if root can choose; the caller, if not."""
    return _FIRST_HOST_UID + stub_pid if os.geteuid() == 0 else None


def _without_keys(home: str) -> tuple[list[str], list[tuple[str, str]]]:
    """What of a home is shown, entry by entry: keys are not covered, they are not there, also those
    that come later or are written anew. And its links, which lead to what is shown or nowhere."""
    keys = {os.path.join(home, folder) for folder in credential_folders()}
    above = {
        os.path.join(home, *parts[:depth])
        for parts in (folder.split("/") for folder in credential_folders())
        for depth in range(1, len(parts))
    }
    shown: list[str] = []
    links: list[tuple[str, str]] = []
    folders = [home]
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError:
            continue
        for entry in entries:
            if entry.path in keys or len(shown) + len(links) >= _MOST_ENTRIES:
                continue
            if entry.is_symlink():
                links.append((entry.path, os.readlink(entry.path)))
            elif entry.is_dir() and entry.path in above:
                folders.append(entry.path)
            elif entry.is_dir() or entry.is_file():
                shown.append(entry.path)
    return shown, links


def _seen_elsewhere(paths: Iterable[str], mounts: Iterable[tuple[str, str, bool]]) -> list[str]:
    """The places of these in mounts that are at other places than on the host."""
    moved = [(source, target) for source, target, _ in mounts if source != target]
    found = []
    for real in {os.path.realpath(path) for path in paths if moved}:
        for source, target in moved:
            if trees.inside(real, [source]):
                found.append(target + real.removeprefix(source))
    return found


def _above(
    places: Iterable[str], writable: Sequence[str], masked: Sequence[str]
) -> tuple[str, ...]:
    """The folders that lead to these places from a mount that can be written to. Code could move
    one of them with all that is in it, and put another in its stead; in this sandbox a cover moves
    along, and the next would have it in the wrong place."""
    found: dict[str, None] = {}
    for place in places:
        for target in writable:
            if not trees.inside(place, [target]):
                continue
            folder, way = os.path.dirname(place), []
            while folder != target and trees.inside(folder, [target]):
                way.append(folder)
                folder = os.path.dirname(folder)
            found |= dict.fromkeys(each for each in reversed(way) if not trees.inside(each, masked))
    return tuple(found)


def _sockets(
    seen: Sequence[tuple[str, str]], masked: Sequence[str], notes: list[str]
) -> tuple[str, ...]:
    """Where sockets of the host would be seen. Too many cannot be covered, and are refused."""
    from kernelbox.walls import hostsockets  # most show no folder

    found = hostsockets.find(seen, masked)
    notes += found.notes
    if len(found.places) > hostsockets.MOST:
        raise BadInput(
            f"the profile would show {len(found.places):,} Unix sockets of this machine to the "
            f"sandbox, one of them at {found.places[0]!r}, and no more than {hostsockets.MOST:,} "
            "can be covered: show it a smaller folder"
        )
    return found.places


def _shows(target: str, path: str) -> bool:
    """Whether a mount covers this path."""
    return path == target or path.startswith(f"{target.rstrip('/')}/")


def _check_folder(cwd: str, home: str) -> None:
    """A project's folder is shown, and none that holds far more than a project."""
    real = os.path.realpath(cwd)
    too_much = real in trees.NEVER or trees.inside(home, [real]) or trees.inside(real, trees.SYSTEM)
    if too_much or trees.inside(real, ["/etc", "/proc", "/sys", "/dev", "/run", "/var/run"]):
        raise BadInput(
            f"the profile would show the folder {cwd!r} to the sandbox, which holds more than a "
            "project: give cwd= a folder of its own, or a profile with cwd='none'"
        )
