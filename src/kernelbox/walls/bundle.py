"""What runsc is told of a sandbox: a plan as an OCI bundle, a folder with a root and a config.json.

The same house as :mod:`kernelbox.walls.house` builds by itself, in the words of another builder.
Nothing in it is secret, and nothing is run from here.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from kernelbox.walls import house, trees
from kernelbox.walls.lending import Loan, make_place
from kernelbox.walls.plan import HOME, INSIDE_UID, PRELOADED, ROOTS_OWN, WORKSPACE, Plan

_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_KILL", "CAP_SYS_ADMIN")
"""Of pid 1 alone: it makes ordinary users of all that it starts, and must be able to end them. The
last it gives up before that: it hides itself (``inside/fresh.py``)."""

_PLACES = (WORKSPACE, "/tmp", HOME, "/dev/shm")
"""Of the sandbox's own. What is shown below them is mounted on them, and no part of the root."""
_SMALL = 1 << 16
_MODES = ("0755", "1777", "0700", "1777")

_NAMESPACES = ("pid", "network", "ipc", "uts", "mount")
_OWN = ("nosuid", "nodev")

Mount = dict[str, Any]


def write(
    folder: str, plan: Plan, command: Sequence[str], environ: Mapping[str, str]
) -> list[Loan]:
    """Fill ``folder``, which is ours alone; ``command`` is pid 1 of the sandbox.

    What is to be mounted in it before runsc looks at it: root can, and only root has to.
    """
    root = os.path.join(folder, "rootfs")
    os.mkdir(root, 0o755)
    _check(plan)
    seen = _Seen(folder, plan, lends=os.geteuid() == 0)
    seen.trees(root)
    mounts = [*_own_places(plan), *_settings(root, plan), *seen.mounts]
    _make_links(root, plan)
    if seen.lends and plan.overlay:
        for place in (root, f"{root}/etc"):
            os.chown(place, INSIDE_UID, INSIDE_UID)  # a copy of it may be changed
    mounts += _covers(folder, plan)
    config = {
        "ociVersion": "1.0.0",
        "hostname": "sandbox",
        "root": {"path": root, "readonly": not plan.overlay},
        "mounts": mounts,
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": list(command),
            "env": [f"{name}={value}" for name, value in environ.items()],
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": {
                kind: list(_CAPABILITIES) for kind in ("bounding", "effective", "permitted")
            },
        },
        "linux": {"namespaces": [{"type": kind} for kind in _NAMESPACES]},
    }
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    return seen.loans


def remove(folder: str) -> None:
    """When the sandbox has ended, however it did. Nothing is mounted there for us to see; if it
    were, it would be somebody's files."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        points = [line.split(" ")[4] for line in file]
    if not any(trees.inside(point, [folder]) for point in points):
        shutil.rmtree(folder, ignore_errors=True)


def _own_places(plan: Plan) -> list[Mount]:
    """Memory of the sandbox's own. What is in it goes with it."""
    user = f"uid={INSIDE_UID}", f"gid={INSIDE_UID}"
    found: list[Mount] = [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": list(_OWN)}
    ]
    found.append(_memory("/sys", 4096, "0555", "ro"))  # or there would be one, if a made-up one
    found.append(_memory(ROOTS_OWN, _SMALL, "0755"))
    for place, mode in zip(_PLACES, _MODES, strict=True):
        found.append(_memory(place, plan.scratch, mode, *user))
    return found


def _memory(place: str, size: int, mode: str, *more: str) -> Mount:
    options = [*_OWN, f"mode={mode}", *([f"size={size}"] if size else []), *more]
    return {"destination": place, "type": "tmpfs", "source": "tmpfs", "options": options}


def _bind(source: str, place: str, *, writable: bool = False) -> Mount:
    options = ["rbind", *_OWN, "rw" if writable else "ro"]
    return {"destination": place, "type": "bind", "source": source, "options": options}


class _Seen:
    """What the sandbox sees of the host: where runsc finds each piece of it."""

    def __init__(self, folder: str, plan: Plan, *, lends: bool) -> None:
        self._folder = folder
        self._plan = plan
        self.lends = lends
        self.mounts: list[Mount] = []
        self.loans: list[Loan] = []

    def trees(self, root: str) -> None:
        """The interpreter's trees and the system's, at their own places, and what is mounted."""
        for tree in self._plan.shown:
            self._show(root, tree)
        for tree in trees.SYSTEM:
            if os.path.islink(tree):
                os.symlink(os.readlink(tree), root + tree)
            elif os.path.isdir(tree):
                self._show(root, tree)
        for source, target, writable in self._plan.mounts:
            self._bring(source, target, writable=writable)

    def _show(self, root: str, tree: str) -> None:
        """To be read; or to be written to, in a copy, as a part of the root that is copied."""
        if self.lends and self._plan.overlay and not trees.inside(tree, _PLACES):
            make_place(tree, root + tree)
            self.loans.append(Loan(tree, root + tree, False))
        elif self.lends and tree in self._plan.shown:
            self._bring(tree, tree, writable=False)
        else:
            self.mounts.append(_bind(tree, tree))

    def _bring(self, source: str, target: str, *, writable: bool) -> None:
        if self.lends:
            lent = f"{self._folder}/lent/{len(self.loans)}"
            make_place(source, lent)
            self.loans.append(Loan(source, lent, writable))
            source = lent
        self.mounts.append(_bind(source, target, writable=writable))


def _settings(root: str, plan: Plan) -> list[Mount]:
    os.mkdir(f"{root}/etc")
    found = []
    for name in trees.SETTINGS:
        source = f"/etc/{name}"
        if os.path.islink(source):
            os.symlink(os.readlink(source), root + source)
        elif os.path.isfile(source) and os.path.getsize(source) < house.WORTH_A_MOUNT:
            shutil.copyfile(source, root + source)
        elif os.path.exists(source):
            found.append(_bind(source, source))
    for name, text in house.FILES.items():
        with open(f"{root}/etc/{name}", "w") as file:
            file.write(text)
    house.write_trusted(root, plan, host="")
    os.symlink(PRELOADED, f"{root}/etc/ld.so.preload")  # leads nowhere, until it is needed
    for place in ("run", "root", "var/tmp", ROOTS_OWN.strip("/")):
        os.makedirs(f"{root}/{place}", exist_ok=True)
    return found


def _check(plan: Plan) -> None:
    for source, target, _ in plan.mounts:
        if not os.path.lexists(source):
            raise FileNotFoundError(f"mounting {source} on {target}: there is no {source}")


def _make_links(root: str, plan: Plan) -> None:
    for path, target in plan.links:
        place = root + path
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if not os.path.lexists(place):
            os.symlink(target, place)


def _covers(folder: str, plan: Plan) -> list[Mount]:
    """Over what is shown with the rest and is nobody's business: something is there, and empty."""
    nothing = os.path.join(folder, "nothing")
    os.close(os.open(nothing, os.O_CREAT | os.O_WRONLY, 0o000))
    found = []
    for path in plan.masked:
        source = _source_of(path, plan)
        if source is None or os.path.islink(source):
            continue
        if os.path.isdir(source):
            found.append(_memory(path, 4096, "0000", "ro"))
        elif os.path.exists(source):
            found.append(_bind(nothing, path))
    return found


def _source_of(path: str, plan: Plan) -> str | None:
    """Which file of the host is seen at a path of the sandbox; None: it is no file of the host."""
    seen = [(tree, tree) for tree in (*trees.SYSTEM, "/etc", *plan.shown)]
    seen += [(target, source) for source, target, _ in plan.mounts]
    above = [(target, source) for target, source in seen if trees.inside(path, [target])]
    if not above:
        return None
    target, source = max(above, key=lambda each: len(each[0]))
    return source + path[len(target) :]
