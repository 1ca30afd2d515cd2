"""Where control groups can be made on this machine: which version, and below which of our own."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kernelbox.walls import mountinfo
from kernelbox.walls.kernelfiles import read, tell

CONTROLLERS = ("memory", "cpu", "pids")
TRIAL = "kernelbox.trial-"
"""How a group is called that was made to find out whether one can be; its maker's pid follows."""

# A group that cannot be used has none of these, or does not let us write them.
_KNOBS = {
    1: {"memory": "memory.limit_in_bytes", "cpu": "cpu.cfs_quota_us", "pids": "pids.max"},
    2: {"memory": "memory.max", "cpu": "cpu.max", "pids": "pids.max"},
}


@dataclass(frozen=True)
class Hierarchy:
    """Where groups can be made: for each controller the folder of a group that is ours."""

    version: int
    parents: Mapping[str, str]

    def describe(self) -> str:
        return f"cgroup v{self.version} ({', '.join(self.parents)})"

    def folders(self, name: str) -> dict[str, str]:
        """Each controller's folder of the group ``name``; in v2 all the same one."""
        return {kind: os.path.join(parent, name) for kind, parent in self.parents.items()}


def find(process: str = "/proc/self") -> Hierarchy | str:
    """What this process may use, decided by trying; or, in words, why there is nothing."""
    groups = parse_groups(read(f"{process}/cgroup"))
    mounts = parse_mounts(read(f"{process}/mountinfo"))
    unified = _find_unified(groups, mounts)
    if isinstance(unified, Hierarchy):
        return unified
    legacy = _find_legacy(groups, mounts)
    if isinstance(legacy, Hierarchy):
        return legacy
    # Root is refused by v2 like everybody else: a login session's group has processes in it.
    or_as_root = ", or as root" if "memory" in groups and os.geteuid() != 0 else ""
    return (
        f"no control group can be used (v2: {unified}; v1: {legacy}); to have one, run in a "
        f"systemd service with Delegate=yes and DelegateSubgroup=main{or_as_root}"
    )


@dataclass(frozen=True)
class Mount:
    """A mounted hierarchy: what of it is seen, where, and its controllers (none in v2)."""

    version: int
    root: str
    point: str
    controllers: frozenset[str]


def parse_groups(text: str) -> dict[str, str]:
    """/proc/<pid>/cgroup: the path of our group for each controller; v2's under the empty name."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        found.update(dict.fromkeys(names.split(","), path))
    return found


def parse_mounts(text: str) -> list[Mount]:
    """The control group hierarchies in /proc/<pid>/mountinfo."""
    found = []
    for mounted in mountinfo.parse(text):
        if mounted.kind == "cgroup":
            controllers = frozenset(mounted.options.split(","))
            found.append(Mount(1, mounted.root, mounted.point, controllers))
        elif mounted.kind == "cgroup2":
            found.append(Mount(2, mounted.root, mounted.point, frozenset()))
    return found


def own_folder(path: str, mounts: Iterable[Mount]) -> str | None:
    """Where the group ``path`` is seen through one of ``mounts``; None: nowhere."""
    if ".." in path.split("/"):  # outside of our cgroup namespace
        return None
    for mount in mounts:
        below = os.path.relpath(path, mount.root) if mount.root.startswith("/") else ".."
        if below.split("/")[0] == "..":
            continue
        folder = os.path.normpath(os.path.join(mount.point, below))
        if os.path.isdir(folder):
            return folder
    return None


def try_unified(
    folder: str, controllers: Sequence[str] = CONTROLLERS, *, knobs: Mapping[str, str] = _KNOBS[2]
) -> str:
    """Why a v2 group cannot host groups with these controllers; empty if it can, and then it does:
    they are switched on in it, and stay so."""
    held = read(f"{folder}/cgroup.controllers").split()
    missing = [kind for kind in controllers if kind not in held]
    if missing:
        return f"{folder} has no {', '.join(missing)} (it has: {', '.join(held) or 'nothing'})"
    switch = f"{folder}/cgroup.subtree_control"
    if not set(controllers) <= set(read(switch).split()):
        try:
            tell(switch, " ".join(f"+{kind}" for kind in controllers))
        except OSError as error:
            if error.errno == errno.EBUSY:
                # The kernel's rule: processes only in the leaves. Moving our caller's other
                # processes out of the way is not for us to do.
                return f"{folder} has processes of its own, so that it can host no limited groups"
            return f"{switch}: {os.strerror(error.errno or 0)}"
    if not os.access(f"{folder}/cgroup.procs", os.W_OK):
        return f"{folder}/cgroup.procs may not be written, so that nobody can be moved"
    return _trial(folder, [knobs[kind] for kind in controllers])


def _find_unified(groups: Mapping[str, str], mounts: Sequence[Mount]) -> Hierarchy | str:
    if "" not in groups:
        return "not in this kernel"
    folder = own_folder(groups[""], [mount for mount in mounts if mount.version == 2])
    if folder is None:
        return f"our group {groups['']} is not mounted"
    words = try_unified(folder)
    above = os.path.dirname(folder)
    if words and _is_delegated(above):
        # DelegateSubgroup= puts us into a leaf of what is delegated, to keep to the rule.
        folder, words = above, try_unified(above)
    return words or Hierarchy(2, dict.fromkeys(CONTROLLERS, folder))


def _find_legacy(groups: Mapping[str, str], mounts: Sequence[Mount]) -> Hierarchy | str:
    parents: dict[str, str] = {}
    for kind in CONTROLLERS:
        if kind not in groups:
            return f"there is no {kind} controller"
        folder = own_folder(groups[kind], [mount for mount in mounts if kind in mount.controllers])
        if folder is None:
            return f"our {kind} group {groups[kind]} is not mounted"
        if words := _trial(folder, [_KNOBS[1][kind]]):
            return words
        parents[kind] = folder
    return Hierarchy(1, parents)


def _is_delegated(folder: str) -> bool:
    """Whether systemd has marked a group as its user's own."""
    for name in ("trusted.delegate", "user.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def _trial(folder: str, files: Sequence[str]) -> str:
    """Why no group with these files can be made in ``folder``; empty if one could."""
    trial = f"{folder}/{TRIAL}{os.getpid()}-{time.monotonic_ns()}"
    try:
        os.mkdir(trial)
    except OSError as error:
        return f"no group can be made in {folder}: {os.strerror(error.errno or 0)}"
    try:
        for file in (*files, "cgroup.procs"):
            os.close(os.open(f"{trial}/{file}", os.O_WRONLY | os.O_CLOEXEC))
    except OSError as error:
        return (
            f"a group in {folder} has no {file} that we may write: {os.strerror(error.errno or 0)}"
        )
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(trial)
    return ""
