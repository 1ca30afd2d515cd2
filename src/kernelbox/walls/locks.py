"""Walls without namespaces: Landlock, seccomp, rlimits and, for root, a uid that nobody has.

For machines on which user namespaces are closed. The code sees the host's own paths and most of
them are locked, so less is hidden than in a house of its own: see :func:`leaks`. Its files are in a
folder that only it can use, and that goes with the family.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kernelbox.places import package_parent
from kernelbox.walls import callfilters, filelock, kernelcalls as calls, rlimits, seccomp, trees
from kernelbox.walls.bpf import Program
from kernelbox.walls.ownfolder import PARTS
from kernelbox.walls.plan import host_uid_for
from kernelbox.walls.profiles import Profile

_TRUNCATE_FROM = 3
"""The version of Landlock before which whatever can be read can be emptied."""

_DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))

# Of /proc names are listed, which Python and bash need of their own folders there; what is in a
# file there can be read of these alone, because command lines hold secrets.
_FACTS = tuple(
    f"/proc/{name}"
    for name in (
        *("cpuinfo", "meminfo", "stat", "loadavg", "uptime", "version", "filesystems"),
        *("sys/kernel/osrelease", "sys/kernel/ostype", "sys/kernel/version"),
        *("sys/kernel/pid_max", "sys/kernel/cap_last_cap", "sys/kernel/ngroups_max"),
        *("sys/vm/overcommit_memory", "sys/vm/max_map_count"),
    )
)
_NOBODY = 65534
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_ROOM = 4
"""Times the family's processes, where one limit counts all of a user: a bomb ends there, until the
warden, who counts the family's alone, has seen it."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Locks:
    """Everything that the stub needs to know; it travels to it as JSON."""

    folder: str
    readable: tuple[str, ...]
    limits: Mapping[str, int]
    uid: int | None
    """Who the code is on the host; None: the caller; 0, root, is refused."""

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> Locks:
        return cls(**{**values, "readable": tuple(values["readable"])})

    @property
    def own(self) -> list[str]:
        return [os.path.join(self.folder, part) for part in PARTS]


def locks_for(
    profile: Profile,
    *,
    folder: str,
    shown: Sequence[str],
    private: Iterable[str],
    uid: int | None,
) -> Locks:
    """What is locked around a family. ``shown``: the trees of the interpreter; ``private``: folders
    of ours that no sandbox may see."""
    limits = {"open_files": profile.open_files, "file_size": _file_size(profile)}
    if profile.processes is not None:
        # Of a uid that nobody else has, all processes are the family's.
        alone = profile.processes
        limits["processes"] = alone if is_alone(uid) else _tasks_of(uid) + _ROOM * alone
    return Locks(
        folder=folder,
        readable=tuple(readable(shown, private)),
        limits={name: value for name, value in limits.items() if value is not None},
        uid=uid,
    )


def uid_for(stub_pid: int) -> int | None:
    """Who the code is on the host: nobody else, if root can choose; nobody, where a container has
    few uids to choose from; the caller, if that is not root."""
    uid = host_uid_for(stub_pid)
    if uid is None or _is_mapped(uid):
        return uid
    return _NOBODY if _is_mapped(_NOBODY) else 0


def is_alone(uid: int | None) -> bool:
    """Whether all processes of that uid are one family's."""
    return uid is not None and uid > _NOBODY


def _is_mapped(uid: int) -> bool:
    with open("/proc/self/uid_map") as file:
        spans = [[int(word) for word in line.split()] for line in file]
    return any(first <= uid < first + count for first, _, count in spans)


def _tasks_of(uid: int | None) -> int:
    """How many processes and threads a user has now."""
    wanted, count = os.geteuid() if uid is None else uid, 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            facts = os.stat(f"/proc/{name}/task")
            count += facts.st_nlink - 2 if facts.st_uid == wanted else 0
    return count


def _file_size(profile: Profile) -> int | None:
    sizes = [size for size in (profile.file_size, profile.disk) if size is not None]
    return min(sizes, default=None)


def readable(shown: Sequence[str], private: Iterable[str]) -> list[str]:
    """All that is there to be read and run: the interpreter's trees and the system's, without what
    is private in them."""
    wanted = [*shown, *trees.SYSTEM, *(f"/etc/{name}" for name in trees.SETTINGS)]
    hidden = {*private, *trees.PRIVATE, *(os.path.join(tree, ".kernelbox") for tree in shown)}
    hidden |= {os.path.realpath(path) for path in hidden}
    found = [piece for tree in wanted for piece in _without(tree, hidden)]
    return list(dict.fromkeys(found))


def _without(tree: str, hidden: set[str]) -> list[str]:
    """Locks can only be opened, not closed again further down: so a tree with something to hide is
    opened piece by piece, and what comes to it later stays locked."""
    real = os.path.realpath(tree)
    if not os.path.exists(real) or trees.inside(real, list(hidden)):
        return []
    if not any(trees.inside(path, [real]) for path in hidden if os.path.lexists(path)):
        return [real]
    try:
        names = os.listdir(real)
    except OSError:
        return []
    # A link in it leads to a place that is locked by itself, or is open.
    paths = [path for name in names if not os.path.islink(path := os.path.join(real, name))]
    return [piece for path in paths for piece in _without(path, hidden)]


def pin() -> list[int]:
    """To be held open by the stub: the kernel forgets files of /proc that nobody uses, and a lock
    that was opened for one is not for the next of that name."""
    return [os.open(path, os.O_PATH | os.O_CLOEXEC) for path in _FACTS if os.path.exists(path)]


def enter(locks: Locks) -> None:
    """Lock ourselves in, for good, and all that we start. The order matters: who has become
    somebody else may forget nothing of what root was, and calls are filtered last, since the steps
    before need some that are forbidden then."""
    if os.geteuid() == 0 and not locks.uid:
        raise calls.StepFailed(
            1,
            "becoming an ordinary user: there is no other uid than root's here, and code behind "
            "walls is never root. Run KernelBox as an ordinary user",
        )
    if locks.uid is not None:
        _become(locks.uid)
    calls.drop_capabilities()
    calls.gain_no_privileges()
    # What this uid cannot read anyway needs no rule, and cannot have one.
    shown = [path for path in (*locks.readable, *_FACTS) if os.access(path, os.R_OK)]
    devices = [path for path in _DEVICES if os.path.exists(path)]
    filelock.enter(shown, [*locks.own, *devices], listed=["/proc"], scope=True, tcp=False)
    rlimits.apply(locks.limits)
    os.chdir(locks.own[0])
    seccomp.install(program())


def program() -> Program:
    return callfilters.allow_list(sockets=False, namespaces=False, signals=filelock.can_scope())


def _become(uid: int) -> None:
    calls.drop_bounding_set()  # while there is the right to do so
    try:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    except OSError as error:
        words = f"becoming an ordinary user ({uid}): {error.strerror}"
        raise calls.StepFailed(error.errno or 0, words) from None
    # Who becomes somebody else forgets both.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def prove(locks: Locks) -> None:
    """In a fork, which it is the end of: lock, and see that what is to be locked is, and that the
    interpreter is not."""
    enter(locks)
    for path in (sys.executable, os.__file__, __file__):
        try:
            with open(path, "rb") as file:
                file.read(1)
        except OSError as error:
            raise calls.StepFailed(error.errno or 0, _unreadable(path, locks, error)) from None
    with open(os.path.join(locks.own[0], ".proof"), "w"):
        pass
    os.unlink(os.path.join(locks.own[0], ".proof"))
    for attempt in (lambda: os.listdir("/"), lambda: open("/proc/self/status").close(), _connect):
        try:
            attempt()
        except PermissionError:
            continue
        raise calls.StepFailed(0, "Landlock or seccomp was accepted here, and is not obeyed")


def _connect() -> None:
    socket.socket(socket.AF_UNIX).close()


def _unreadable(path: str, locks: Locks, error: OSError) -> str:
    if locks.uid is None:
        return f"{path} cannot be read behind the locks: {error.strerror}"
    return (
        f"{path} cannot be read by an ordinary user, and code behind walls is never root. Use a "
        "Python that everybody can read (such as one in /usr), or run KernelBox as an ordinary user"
    )


def obstacle() -> str:
    """What of these locks this machine has not got, in words; empty if it has all."""
    if words := filelock.obstacle():
        return words
    if filelock.abi() < _TRUNCATE_FROM:
        return (
            f"Landlock has version {filelock.abi()} here, in which files that can be read can be "
            f"emptied, too; version {_TRUNCATE_FROM} comes with Linux 6.2"
        )
    return seccomp.obstacle()


def attempt() -> str:
    """Why no family can be locked in here; empty if one can. By trying, in a folder and a process
    that are thrown away."""
    from kernelbox.walls import ownfolder
    from kernelbox.walls.profiles import named

    if words := obstacle():
        return words
    uid = uid_for(os.getpid())
    try:
        folder, lock = ownfolder.make(uid)
    except OSError as error:
        return error.strerror or str(error)
    try:
        shown, _ = trees.of_interpreter(
            (sys.prefix, sys.base_prefix, sys.exec_prefix), sys.path, package_parent()
        )
        locks = locks_for(named("restrictive"), folder=folder, shown=shown, private=(), uid=uid)
        return proved(locks)
    finally:
        ownfolder.remove(folder)
        os.close(lock)


def proved(locks: Locks) -> str:
    """What went wrong with :func:`prove`, in words; empty: nothing."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            prove(locks)
            os.write(writer, b"+")
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the answer
            words = getattr(error, "strerror", None) or str(error) or repr(error)
            with contextlib.suppress(OSError):
                os.write(writer, words.encode()[:4000])
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        said = answer.read().decode(errors="replace")
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
    return "" if said == "+" else said or "the process that tried it ended without a word"


def leaks(*, disk: bool) -> list[str]:
    """What code can learn or do behind these locks that it could not in a house of its own."""
    found = [
        "stat: whether a path of the host exists, and the size, owner and times of what is there",
        "the list of processes: their numbers, owners, threads (not command lines or variables)",
        "the names of the host and of its kernel",
    ]
    if disk:
        found.append("disk: each file is bounded, the sandbox's folder as a whole is not")
    if not filelock.can_scope():
        found.append("code can signal nobody, not even its own children (Linux before 6.12)")
    return found
