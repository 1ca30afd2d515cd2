"""The sandbox of a family: ordered of the stub, watched as long as it stands, and taken down."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace

from kernelbox.errors import BoxError, Unsupported
from kernelbox.inside import linux
from kernelbox.installs.places import FamilyFolder
from kernelbox.reactor import Peer, Reactor
from kernelbox.walls.plan import Plan
from kernelbox.walls.profiles import Profile
from kernelbox.warden import walling
from kernelbox.warden.exits import count_oom_kills_by
from kernelbox.warden.hands import Hands
from kernelbox.warden.roster import Roster
from kernelbox.warden.walling import Walls, folder_for_packages
from kernelbox.wire import Frame

_LOOK_EVERY = 0.25


def prepare() -> None:
    """In the root, when nobody waits: all that a sandbox needs is imported by now, and what is the
    same for every one is found out."""
    walling.prepare()


class Sandbox:
    """Walls with the stub in them. Once they are ordered, they stand or the first member fails."""

    def __init__(
        self, frame: Frame, roster: Roster, *, reactor: Reactor, stub: Peer, stub_pid: int
    ) -> None:
        self._reactor = reactor
        self._stub = stub
        self._stub_pid = stub_pid
        self._roster = roster
        self.walls = Walls(Profile.from_wire(frame["profile"]), stub_pid, str(frame["kernel_id"]))
        self.packages: FamilyFolder | None = None
        """What is shown in it of the packages that the host installs."""
        self.hands: Hands | None = None
        self._deaf = False
        roster.shares_pids = self.walls.shares_pids
        roster.are_walls_up = self.walls.are_up
        roster.memory_in_words = self.walls.memory_in_words

    def order(self, frame: Frame, denied: Callable[..., None]) -> Frame:
        """Have the stub walk in. What is asked of the interpreter, which starts when the walls
        stand, waits in its socket until then. Returns the request, as it is behind walls;
        ``denied`` is told what the gate refuses."""
        walls, settings = self.walls, frame["settings"]
        sockets = os.path.dirname(os.path.dirname(str(frame["address"])))
        private = [str(settings["runtime_dir"]), sockets, *_home_of(settings, str(frame["cwd"]))]
        self._name_site(frame, denied)  # it can begin there, while we make its plan
        self.packages = None if self.is_locked else folder_for_packages(frame)
        plan, changed = walls.furnish(frame, private=private, packages=self.packages)
        if log := settings.get("audit_log"):
            from kernelbox.warden.auditing import check_out_of_reach

            check_out_of_reach(str(log), plan.mounts if isinstance(plan, Plan) else ())
        self._stub.send({"op": "plan", "plan": plan.to_wire()})
        return changed

    def _name_site(self, frame: Frame, denied: Callable[..., None]) -> None:
        """What the stub has to know before it makes a sandbox; all else is in the plan."""
        walls, profile = self.walls, self.walls.profile
        site = {
            "op": "site",
            "kernel_id": str(frame["kernel_id"]),
            "driver": profile.driver,
            "group": walls.group,
            "network": profile.network,
            "allow": profile.allow,
        }
        if profile.driver == "gvisor":
            self.hands = self._roster.hands = Hands(self._stub, self._reactor, self._end_deaf)
            site["folder"] = walls.folder_in(frame["settings"]["runtime_dir"])
        fds = walls.hear_denials(self._reactor, denied)
        fds += walls.secrets_for_gate(frame)
        self._stub.send(site, fds)
        for fd in fds:
            os.close(fd)

    def move_in(self, frame: Frame) -> Frame:
        """The walls stand already: they were made ahead, for whoever wants such ones."""
        wanted = Profile.from_wire(frame["profile"])
        if replace(self.walls.profile, name=wanted.name) != wanted:
            raise BoxError("these walls are others than those that are asked for")
        self.walls.profile = wanted
        return self.walls.furnish(frame, private=(), packages=self.packages)[1]

    @property
    def is_locked(self) -> bool:
        """Whether it is made of locks alone, since user namespaces are closed."""
        return self.walls.way.kind == "locks"

    def check_installs(self) -> None:
        if self.is_locked:
            raise Unsupported(
                "nothing can be installed into a sandbox where user namespaces are closed: there "
                "is no folder that it alone could see. Install it for its Python instead"
            )

    # -- its limits -------------------------------------------------------------------------

    def watch(self) -> None:
        """Hold the limits that nobody else does."""
        count_oom_kills_by(self.walls.oom_kills)
        if self.hands is not None:
            self.walls.watch(self._reactor, self.hands)
        elif self.walls.watched:
            self._reactor.call_later(_LOOK_EVERY, self._look)

    def _look(self) -> None:
        def inside() -> list[int]:
            return linux.descendants(self._stub_pid)

        if over := self.walls.over(inside):
            pid, why = over
            self._roster.blame(why, pid)
            linux.send_signal([pid], signal.SIGKILL)
        elif why := self.walls.too_many(inside):
            # With all that they have started; what is parked starts nothing, and stays.
            self._roster.blame(why)
            linux.kill_descendants(self._stub_pid, spare=self._roster.parked_pids())
        self._reactor.call_later(_LOOK_EVERY, self._look)

    def clear_out(self, pid: int) -> None:
        """End what the sessions of interpreters have left that are no members any more."""
        sessions = {pid, *self._roster.take_former()}
        self.walls.end_sessions(sessions, lambda: linux.descendants(self._stub_pid))

    # -- its end ----------------------------------------------------------------------------

    def end(self) -> None:
        """With pid 1 goes all that is inside, however much of it there is, at once."""
        linux.send_signal(linux.children(self._stub_pid), signal.SIGKILL)

    def why_all_ended(self) -> str | None:
        if self._deaf:
            return "the sandbox did not answer any more, and was ended"
        return self.walls.why_all_ended()

    def _end_deaf(self) -> None:
        """Nobody in it obeys any more."""
        self._deaf = True
        linux.kill_descendants(self._stub_pid)


def _home_of(settings: Frame, cwd: str) -> list[str]:
    """Our own folder, whole, so that it can be neither read nor moved away; of one that the caller
    works in, only what is ours."""
    registry = os.path.realpath(str(settings.get("registry_path") or ""))
    folder = os.path.dirname(registry)
    works_in_it = f"{os.path.realpath(cwd)}/".startswith(f"{folder}/")
    return [registry if works_in_it else folder]
