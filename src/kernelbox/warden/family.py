"""A family of our own kernels: a spare that becomes the first, and branches forked from it."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kernelbox.errors import BoxError, Unsupported
from kernelbox.inside import linux
from kernelbox.inside.channel import Channel
from kernelbox.inside.stub import FIRST
from kernelbox.reactor import Timer
from kernelbox.warden.bash_member import BashMember
from kernelbox.warden.branching import Branching
from kernelbox.warden.connection import Ports, open_ports
from kernelbox.warden.exits import Exit, count_oom_kills_by, oom_kills
from kernelbox.warden.hands import Hands
from kernelbox.warden.household import CopyAnswer, Door, Reply, Warden
from kernelbox.warden.kernel import Kernel
from kernelbox.warden.lanes import jupyter
from kernelbox.warden.member import Member, MemberOwner
from kernelbox.warden.parked import Parked
from kernelbox.warden.python_member import PythonMember
from kernelbox.warden.reservation import Reservation, reserve
from kernelbox.wire import Frame

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernelbox.installs.places import FamilyFolder
    from kernelbox.walls.profiles import Profile
    from kernelbox.warden.installing import InstallDesk
    from kernelbox.warden.walling import Walls

_PORT_PATIENCE = 5.0
_LOOK_EVERY = 0.25


class Family(Warden):
    """The warden's whole world: interpreters, all descended from one clean fork of the root."""

    def __init__(
        self,
        request: socket.socket,
        control: socket.socket,
        stub_pid: int,
        channel: Channel,
        *,
        notes: Sequence[str] = (),
    ) -> None:
        """``channel`` leads to the interpreter that the stub starts without being told; ``notes``
        is what every kernel of this root has to say."""
        super().__init__(request, control, stub_pid)
        self.notes = notes
        self._members: dict[int, PythonMember | Parked] = {}
        self._shells: dict[int, BashMember] = {}
        self._starting: dict[int, PythonMember | BashMember] = {}
        self._tags = FIRST
        self._reservation: Reservation | None = None
        self.walls: Walls | None = None
        self._packages: FamilyFolder | None = None
        self._installs: InstallDesk | None = None
        self._host_environ: Mapping[str, str] = {}
        self._deaf = False
        self.spare_time: Callable[[], object] = lambda: None
        """What to do while nobody waits for us: a spare is made, or walls are built."""
        self.spare: PythonMember | None = PythonMember(self.reactor, _Nobody(), channel)
        self._starting[FIRST] = self.spare

    # -- becoming and branching -------------------------------------------------------------

    def prime(self, frame: Frame, reply: Reply) -> None:
        """Get ready while nobody waits: what a kernel has from its birth, and its first cell."""
        if self.spare is None:
            raise BoxError("it is somebody's already")
        self._reservation = reserve(frame)
        if frame.get("walls"):
            self._walk_in(frame["walls"])
        self.spare.give_to(_Nobody(lambda: reply({"notes": list(self.notes)})))
        self.spare.send({"op": "prime"})
        if self.walls is None:  # else it has been done while they were built
            self.spare_time()

    def _become(self, frame: Frame, reply: Reply) -> None:
        self._host_environ = frame["environ"]
        if frame.get("profile") and self.walls is None:
            frame = self._walk_in(frame)
        elif frame.get("profile"):
            frame = self._move_in(frame)
        super()._become(frame, reply)
        self._discard_reservation()  # what is left of it

    def _walk_in(self, frame: Frame) -> Frame:
        """Order the walls; the interpreter starts when they stand. What is asked of it until then
        waits in its socket."""
        from kernelbox.walls.plan import Plan
        from kernelbox.walls.profiles import Profile
        from kernelbox.warden.walling import Walls, folder_for_packages

        profile = Profile.from_wire(frame["profile"])
        settings = frame["settings"]
        sockets = os.path.dirname(os.path.dirname(str(frame["address"])))
        private = [str(settings["runtime_dir"]), sockets, *_home_of(settings, str(frame["cwd"]))]
        self.walls = Walls(profile, self.stub_pid, str(frame["kernel_id"]))
        self._name_site(frame, profile)  # it can begin there, while we make its plan
        locked = self.walls.way.kind == "locks"
        self._packages = None if locked else folder_for_packages(frame)
        plan, changed = self.walls.furnish(frame, private=private, packages=self._packages)
        if log := settings.get("audit_log"):
            from kernelbox.warden.auditing import check_out_of_reach

            check_out_of_reach(str(log), plan.mounts if isinstance(plan, Plan) else ())
        self._stub.send({"op": "plan", "plan": plan.to_wire()})
        self.spare_time()
        count_oom_kills_by(self.walls.oom_kills)
        if self.hands is not None:
            self.walls.watch(self.reactor, self.hands)
        elif self.walls.watched:
            self.reactor.call_later(_LOOK_EVERY, self._look_at_memory)
        return changed

    def _name_site(self, frame: Frame, profile: Profile) -> None:
        """What the stub has to know before it makes a sandbox; all else is in the plan."""
        assert self.walls is not None
        site = {
            "op": "site",
            "kernel_id": str(frame["kernel_id"]),
            "driver": profile.driver,
            "group": self.walls.group,
            "network": profile.network,
            "allow": profile.allow,
        }
        if profile.driver == "gvisor":
            self.hands = Hands(self._stub, self.reactor, self._end_deaf)
            site["folder"] = self.walls.folder_in(frame["settings"]["runtime_dir"])
        fds = self.walls.hear_denials(self.reactor, self._denied)
        fds += self.walls.secrets_for_gate(frame)
        self._stub.send(site, fds)
        for fd in fds:
            os.close(fd)

    def _move_in(self, frame: Frame) -> Frame:
        """The walls stand already: a sandbox that was made ahead, for whoever wants such a one."""
        from kernelbox.walls.profiles import Profile

        assert self.walls is not None
        wanted = Profile.from_wire(frame["profile"])
        if replace(self.walls.profile, name=wanted.name) != wanted:
            raise BoxError("these walls are others than those that are asked for")
        self.walls.profile = wanted
        return self.walls.furnish(frame, private=(), packages=self._packages)[1]

    def _look_at_memory(self) -> None:
        assert self.walls is not None
        if over := self.walls.over(lambda: linux.descendants(self.stub_pid)):
            pid, why = over
            for member in self._members.values():
                if member.pid == pid and isinstance(member, PythonMember):
                    member.killed_by_us = why
            linux.send_signal([pid], signal.SIGKILL)
        elif why := self.walls.too_many(lambda: linux.descendants(self.stub_pid)):
            self._end_all_members(why)
        self.reactor.call_later(_LOOK_EVERY, self._look_at_memory)

    def _end_all_members(self, why: str) -> None:
        """With all that they have started; what is parked starts nothing, and stays."""
        for member in self._members.values():
            if isinstance(member, PythonMember):
                member.killed_by_us = why
        parked = [member.pid for member in self._members.values() if isinstance(member, Parked)]
        linux.kill_descendants(self.stub_pid, spare=parked)

    def _denied(self, words: str, said: Frame | None = None) -> None:
        """Whoever runs something now may have tried it; the gate knows no kernels."""
        for household in self.households.values():
            household.kernel.note_denial(words)
            if said is not None and household.kernel.audit is not None:
                household.kernel.audit.denied(said)

    # -- packages ---------------------------------------------------------------------------

    def install(self, kernel: Kernel, frame: Frame, reply: Reply) -> None:
        self._desk().ask(kernel, frame, reply)

    def install_asked(self, kernel: Kernel, frame: Frame) -> None:
        from kernelbox.warden.installing import answer_cell

        answer_cell(self._desk, kernel, frame)

    def _desk(self) -> InstallDesk:
        if self.walls is not None and self.walls.way.kind == "locks":
            raise Unsupported(
                "nothing can be installed into a sandbox where user namespaces are closed: there "
                "is no folder that it alone could see. Install it for its Python instead"
            )
        if self._installs is None:
            from kernelbox.walls.packages import PLACE
            from kernelbox.warden.installing import InstallDesk

            assert self.settings is not None
            self._installs = InstallDesk(
                self.reactor,
                self.settings,
                self._host_environ,
                folder=self._packages,
                inside=None if self.walls is None else PLACE,
            )
        return self._installs

    def end(self) -> None:
        if self._installs is not None:
            self._installs.close()
        self._discard_reservation()
        super().end()
        if self.walls is not None:
            # With pid 1 goes all that is inside, however much of it there is, at once.
            linux.send_signal(linux.children(self.stub_pid), signal.SIGKILL)

    def _end_deaf(self) -> None:
        """A sandbox in which nobody obeys any more."""
        self._deaf = True
        linux.kill_descendants(self.stub_pid)

    def _why_all_ended(self) -> str | None:
        if self._deaf:
            return "the sandbox did not answer any more, and was ended"
        return None if self.walls is None else self.walls.why_all_ended()

    def _wall_facts(self) -> Frame | None:
        return None if self.walls is None else self.walls.facts()

    @property
    def profile(self) -> Frame | None:
        return None if self.walls is None else self.walls.profile.to_wire()

    def _before_leaving(self) -> None:
        if self.walls is not None:
            self.walls.take_down()
        if self._installs is not None:
            self._installs.remove()
        elif self._packages is not None:
            self._packages.remove()

    def _discard_reservation(self) -> None:
        if self._reservation is not None:
            self._reservation.discard()
            self._reservation = None

    def _first_member(self) -> PythonMember | None:
        spare, self.spare = self.spare, None
        return spare if spare is None or spare.ended is None else None

    def branch(self, kernel: Kernel, frame: Frame, reply: Reply) -> None:
        """Copy a live kernel; the copy becomes a kernel of its own under a new name."""
        Branching(self, kernel, frame, reply).start()

    def expect_copy(
        self,
        arrived: Callable[[PythonMember], None],
        failed: Callable[[str], None],
        *,
        patience: float,
    ) -> tuple[PythonMember, CopyAnswer]:
        """A member that a fork elsewhere is to become, and what to call with the word of who was
        to fork it: its failure, or None. One of ``arrived`` and ``failed`` follows (after a
        failure that is to be ``quiet``, none)."""
        newcomer = _Newcomer()
        copy = self._new_member(newcomer, start=False)
        copy.is_copy, copy.hands = True, self.hands

        deadlines: list[Timer] = []

        def here() -> None:
            for deadline in deadlines:
                deadline.cancel()  # or it would keep all of this alive until then
            if self._is_taken(copy):
                copy.inner_pid = 0  # it is another's, and must not be ended
                gone("the copy said that it was another")
                return
            self._members[self._inside(copy)] = copy
            arrived(copy)

        def gone(why: str) -> None:
            for deadline in deadlines:
                deadline.cancel()
            copy.channel.close_far()
            copy.kill(why)
            copy.close()
            failed(why)

        def answer(error: str | None, *, quiet: bool = False) -> None:
            if error is not None:
                if quiet:
                    copy.channel.close_far()
                    copy.close()
                else:
                    gone(error)
                return
            # The copy's hello may have come before its parent's word, or comes after it.
            deadlines.append(self.reactor.call_later(patience, never_came))
            newcomer.expect(here, gone)

        def never_came() -> None:
            newcomer.give_up(f"the copy said nothing for {patience:g} s")

        return copy, answer

    def parked_arrived(self, parked: Parked) -> None:
        """Its end is told by the stub, as every member's is."""
        if self._is_taken(parked):
            parked.inner_pid = 0  # it is another's, and must not be ended
        else:
            self._members[self._inside(parked)] = parked

    def _inside(self, member: PythonMember | Parked) -> int:
        """How the stub knows a process."""
        if self.hands is not None:
            return member.inner_pid
        shared = self.walls is None or self.walls.shares_pids
        return member.pid if shared else linux.pid_inside(member.pid)

    def _is_taken(self, copy: PythonMember | Parked) -> bool:
        """Whether a copy whose word we have to take has given the pid of another."""
        known = copy.inner_pid in self._members or copy.inner_pid in self._shells
        return self.hands is not None and known

    def _outside(self, pid: int) -> int:
        """A process that the stub knows so; 0 if it has ended."""
        if self.walls is None or self.walls.shares_pids:
            return pid
        found = (linux.child_called(pid, stub) for stub in linux.children(self.stub_pid))
        return next(filter(None, found), 0)

    def _open_ports(self, frame: Frame) -> Ports:
        info = frame.get("connection")
        if info is None and self._reservation is not None:
            return self._reservation.take_ports()
        deadline = time.monotonic() + _PORT_PATIENCE
        while True:
            try:
                return open_ports(info)
            except OSError as error:
                # A Jupyter manager restarts a kernel on the same ports; the old one may still
                # be letting go of them.
                if info is None or time.monotonic() > deadline:
                    raise Unsupported(f"the kernel's ports cannot be opened: {error}") from None
                time.sleep(0.05)

    def _listen(self, address: str) -> socket.socket:
        ready = self._reservation and self._reservation.take_listener(address)
        return ready or super()._listen(address)

    def _publish(self, path: str, ports: Ports) -> None:
        if self._reservation is None or not self._reservation.publish(path, ports):
            super()._publish(path, ports)

    def _open_door(self, kernel: Kernel, ports: Ports) -> Door:
        return jupyter.JupyterDoor(self.reactor, kernel, ports, on_shutdown=self._jupyter_shutdown)

    def _jupyter_shutdown(self, kernel: Kernel) -> None:
        self.end_kernel(kernel, "a Jupyter client asked it to shut down")

    # -- members ----------------------------------------------------------------------------

    def start_interpreter(self, kernel: Kernel) -> PythonMember:
        return self._new_member(kernel, scope=kernel.scope)

    def start_bash(self, kernel: Kernel, cwd: str) -> BashMember:
        self._tags += 1
        member = BashMember(self.reactor, kernel.bash, inside=self.hands is not None)
        self._starting[self._tags] = member
        order, fds = member.order(cwd, kernel.identity.environ)
        order["scope"] = kernel.scope
        self._stub.send({"op": "spawn", "tag": self._tags, **order}, fds)
        member.handed_over()
        return member

    def _new_member(
        self, owner: MemberOwner, *, start: bool = True, scope: Frame | None = None
    ) -> PythonMember:
        member = PythonMember(self.reactor, owner)
        member.oom_before = oom_kills()
        if start:
            self._tags += 1
            self._starting[self._tags] = member
            self._stub.send(
                {
                    "op": "interpreter",
                    "tag": self._tags,
                    "token": member.channel.token,
                    "scope": scope,
                    "fds": len(member.channel.far),
                },
                member.channel.far,
            )
            member.channel.close_far()
        return member

    def _stub_said(self, frame: Frame) -> None:
        match frame.get("op"):
            case "started":
                member = self._starting.pop(frame["tag"], None)
                if self.hands is not None:
                    self._started_inside(member, frame["pid"], self.hands)
                elif isinstance(member, PythonMember):
                    self._members[frame["pid"]] = member
                    member.is_running_as(self._outside(frame["pid"]))
                elif isinstance(member, BashMember):
                    member.started(self._outside(frame["pid"]))
                    self._shells[frame["pid"]] = member
            case "refused":
                refused = self._starting.pop(FIRST, None)
                if isinstance(refused, PythonMember):
                    refused.killed_by_us = f"its walls could not be built: {frame.get('error')}"
                    refused.exited(None)
            case "failed":
                failed = self._starting.pop(frame["tag"], None)
                if failed is not None:
                    failed.exited(1 << 8)
            case "exit":
                pid, status = frame["pid"], frame["status"]
                if self.hands is not None:
                    self.hands.ended(pid)
                if (python := self._members.pop(pid, None)) is not None:
                    kills = oom_kills(fresh=True) - python.oom_before
                    limit = self.walls.memory_in_words() if kills and self.walls else ""
                    python.exited(status, oom_kills=kills, limit=limit)
                elif (shell := self._shells.pop(pid, None)) is not None:
                    shell.exited(status)
            case "shedding":
                # Before it is ended, so that its end has a cause.
                if isinstance(victim := self._members.get(frame["pid"]), PythonMember):
                    victim.killed_by_us = str(frame["why"])
                else:
                    self._denied(str(frame["why"]))
            case _ if self.hands is not None:
                self.hands.heard(frame)

    def _started_inside(
        self, member: PythonMember | BashMember | None, pid: int, hands: Hands
    ) -> None:
        if self.walls is not None and (words := self.walls.are_up()):
            if isinstance(member, PythonMember):
                member.killed_by_us = f"its walls could not be built: {words}"
                member.exited(None)
            hands.kill_all(pid)
        elif isinstance(member, PythonMember):
            self._members[pid] = member
            member.is_running_inside_as(pid, hands)
        elif isinstance(member, BashMember):
            self._shells[pid] = member
            member.started_inside(pid, hands)


def _home_of(settings: Frame, cwd: str) -> list[str]:
    """Our own folder, whole, so that it can be neither read nor moved away; of one that the caller
    works in, only what is ours."""
    registry = os.path.realpath(str(settings.get("registry_path") or ""))
    folder = os.path.dirname(registry)
    works_in_it = f"{os.path.realpath(cwd)}/".startswith(f"{folder}/")
    return [registry if works_in_it else folder]


class _Nobody:
    """Owns an interpreter that is not anybody's yet."""

    def __init__(self, on_primed: Callable[[], None] = lambda: None) -> None:
        self._on_primed = on_primed

    def member_started(self, member: Member) -> None:
        pass

    def member_said(self, member: Member, frame: Frame) -> None:
        if frame.get("op") == "primed":
            self._on_primed()

    def member_printed(self, member: Member, name: str, text: str) -> None:
        pass

    def member_ended(self, member: Member, exit: Exit) -> None:
        pass


class _Newcomer(_Nobody):
    """Owns the copy of a fork until it has said hello and its parent has told of the fork."""

    def __init__(self) -> None:
        super().__init__()
        self._greeted = False
        self._ended: str | None = None
        self._arrived: Callable[[], None] | None = None
        self._failed: Callable[[str], None] | None = None

    def expect(self, arrived: Callable[[], None], failed: Callable[[str], None]) -> None:
        if self._ended is not None:
            failed(self._ended)
        elif self._greeted:
            arrived()
        else:
            self._arrived, self._failed = arrived, failed

    def member_said(self, member: Member, frame: Frame) -> None:
        if frame.get("op") == "hello":
            self._greeted = True
            if self._arrived is not None:
                self._arrived()

    def member_ended(self, member: Member, exit: Exit) -> None:
        self._ended = exit.cause
        self.give_up(exit.cause)

    def give_up(self, why: str) -> None:
        """Unless it has arrived."""
        if self._failed is not None and not self._greeted:
            failed, self._failed, self._arrived = self._failed, None, None
            failed(why)
