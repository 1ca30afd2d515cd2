"""Control groups: one limit on memory, CPU and processes for a whole family, kept by the kernel;
and, where there are none, a look at how much a family has."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

CONTROLLERS = ("memory", "cpu", "pids")

_PREFIX, _TRIAL = "kernelbox-", "kernelbox.trial-"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")

# Short cells fit into one period whole: half a CPU is 50 ms at full speed, then a pause.
_PERIOD, _LEAST_QUOTA = 100_000, 1_000

_PATIENCE = 5.0  # seconds that kill() and remove() wait
_PAUSE = 0.002
_BATCH = 256  # open pidfds at a time

# A group that cannot be used has none of these, or does not let us write them.
_KNOBS = {
    1: {"memory": "memory.limit_in_bytes", "cpu": "cpu.cfs_quota_us", "pids": "pids.max"},
    2: {"memory": "memory.max", "cpu": "cpu.max", "pids": "pids.max"},
}


class GroupFailed(Exception):
    """Raised when a group cannot be made, limited, joined or removed; the message says what to do.

    ``path`` is the file or folder, ``cause`` what the kernel said.
    """

    def __init__(self, what: str, path: str, cause: str, hint: str) -> None:
        super().__init__(f"{what}: {path}: {cause}; {hint}")
        self.path = path
        self.cause = cause
        self.hint = hint


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
    groups = parse_groups(_read(f"{process}/cgroup"))
    mounts = parse_mounts(_read(f"{process}/mountinfo"))
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
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        root, point = (_unescape(word) for word in before.split(" ")[3:5])
        controllers = frozenset(options.split(",")) if kind == "cgroup" else frozenset[str]()
        found.append(Mount(1 if kind == "cgroup" else 2, root, point, controllers))
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
    held = _read(f"{folder}/cgroup.controllers").split()
    missing = [kind for kind in controllers if kind not in held]
    if missing:
        return f"{folder} has no {', '.join(missing)} (it has: {', '.join(held) or 'nothing'})"
    switch = f"{folder}/cgroup.subtree_control"
    if not set(controllers) <= set(_read(switch).split()):
        try:
            _write(switch, " ".join(f"+{kind}" for kind in controllers))
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
    trial = f"{folder}/{_TRIAL}{os.getpid()}-{time.monotonic_ns()}"
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


@dataclass(frozen=True)
class Setting:
    """One line to write; ``optional`` where a kernel may not have the file, and needs it not."""

    controller: str
    file: str
    value: str
    optional: bool = False


def settings(
    version: int, *, memory: int | None, cpus: float | None, processes: int | None
) -> list[Setting]:
    """What to write for these limits, in the order in which the kernel takes it."""
    wanted: list[Setting] = []
    quota = None if cpus is None else max(_LEAST_QUOTA, round(cpus * _PERIOD))
    if memory is not None and version == 1:
        # Memory and swap together (memsw) may not be less than memory alone: it comes second.
        wanted += [
            Setting("memory", "memory.limit_in_bytes", str(memory)),
            Setting("memory", "memory.memsw.limit_in_bytes", str(memory), optional=True),
            Setting("memory", "memory.swappiness", "0", optional=True),
        ]
    elif memory is not None:
        wanted += [
            Setting("memory", "memory.max", str(memory)),
            Setting("memory", "memory.swap.max", "0", optional=True),
        ]
    if quota is not None and version == 1:
        wanted += [
            Setting("cpu", "cpu.cfs_period_us", str(_PERIOD)),
            Setting("cpu", "cpu.cfs_quota_us", str(quota)),
        ]
    elif quota is not None:
        wanted.append(Setting("cpu", "cpu.max", f"{quota} {_PERIOD}"))
    if processes is not None:
        wanted.append(Setting("pids", "pids.max", str(processes)))
    return wanted


class Group:
    """One family's control group. Whoever is in it has its children in it as well."""

    def __init__(self, hierarchy: Hierarchy, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot name a control group: use letters, digits, - and _")
        self.hierarchy = hierarchy
        self.name = name
        self.folders = hierarchy.folders(_PREFIX + name)

    @classmethod
    def create(
        cls,
        hierarchy: Hierarchy,
        name: str,
        *,
        memory: int | None,
        cpus: float | None,
        processes: int | None,
    ) -> Group:
        """A new group with all of these limits, or none at all. None: no limit, for now."""
        group = cls(hierarchy, name)
        made: list[str] = []
        try:
            for folder in group._places():
                try:
                    os.mkdir(folder)
                except OSError as error:
                    hint = "remove it, or choose another name"
                    if error.errno != errno.EEXIST:
                        hint = "use find() again: what we may do here has changed"
                    raise _failed("cannot make the control group", folder, error, hint) from error
                made.append(folder)
            group.limit(memory=memory, cpus=cpus, processes=processes)
        except BaseException:
            for folder in made:
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
            raise
        return group

    def limit(
        self,
        *,
        memory: int | None = None,
        cpus: float | None = None,
        processes: int | None = None,
    ) -> None:
        """Set limits on a group that has none: a spare is in its group before its profile is known,
        because moving a process takes the kernel milliseconds, and a limit takes none."""
        for setting in settings(
            self.hierarchy.version, memory=memory, cpus=cpus, processes=processes
        ):
            path = f"{self.folders[setting.controller]}/{setting.file}"
            try:
                _write(path, setting.value)
            except OSError as error:
                if setting.optional and error.errno == errno.ENOENT:
                    continue
                parent = self.hierarchy.parents[setting.controller]
                raise _failed(
                    f"cannot limit {setting.controller} to {setting.value}",
                    path,
                    error,
                    f"ask for no more than the group above it has ({parent}), or for no limit",
                ) from error

    def add(self, pid: int) -> None:
        """Move a process, with all its threads, into the group; its children stay where they are.

        What it has in memory stays charged to the group that it comes from. Mind the milliseconds
        that it takes: see :meth:`join`.
        """
        for folder in self._places():
            path = f"{folder}/cgroup.procs"
            try:
                _write(path, str(pid))
            except OSError as error:
                hint = "it may have ended, belong to another user, or live in a foreign group"
                raise _failed(f"cannot move process {pid}", path, error, hint) from error

    def join(self) -> None:
        """Move the calling process into the group: as :meth:`add`, but in v1 without the wait.

        To move another process the kernel stops all forks of the machine, and waits (8 ms, at times
        20) until it is sure of that; for a single thread that moves itself it need not.
        """
        alone = len(os.listdir("/proc/self/task")) == 1
        if self.hierarchy.version != 1 or not alone:
            self.add(os.getpid())
            return
        for folder in self._places():
            path = f"{folder}/tasks"
            try:
                _write(path, "0")
            except OSError as error:
                hint = "let the warden add() it"
                raise _failed("cannot join the control group", path, error, hint) from error

    def members(self) -> set[int]:
        """The pids in it, without those that have ended and wait to be reaped."""
        # In v1 a process can be in one of our folders only, if moving it was cut short.
        return {
            int(word)
            for folder in self._places()
            for word in _read(f"{folder}/cgroup.procs").split()
            if word != "0"  # not in our pid namespace
        }

    def facts(self) -> dict[str, int | float | None]:
        """Figures for results and records; None: this kernel does not say."""
        if self.hierarchy.version == 1:
            memory = self._number("memory", "memory.usage_in_bytes")
            stolen = self._line("cpu", "cpu.stat", "throttled_time")
            throttled = None if stolen is None else stolen / 1e9
        else:
            memory = self._number("memory", "memory.current")
            stolen = self._line("cpu", "cpu.stat", "throttled_usec")
            throttled = None if stolen is None else stolen / 1e6
        return {
            "memory": memory,
            "memory_peak": self.peak(),
            "oom_kills": self._oom_kills(),
            "throttled_seconds": throttled,
            "processes": self._number("pids", "pids.current"),
            "processes_refused": self._line("pids", "pids.events", "max"),
        }

    def in_use(self) -> int:
        """Bytes that cannot be dropped: anonymous and shared memory, without the cache of files."""
        anonymous = "rss" if self.hierarchy.version == 1 else "anon"
        lines = (self._line("memory", "memory.stat", key) for key in (anonymous, "shmem"))
        return sum(size or 0 for size in lines)

    def oom_kills(self) -> int:
        """How many processes were killed for want of memory (0 where the kernel does not say)."""
        return self._oom_kills() or 0

    def peak(self) -> int | None:
        """The most memory it ever had, in bytes, file cache included."""
        if self.hierarchy.version == 1:
            return self._number("memory", "memory.max_usage_in_bytes")
        return self._number("memory", "memory.peak")

    def describe(self) -> str:
        return self.hierarchy.describe()

    def kill(self, *, patience: float = _PATIENCE) -> bool:
        """Kill everybody in it, those who fork meanwhile too; whether nobody is left."""
        deadline = time.monotonic() + patience
        if self.hierarchy.version == 2 and self._kill_at_once():
            return self._wait_until_empty(deadline)
        with self._no_more_forks():
            while members := self.members() - {os.getpid()}:
                self._kill_each(sorted(members)[:_BATCH])
                if time.monotonic() > deadline:
                    return False
                time.sleep(_PAUSE)
        return not self.members()

    def remove(self, *, patience: float = _PATIENCE) -> None:
        """Remove it once it is empty; that it is gone already is fine."""
        deadline = time.monotonic() + patience
        # Not before it is empty in all of its folders: half a group would limit half a family.
        if not self._wait_until_empty(deadline):
            left = ", ".join(map(str, sorted(self.members())))
            raise GroupFailed(
                "cannot remove the control group",
                self._places()[0],
                f"still in it: {left}",
                "kill() it first",
            )
        for folder in self._places():
            # The kernel can be a moment behind with those who have just ended.
            while not _remove_folder(folder, hopeless=time.monotonic() > deadline):
                time.sleep(_PAUSE)

    def _places(self) -> list[str]:
        """Its folders, each once: in v2, or where v1 mounts controllers together, they coincide."""
        return list(dict.fromkeys(self.folders.values()))

    def _kill_at_once(self) -> bool:
        try:
            _write(f"{self._places()[0]}/cgroup.kill", "1")
        except OSError:  # a kernel before 5.14
            return False
        return True

    @contextlib.contextmanager
    def _no_more_forks(self) -> Iterator[None]:
        """Nobody new in it: a loop that kills would else race with one that forks."""
        path = f"{self.folders['pids']}/pids.max" if "pids" in self.folders else ""
        before = _read(path).strip() if path else ""
        if before:
            with contextlib.suppress(OSError):
                _write(path, "0")
        try:
            yield
        finally:
            if before:
                with contextlib.suppress(OSError):
                    _write(path, before)

    def _kill_each(self, pids: Iterable[int]) -> None:
        """Kill these, if they are members, and nobody who got the pid of one that has ended."""
        held: dict[int, int] = {}
        try:
            for pid in pids:
                with contextlib.suppress(OSError):
                    held[pid] = os.pidfd_open(pid)
            # Only after its pidfd is ours does being a member say something about that process.
            for pid in self.members() & held.keys():
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(held[pid], signal.SIGKILL)
        finally:
            for fd in held.values():
                os.close(fd)

    def _wait_until_empty(self, deadline: float) -> bool:
        while self.members():
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE)
        return True

    def _oom_kills(self) -> int | None:
        file = "memory.oom_control" if self.hierarchy.version == 1 else "memory.events"
        return self._line("memory", file, "oom_kill")

    def _number(self, controller: str, file: str) -> int | None:
        text = self._text(controller, file).strip()
        return int(text) if text.isdigit() else None

    def _line(self, controller: str, file: str, key: str) -> int | None:
        for line in self._text(controller, file).splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
        return None

    def _text(self, controller: str, file: str) -> str:
        folder = self.folders.get(controller)
        return _read(f"{folder}/{file}") if folder else ""


def sweep(hierarchy: Hierarchy, is_alive: Callable[[str], bool]) -> list[str]:
    """Remove the groups of families that are gone, and empty; the names of those removed.

    ``is_alive`` is asked about every family below our group, those of other homes too: it must be
    true for each that may be in use, and from before its group is made.
    """
    names: set[str] = set()
    for parent in dict.fromkeys(hierarchy.parents.values()):
        for entry in _folders(parent):
            if entry.startswith(_TRIAL) and not os.path.exists(
                f"/proc/{entry.removeprefix(_TRIAL).partition('-')[0]}"
            ):
                with contextlib.suppress(OSError):
                    os.rmdir(f"{parent}/{entry}")
            elif entry.startswith(_PREFIX) and _NAME.fullmatch(entry.removeprefix(_PREFIX)):
                names.add(entry.removeprefix(_PREFIX))
    swept = []
    for name in sorted(names):
        if is_alive(name):
            continue
        group = Group(hierarchy, name)
        if not group.members():
            with contextlib.suppress(GroupFailed):
                group.remove(patience=0)
                swept.append(name)
    return swept


class Watcher:
    """Looks at a family's memory and processes where no control group counts them.

    It only looks, when asked; between two looks a family can be over any limit.
    """

    def __init__(self, pids: Callable[[], Iterable[int]], memory: int) -> None:
        self._pids = pids
        self._memory = memory

    def over(self) -> tuple[int, int] | None:
        """When the family has more than its memory: the member with most, and what *all* have.

        Counted is what cannot be dropped: anonymous memory, that which is shared included
        (``mmap.mmap(-1, …)``), swapped out or not. Pages that members share copy-on-write count
        once, where we may look closely; elsewhere once for each.
        """
        pids = list(self._pids())
        # Pages counted once per member: too much, but cheap, and mostly not too much even so.
        held = {pid: _resident(pid) for pid in pids}
        if sum(held.values()) <= self._memory:
            return None
        for pid in pids:
            share = _share(pid)
            held[pid] = held[pid] if share is None else share
        total = sum(held.values())
        if total <= self._memory:
            return None
        return max(held, key=lambda pid: held[pid]), total

    def processes_over(self, limit: int) -> int | None:
        """How many there are, when more than ``limit``; threads too, as pids.max counts them."""
        total = 0
        for pid in self._pids():
            total += _kilobytes(_read(f"/proc/{pid}/status")).get("Threads", 0)
        return total if total > limit else None


def _resident(pid: int) -> int:
    sizes = _kilobytes(_read(f"/proc/{pid}/status"))
    return sum(sizes.get(name, 0) for name in ("RssAnon", "RssShmem", "VmSwap")) << 10


def _share(pid: int) -> int | None:
    """Its share of the pages it has: a page of four processes is a quarter. None: we may not look,
    or the kernel (< 5.3) does not tell memory from file cache."""
    sizes = _kilobytes(_read(f"/proc/{pid}/smaps_rollup"))
    if "Pss_Anon" not in sizes:
        return None
    return sum(sizes.get(name, 0) for name in ("Pss_Anon", "Pss_Shmem", "SwapPss")) << 10


def _kilobytes(text: str) -> dict[str, int]:
    """The lines ``Name: number`` of a file in /proc, most of them in kB."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0])
    return found


def _remove_folder(folder: str, *, hopeless: bool) -> bool:
    """Whether it is gone now; ``hopeless``: do not come again."""
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno == errno.EBUSY and not hopeless:
            return False
        hint = "there is a group in it, or somebody who cannot be killed; remove it by hand"
        raise _failed("cannot remove the control group", folder, error, hint) from error
    return True


def _folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _read(path: str) -> str:
    """A small file of the kernel's; empty when it is not there, or not for us."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def _write(path: str, value: str) -> None:
    # Not open(): that would make the file where the kernel has none, were this not its file system.
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _unescape(word: str) -> str:
    """mountinfo writes a space as \\040."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)


def _failed(what: str, path: str, error: OSError, hint: str) -> GroupFailed:
    return GroupFailed(what, path, os.strerror(error.errno or 0), hint)
