"""The walls of a family as its warden sees them: decided, ordered, limited, and taken down."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernelbox.errors import Unsupported
from kernelbox.inside import linux
from kernelbox.installs.places import FamilyFolder, cache_root
from kernelbox.places import package_parent, served_homes
from kernelbox.reactor import Reactor
from kernelbox.walls import callfilters, cgroups, gate, seccomp, trees, ways
from kernelbox.walls.drivers import cannot_enforce
from kernelbox.walls.packages import shown_in
from kernelbox.walls.plan import GATE_PORT, HOME, Plan, host_uid_for, plan_for
from kernelbox.walls.profiles import Profile
from kernelbox.walls.surroundings import environment_for
from kernelbox.warden import gvisor_watch
from kernelbox.warden.hands import Hands
from kernelbox.wire import READ_SIZE, Frame

if TYPE_CHECKING:
    from kernelbox.walls.locks import Locks
    from kernelbox.warden.locking import LockedIn
    from kernelbox.warden.strongbox import Strongbox

_LONGEST_BACKLOG = 1 << 18
_PATIENCE = 2.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@functools.cache
def _hierarchy() -> cgroups.Hierarchy | str:
    """Found once, in the root: all that are forked from it are where it is."""
    return cgroups.find()


@functools.cache
def _trees() -> tuple[tuple[str, ...], tuple[str, ...]]:
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix)
    shown, notes = trees.of_interpreter(prefixes, sys.path, package_parent())
    return tuple(shown), tuple(notes)


@functools.cache
def _sockets_in_trees() -> tuple[str, ...]:
    """Of the host: looked for here, so that nobody waits for it who is shown no folder."""
    from kernelbox.walls import hostsockets

    seen = [(tree, tree) for tree in (*_trees()[0], *trees.SYSTEM)]
    return hostsockets.find(seen).places


def prepare() -> None:
    """In the root, when nobody waits: what is the same for every sandbox."""
    from kernelbox.walls import profilechecks  # noqa: F401 - and not in every fork

    _hierarchy()
    _trees()
    _sockets_in_trees()
    if not seccomp.obstacle():
        for program in (callfilters.deny_list(), callfilters.allow_list(sockets=True)):
            assert program.packed  # now, and not in every sandbox


class Walls:
    """One profile around one family."""

    def __init__(self, profile: Profile, stub_pid: int, kernel_id: str) -> None:
        self.way = ways.known()
        if words := cannot_enforce(profile) or ways.cannot_offer(profile, self.way):
            raise Unsupported(f"the profile {profile.name!r} cannot be had here: {words}")
        self.profile = profile
        self.notes: list[str] = []
        """For the record: what limits it, and what is not shown of the host."""
        self._stub_pid = stub_pid
        self._strongbox: Strongbox | None = None
        self._kernel_id = kernel_id
        self._folder: str | None = None
        self._group = self._limit(kernel_id)
        self._locked: LockedIn | None = None

    def furnish(
        self, frame: Frame, *, private: Sequence[str], packages: FamilyFolder | None
    ) -> tuple[Plan | Locks, Frame]:
        """The plan for the stub, and the request with what is different behind walls: the folder
        and the environment. ``private``: folders of ours that no sandbox may see; ``packages``: the
        one that it shall see, to be filled later."""
        shown, unseen = _trees()
        if self.way.kind == "locks":
            return self._lock_in(frame, shown=shown, unseen=unseen, private=private)
        cwd = str(frame["cwd"])
        if self.profile.cwd != "none" or self.profile.home != "none" or self.profile.mounts:
            private = [*private, *other_homes(served_homes(), cwd)]
        plan, notes = plan_for(
            self.profile,
            shown=shown,
            cwd=cwd,
            private=private,
            host_uid=host_uid_for(self._stub_pid),
            sockets=_sockets_in_trees() if self.profile.root == "readonly" else (),
        )
        if packages is not None:
            plan = shown_in(plan, packages.path, hidden=packages.root)
        binaries = os.path.join(sys.prefix, "bin")
        environ = environment_for(
            self.profile,
            frame["environ"],
            home=HOME,
            path=f"{binaries}:{_PATH}",
            given=frame.get("given_environ"),
        )
        if self.profile.network == "on":
            environ = {**environ, **gate.environment(f"http://127.0.0.1:{GATE_PORT}")}
            environ.pop("ALL_PROXY", None)
            environ.pop("all_proxy", None)
        if self.profile.secrets:
            from kernelbox.warden.strongbox import check_unseen

            assert self._strongbox is not None
            check_unseen(self.profile.secrets, plan)
            environ = self._strongbox.environment(environ)
            plan = replace(plan, trust=self._strongbox.trust)
        self.notes = list(dict.fromkeys([*self.notes, *unseen, *notes]))
        return plan, self._changed(frame, plan.cwd, environ)

    def _changed(self, frame: Frame, cwd: str, environ: dict[str, str]) -> Frame:
        changed = {
            "cwd": cwd,
            "environ": environ,
            "given_environ": None,
            "secrets": None,
            "profile_name": self.profile.name,
            "soft_memory": self.profile.soft_memory,
            "notes": [*(frame.get("notes") or ()), *self.notes],
        }
        return {**frame, **changed}

    def _lock_in(
        self, frame: Frame, *, shown: Sequence[str], unseen: Sequence[str], private: Sequence[str]
    ) -> tuple[Locks, Frame]:
        """The same where user namespaces are closed."""
        from kernelbox.warden.locking import LockedIn

        locked = self._locked = LockedIn(self.profile, self._stub_pid)
        plan = locked.plan(shown=shown, private=private)
        environ = locked.environ(frame, path=f"{os.path.join(sys.prefix, 'bin')}:{_PATH}")
        self.notes += [*unseen, *locked.notes(self.way.why)]
        return plan, self._changed(frame, plan.own[0], environ)

    def folder_in(self, runtime: str) -> str:
        """Where a driver that builds in files may do so; it goes with the sandbox."""
        self._folder = os.path.join(runtime, f"walls-{self._kernel_id}")
        return self._folder

    def hear_denials(self, reactor: Reactor, denied: Callable[[str, Frame], None]) -> list[int]:
        """The end of a pipe, for the gate to tell of what it refused; none if there is no gate."""
        if self.profile.network != "on":
            return []
        self._denials, far = os.pipe()
        os.set_blocking(self._denials, False)
        unread = b""

        def read() -> None:
            nonlocal unread
            try:
                data = os.read(self._denials, READ_SIZE)
            except BlockingIOError:
                return
            if not data:
                reactor.forget(self._denials)
                return
            *lines, unread = (unread + data)[-_LONGEST_BACKLOG:].split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    said = json.loads(line)
                    where = f"{said['host']}:{said['port']}" if said["port"] else "a request"
                    denied(f"the network of the sandbox refused {where}: {said['reason']}", said)

        reactor.watch(self._denials, read)
        return [far]

    def secrets_for_gate(self, frame: Frame) -> list[int]:
        """A descriptor by which the gate, and nobody else, gets to know them; none if there are
        none."""
        if not self.profile.secrets:
            return []
        from kernelbox.warden.strongbox import Strongbox

        values, caller = frame.get("secrets") or {}, frame["environ"]
        self._strongbox = Strongbox(self.profile.secrets, values, caller)
        return [self._strongbox.hand_over()]

    def watch(self, reactor: Reactor, hands: Hands) -> None:
        """In gVisor: hold the limit that Linux cannot hold for each process in it."""
        gvisor_watch.Watch(reactor, hands, self.profile, self._group)

    def are_up(self) -> str:
        """In gVisor, until an interpreter is there, only code of ours has run, and its share of the
        processor would have kept its caller waiting: it is limited now. If that fails: why."""
        if self._group is not None and self.profile.cpus is not None:
            try:
                self._group.limit(cpus=self.profile.cpus)
            except cgroups.GroupFailed as failure:
                return str(failure)
        return ""

    def why_all_ended(self) -> str | None:
        """In words, if a limit of the whole sandbox has ended it."""
        if self._group is None or self.profile.driver != "gvisor":
            return None
        facts = self._group.facts()
        allows = f"its profile {self.profile.name!r} allows"
        if facts["oom_kills"]:
            return f"out of memory: {allows} {(self.profile.memory or 0) >> 20:,} MiB"
        if facts["processes_refused"]:
            return f"too many processes: {allows} {self.profile.processes}"
        return None

    def end_sessions(self, sessions: set[int], inside: Callable[[], Iterable[int]]) -> None:
        """From outside, where no share of the processor is the sandbox's, and while nobody in it
        can fork."""
        sessions.discard(0)
        with contextlib.nullcontext() if self._group is None else self._group.no_more_forks():
            linux.kill_sessions(sessions, inside, patience=_PATIENCE)

    def oom_kills(self) -> int:
        return self._group.oom_kills() if self._group is not None else 0

    def memory_in_words(self) -> str:
        """For who was killed for want of it: the most there was, and what is allowed."""
        if self._group is None or self.profile.memory is None:
            return ""
        allows = f"its profile {self.profile.name!r} allows {self.profile.memory >> 20:,} MiB"
        peak = self._group.peak()  # not told before Linux 5.19
        return allows if peak is None else f"the sandbox had {peak >> 20:,} MiB, and {allows}"

    def facts(self) -> dict[str, Any]:
        """For ``status``."""
        facts: dict[str, Any] = {"profile": self.profile.to_wire(), "way": self.way.kind}
        if self._locked is not None:
            facts |= {"leaks": self._locked.leaks(), "why": self.way.why}
        if self._group is not None:
            facts |= {"limited_by": self._group.describe(), **self._group.facts()}
        return facts

    def take_down(self) -> None:
        """When all processes of the family have ended."""
        if self._group is not None:
            with contextlib.suppress(cgroups.GroupFailed, OSError):
                self._group.kill()
                self._group.remove()
            self._group = None
        if self._locked is not None:
            self._locked.remove()

        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def shares_pids(self) -> bool:
        """Whether a process has the same number inside and outside."""
        return self.way.kind == "locks"

    @property
    def group(self) -> Frame | None:
        """For the stub, which joins it by itself: to move another process takes 8 ms."""
        if self._group is None:
            return None
        hierarchy = self._group.hierarchy
        return {"version": hierarchy.version, "parents": dict(hierarchy.parents)}

    def over(self, members: Callable[[], Iterable[int]]) -> tuple[int, str] | None:
        """Where nobody else counts: the member to end because the family has too much memory, and
        why."""
        limit = self.profile.memory
        if self._group is not None or limit is None:
            return None
        from kernelbox.walls.watcher import Watcher

        found = Watcher(members, limit).over()
        if found is None:
            return None
        pid, size = found
        return pid, (
            f"out of memory: the sandbox used {size >> 20:,} MiB, and its profile "
            f"{self.profile.name!r} allows {limit >> 20:,} MiB"
        )

    def too_many(self, members: Callable[[], Iterable[int]]) -> str:
        """Where no limit of the kernel's is for the family alone: why all of it has to end, because
        it has too many processes; empty if it has not."""
        limit = self.profile.processes
        if self._group is not None or limit is None or self._locked is None or self._locked.alone:
            return ""
        from kernelbox.walls.watcher import Watcher

        found = Watcher(members, 0).processes_over(limit)
        if found is None:
            return ""
        return (
            f"too many processes: the sandbox had {found:,} with their threads, and its profile "
            f"{self.profile.name!r} allows {limit:,}"
        )

    @property
    def watched(self) -> bool:
        """Whether somebody has to look at it now and then."""
        return self._group is None and (
            self.profile.memory is not None or self.profile.processes is not None
        )

    def _limit(self, kernel_id: str) -> cgroups.Group | None:
        """A control group if there can be one. If not, the record says what counts instead."""
        profile = self.profile
        if profile.memory is None and profile.cpus is None and profile.processes is None:
            return None
        hierarchy = _hierarchy()
        if isinstance(hierarchy, str):
            self._note_makeshift(hierarchy)
            return None
        memory, processes, cpus = profile.memory, profile.processes, profile.cpus
        if profile.driver == "gvisor":
            memory, processes = gvisor_watch.host_limits(profile)
            cpus = None  # see are_up()
        try:
            group = cgroups.Group.create(
                hierarchy,
                kernel_id,
                memory=memory,
                cpus=cpus,
                processes=processes,
            )
        except cgroups.GroupFailed as failure:
            raise Unsupported(f"the limits of {profile.name!r} cannot be had: {failure}") from None
        self.notes.append(f"limits: {group.describe()}")
        return group

    def _note_makeshift(self, why: str) -> None:
        parts = []
        if self.profile.memory is not None:
            often = "up to twenty" if self.profile.driver == "gvisor" else "four"
            parts.append(f"memory is looked at {often} times a second")
        if self.profile.processes is not None:
            parts.append(
                "processes are counted four times a second"
                if self.way.kind == "locks" and os.geteuid() != 0
                else "processes by rlimit"
            )
        if self.profile.cpus is not None:
            parts.append("the share of the processor is not limited")
        self.notes.append(f"limits without a control group: {', '.join(parts)} ({why})")


def other_homes(homes: Iterable[tuple[str, str]], cwd: str) -> list[str]:
    """What is hidden of homes that the sandbox's own keeper may not know of: each whole, if it has
    a folder to itself; of one that the caller works in, only what is ours."""
    found: list[str] = []
    here = os.path.realpath(cwd)
    for registry, runtime in homes:
        folder = os.path.dirname(runtime)
        if os.path.dirname(registry) == folder and not trees.inside(here, [folder]):
            found.append(folder)
        else:
            ours = (path for path in (registry, runtime) if path)
            found += [path for path in ours if not trees.inside(here, [path])]
    return found


def folder_for_packages(frame: Frame) -> FamilyFolder | None:
    """What the host fills when something is installed. A sandbox without one can do all else."""
    settings = frame["settings"]
    if settings.get("install") == "off":
        return None
    root = cache_root(str(settings.get("install_cache") or ""), frame["environ"])
    try:
        return FamilyFolder(root, str(frame["kernel_id"]))
    except OSError:
        return None  # said when somebody wants to install
