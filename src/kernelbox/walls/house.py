"""The root file system of a sandbox, built in a mount namespace of its own and moved into.

In the order of :func:`build`: first a place from which both worlds can be seen, then what is shown
of the old one, then what is the sandbox's own, and at last the door to the old one is closed.
"""

from __future__ import annotations

import errno
import os
import stat

from kernelbox.walls import kernelcalls as calls, trees
from kernelbox.walls.idmaps import IdMap
from kernelbox.walls.plan import HOME, INSIDE_UID, RAW_RESOLVER, TRUSTED, WORKSPACE, Plan

_BASE = "/tmp"
"""Any folder that is there: it is covered in our own namespace only."""
_OLD, _NEW, _LAYERS = "/old", "/new", "/layers"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
_CLOSED_PROC = (
    "acpi",
    "asound",
    "kcore",
    "keys",
    "latency_stats",
    "sched_debug",
    "scsi",
    "sysrq-trigger",
    "timer_list",
    "timer_stats",
)
_READ_ONLY_PROC = ("sys", "irq", "bus", "fs")
_OWN_MOUNT = calls.MS_NOSUID | calls.MS_NODEV
_SMALL = 16 << 20
_PER_FILE, _LEAST_FILES = 16 << 10, 2048
"""An empty file takes memory, too."""
WORTH_A_MOUNT = 1 << 18
"""A smaller file is copied sooner than it is mounted."""

FILES = {
    "passwd": (
        f"root:x:0:0:root:/root:/usr/sbin/nologin\n"
        f"sandbox:x:{INSIDE_UID}:{INSIDE_UID}:sandbox:{HOME}:/bin/bash\n"
        f"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    "group": f"root:x:0:\nsandbox:x:{INSIDE_UID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "resolv.conf": "",
}


def build(plan: Plan, ids: IdMap | None) -> None:
    """From here on ``/`` is the sandbox's: nothing leads back. ``ids`` lends it root's files."""
    _stand_between(plan)
    _make_own(plan)  # first: an interpreter, too, may live in /tmp
    for tree in plan.shown:
        _show(tree, ids)
        if plan.overlay:
            _lay_over(tree, plan)
    for tree in trees.SYSTEM:
        _show_system(tree, plan, ids)
    _make_etc(plan)
    for source, target, writable in plan.mounts:
        _mount_in(source, target, ids, writable=writable)
    for path, target in plan.links:
        _link(path, target)
    for path in plan.pinned:
        _pin(path)
    for path in plan.masked:
        _cover(path)
    for path in plan.sockets:
        _shut(path)
    _make_proc()
    _make_dev(plan)
    _close_door(read_only=not plan.overlay)


def _stand_between(plan: Plan) -> None:
    calls.mount("none", "/", flags=calls.MS_REC | calls.MS_PRIVATE)
    calls.mount("tmpfs", _BASE, "tmpfs", _OWN_MOUNT, f"mode=0755,size={_SMALL}")
    for folder in (_OLD, _NEW, _LAYERS):
        os.mkdir(_BASE + folder)
    calls.pivot_root(_BASE, _BASE + _OLD)
    os.chdir("/")
    _own(_NEW, _SMALL, "0755", plan if plan.overlay else None)
    if plan.overlay:
        _own(_LAYERS, plan.scratch, "0755", plan)


def _own(target: str, size: int, mode: str, plan: Plan | None) -> None:
    """Memory of the sandbox's own; with a plan, its code may write there."""
    options = f"mode={mode}"
    if size:
        options += f",size={size},nr_inodes={max(size // _PER_FILE, _LEAST_FILES)}"
    if plan is not None and plan.host_uid is not None:
        options += f",uid={plan.host_uid},gid={plan.host_uid}"
    calls.mount("tmpfs", target, "tmpfs", _OWN_MOUNT, options)


def _show(tree: str, ids: IdMap | None) -> None:
    """A tree of the host at its own place, to be read."""
    source, target = _OLD + tree, _NEW + tree
    _make_place(source, target)
    if ids is None or not ids.bind(source, target):
        calls.bind(source, target)
    calls.restrict(target, read_only=True)


def _lay_over(tree: str, plan: Plan) -> None:
    """What is written to a tree that is shown goes into a layer of the sandbox's own."""
    target = _NEW + tree
    if not os.path.isdir(target):
        return
    layer = f"{_LAYERS}/{len(os.listdir(_LAYERS))}"
    upper, work = f"{layer}/upper", f"{layer}/work"
    for folder in (layer, upper, work):
        os.mkdir(folder)
        if plan.host_uid is not None:
            os.chown(folder, plan.host_uid, plan.host_uid)
    options = f"lowerdir={target},upperdir={upper},workdir={work}"
    if plan.host_uid is None:
        options += ",userxattr"
    calls.mount("overlay", target, "overlay", _OWN_MOUNT, options)


def _show_system(tree: str, plan: Plan, ids: IdMap | None) -> None:
    source = _OLD + tree
    if os.path.islink(source):
        os.symlink(os.readlink(source), _NEW + tree)
    elif os.path.isdir(source):
        _show(tree, ids if plan.overlay else None)
        if plan.overlay:
            _lay_over(tree, plan)


def _make_etc(plan: Plan) -> None:
    os.makedirs(f"{_NEW}/etc", exist_ok=True)
    if plan.overlay and plan.host_uid is not None:
        os.chown(f"{_NEW}/etc", plan.host_uid, plan.host_uid)
    for name in trees.SETTINGS:
        source, target = f"{_OLD}/etc/{name}", f"{_NEW}/etc/{name}"
        if os.path.islink(source):
            os.symlink(os.readlink(source), target)
        elif os.path.isfile(source) and os.path.getsize(source) < WORTH_A_MOUNT:
            _write(target, _read(source))
        elif os.path.exists(source):
            _show(f"/etc/{name}", None)
    files = dict(FILES)
    if plan.network == "raw":
        files["resolv.conf"] = f"nameserver {RAW_RESOLVER}\n"
    for name, text in files.items():
        _write(f"{_NEW}/etc/{name}", text.encode())
    write_trusted(_NEW, plan, host=_OLD)


def write_trusted(root: str, plan: Plan, *, host: str) -> None:
    """Whom TLS trusts where there are secrets: those that the host trusts, and the gate."""
    authority, bundle = plan.trust
    if authority:
        os.makedirs(os.path.dirname(root + TRUSTED), exist_ok=True)
        with open(host + bundle, "rb") as there, open(root + TRUSTED, "wb") as here:
            here.write(there.read().rstrip() + b"\n" + authority.encode())


def _mount_in(source: str, target: str, ids: IdMap | None, *, writable: bool) -> None:
    real = _OLD + source  # which no link is a part of
    if not os.path.lexists(real):
        raise calls.StepFailed(2, f"mounting {source} on {target}: there is no {source}")
    _make_place(real, _NEW + target)
    if ids is None or not ids.bind(real, _NEW + target):
        calls.bind(real, _NEW + target)
    calls.restrict(_NEW + target, read_only=not writable)


def _link(path: str, target: str) -> None:
    place = _NEW + path
    os.makedirs(os.path.dirname(place), exist_ok=True)
    if not os.path.lexists(place):
        os.symlink(target, place)


def _make_own(plan: Plan) -> None:
    for folder, mode in ((WORKSPACE, "0755"), ("/tmp", "1777"), (HOME, "0700")):
        os.makedirs(_NEW + folder, exist_ok=True)
        _own(_NEW + folder, plan.scratch, mode, plan)
    for folder in ("/run", "/var/tmp", "/root"):
        os.makedirs(_NEW + folder, exist_ok=True)


def _make_proc() -> None:
    target = f"{_NEW}/proc"
    os.makedirs(target, exist_ok=True)
    flags = _OWN_MOUNT | calls.MS_NOEXEC
    calls.mount("proc", target, "proc", flags)
    for name in _CLOSED_PROC:
        _cover(f"/proc/{name}")
    for name in _READ_ONLY_PROC:
        path = f"{target}/{name}"
        if os.path.isdir(path):
            calls.bind(path, path)
            calls.restrict(path, read_only=True)


def _make_dev(plan: Plan) -> None:
    target = f"{_NEW}/dev"
    os.makedirs(target, exist_ok=True)
    calls.mount("tmpfs", target, "tmpfs", calls.MS_NOSUID, f"mode=0755,size={_SMALL}")
    for name in _DEVICES:
        source = f"{_OLD}/dev/{name}"
        if os.path.exists(source):
            _write(f"{target}/{name}", b"")
            calls.bind(source, f"{target}/{name}")
    for name, where in _LINKS.items():
        os.symlink(where, f"{target}/{name}")
    os.mkdir(f"{target}/shm")
    _own(f"{target}/shm", plan.scratch, "1777", plan)
    os.mkdir(f"{target}/pts")
    calls.mount("devpts", f"{target}/pts", "devpts", calls.MS_NOSUID, "newinstance,ptmxmode=0666")
    os.symlink("pts/ptmx", f"{target}/ptmx")
    flags = calls.MS_BIND | calls.MS_REMOUNT | calls.MS_RDONLY | calls.MS_NOSUID
    calls.mount("none", target, flags=flags)


def _cover(path: str) -> None:
    """Something is there, and it is empty."""
    target = _NEW + path
    kind = _kind(target)
    if stat.S_ISDIR(kind):
        options = "mode=0000,size=4096"
        calls.mount("tmpfs", target, "tmpfs", _OWN_MOUNT | calls.MS_RDONLY, options)
    elif kind and not stat.S_ISLNK(kind):
        calls.bind(f"{_OLD}/dev/null", target)


def _pin(path: str) -> None:
    """What something is mounted on can be neither moved nor removed. It is what it was, but for
    renaming into it and out of it, which is now from one mount to another."""
    target = _NEW + path
    if stat.S_ISDIR(_kind(target)):
        calls.bind(target, target)


def _shut(path: str) -> None:
    """A socket of the host is nobody's to connect to. It may be gone by now, or be something else,
    which is left as it is."""
    target = _NEW + path
    if stat.S_ISSOCK(_kind(target)):
        try:
            calls.bind(f"{_OLD}/dev/null", target)
        except calls.StepFailed:
            if stat.S_ISSOCK(_kind(target)):
                raise


def _kind(path: str) -> int:
    """What is there, by its mode; 0: nothing."""
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def _make_place(source: str, target: str) -> None:
    """For a mount: a folder for a folder, an empty file for a file."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.exists(target):
            _write(target, b"")


def _read(path: str) -> bytes:
    """A file that is smaller than :data:`WORTH_A_MOUNT`. (Here and below it is not ``open``, which
    takes five times as long: somebody waits.)"""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, WORTH_A_MOUNT)
    finally:
        os.close(file)


def _write(path: str, content: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        if os.write(file, content) != len(content):
            raise calls.StepFailed(errno.ENOSPC, f"writing {path}: there was no room for it")
    finally:
        os.close(file)


def _close_door(*, read_only: bool) -> None:
    os.mkdir(f"{_NEW}/.old")
    calls.pivot_root(_NEW, f"{_NEW}/.old")
    os.chdir("/")
    calls.unmount("/.old")
    os.rmdir("/.old")
    if read_only:
        flags = calls.MS_BIND | calls.MS_REMOUNT | calls.MS_RDONLY | _OWN_MOUNT
        calls.mount("none", "/", flags=flags)
