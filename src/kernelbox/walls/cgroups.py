"""Control groups: one limit on memory, CPU and processes for a whole family, kept by the kernel."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kernelbox.walls.hierarchies import TRIAL, Hierarchy, find
from kernelbox.walls.kernelfiles import read, tell

__all__ = ["Group", "GroupFailed", "Hierarchy", "Setting", "find", "settings", "sweep"]

_PREFIX = "kernelbox-"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")

# Short cells fit into one period whole: half a CPU is 50 ms at full speed, then a pause.
_PERIOD, _LEAST_QUOTA = 100_000, 1_000

_PATIENCE = 5.0  # seconds that kill() and remove() wait
_PAUSE = 0.002
_BATCH = 256  # open pidfds at a time


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
                tell(path, setting.value)
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
                tell(path, str(pid))
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
                tell(path, "0")
            except OSError as error:
                hint = "let the warden add() it"
                raise _failed("cannot join the control group", path, error, hint) from error

    def members(self) -> set[int]:
        """The pids in it, without those that have ended and wait to be reaped."""
        # In v1 a process can be in one of our folders only, if moving it was cut short.
        return {
            int(word)
            for folder in self._places()
            for word in read(f"{folder}/cgroup.procs").split()
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
        with self.no_more_forks():
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
            tell(f"{self._places()[0]}/cgroup.kill", "1")
        except OSError:  # a kernel before 5.14
            return False
        return True

    @contextlib.contextmanager
    def no_more_forks(self) -> Iterator[None]:
        """Nobody new in it: a loop that kills would else race with one that forks."""
        path = f"{self.folders['pids']}/pids.max" if "pids" in self.folders else ""
        before = read(path).strip() if path else ""
        if before:
            with contextlib.suppress(OSError):
                tell(path, "0")
        try:
            yield
        finally:
            if before:
                with contextlib.suppress(OSError):
                    tell(path, before)

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
        return read(f"{folder}/{file}") if folder else ""


def sweep(hierarchy: Hierarchy, is_alive: Callable[[str], bool]) -> list[str]:
    """Remove the groups of families that are gone, and empty; the names of those removed.

    ``is_alive`` is asked about every family below our group, those of other homes too: it must be
    true for each that may be in use, and from before its group is made.
    """
    names: set[str] = set()
    for parent in dict.fromkeys(hierarchy.parents.values()):
        for entry in _folders(parent):
            if entry.startswith(TRIAL) and not os.path.exists(
                f"/proc/{entry.removeprefix(TRIAL).partition('-')[0]}"
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


def _failed(what: str, path: str, error: OSError, hint: str) -> GroupFailed:
    return GroupFailed(what, path, os.strerror(error.errno or 0), hint)
