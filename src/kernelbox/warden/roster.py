"""Who lives in a family: interpreters, parked copies and shells, as the stub knows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kernelbox.inside import linux
from kernelbox.inside.stub import FIRST
from kernelbox.reactor import Peer, Reactor
from kernelbox.warden.bash_member import BashMember, BashOwner
from kernelbox.warden.exits import oom_kills
from kernelbox.warden.hands import Hands
from kernelbox.warden.member import MemberOwner
from kernelbox.warden.parked import Parked
from kernelbox.warden.python_member import PythonMember
from kernelbox.wire import Frame


class Roster:
    """Has the stub start members, and hears from it what becomes of them.

    One that was ordered is known by a tag until the stub says which process it is, and from then
    on by the pid that the stub sees.
    """

    def __init__(self, reactor: Reactor, stub: Peer, *, stub_pid: int, first: PythonMember) -> None:
        """``first`` is the one that the stub starts without being told."""
        self._reactor = reactor
        self._stub = stub
        self._stub_pid = stub_pid
        self._tags = FIRST
        self._starting: dict[int, PythonMember | BashMember] = {FIRST: first}
        self._members: dict[int, PythonMember | Parked] = {}
        self._shells: dict[int, BashMember] = {}
        self._former: set[int] = set()
        """Interpreters that have ended, and whose sessions may not have."""
        self.hands: Hands | None = None
        """Where pids mean something to the stub alone: who acts on them."""
        self.shares_pids = True
        """Whether a process has the same number for the stub as for us."""
        self.are_walls_up: Callable[[], str] = lambda: ""
        """Asked before one that was started inside is believed to be; the words say why not."""
        self.memory_in_words: Callable[[], str] = lambda: ""
        """How much of it there was, and may be: for who was killed for want of it."""
        self.on_shed: Callable[[str], None] = lambda why: None
        """The stub has ended a process that is no member, and says why."""

    # -- ordering ---------------------------------------------------------------------------

    def start_interpreter(self, owner: MemberOwner, scope: Frame | None) -> PythonMember:
        member = self.new_interpreter(owner)
        far = member.channel.far
        order = {"op": "interpreter", "token": member.channel.token, "scope": scope}
        self._order(member, {**order, "fds": len(far)}, far)
        member.channel.close_far()
        return member

    def start_bash(
        self, owner: BashOwner, scope: Frame | None, *, cwd: str, environ: Mapping[str, str]
    ) -> BashMember:
        member = BashMember(self._reactor, owner, inside=self.hands is not None)
        order, fds = member.order(cwd, environ)
        self._order(member, {"op": "spawn", **order, "scope": scope}, fds)
        member.handed_over()
        return member

    def new_interpreter(self, owner: MemberOwner) -> PythonMember:
        """One that somebody else starts, by a fork."""
        member = PythonMember(self._reactor, owner)
        member.oom_before = oom_kills()
        return member

    def _order(self, member: PythonMember | BashMember, order: Frame, fds: list[int]) -> None:
        self._tags += 1
        self._starting[self._tags] = member
        self._stub.send({**order, "tag": self._tags}, fds)

    # -- copies, of which no stub tells -----------------------------------------------------

    def enter(self, copy: PythonMember | Parked) -> bool:
        """A copy has come. False: it says that it is another of us, and is not believed."""
        known = copy.inner_pid in self._members or copy.inner_pid in self._shells
        if self.hands is not None and known:
            copy.inner_pid = 0  # that is another's, and must not be ended
            return False
        self._members[self._pid_for_stub(copy)] = copy
        return True

    def _pid_for_stub(self, copy: PythonMember | Parked) -> int:
        if self.hands is not None:
            return copy.inner_pid
        return copy.pid if self.shares_pids else linux.pid_inside(copy.pid)

    def _pid_for_us(self, pid: int) -> int:
        """A process that the stub knows so; 0 if it has ended."""
        if self.shares_pids:
            return pid
        found = (linux.child_called(pid, stub) for stub in linux.children(self._stub_pid))
        return next(filter(None, found), 0)

    # -- what the stub says -----------------------------------------------------------------

    def heard(self, frame: Frame) -> None:
        match frame.get("op"):
            case "started":
                self._started(self._starting.pop(frame["tag"], None), frame["pid"])
            case "refused":
                refused = self._starting.pop(FIRST, None)
                if isinstance(refused, PythonMember):
                    _no_walls(refused, frame.get("error"))
            case "failed":
                failed = self._starting.pop(frame["tag"], None)
                if failed is not None:
                    failed.exited(1 << 8)
            case "exit":
                self._exited(frame["pid"], frame["status"])
            case "shedding":
                # Before it is ended, so that its end has a cause.
                if isinstance(victim := self._members.get(frame["pid"]), PythonMember):
                    victim.killed_by_us = str(frame["why"])
                else:
                    self.on_shed(str(frame["why"]))
            case _ if self.hands is not None:
                self.hands.heard(frame)

    def _started(self, member: PythonMember | BashMember | None, pid: int) -> None:
        if self.hands is not None:
            self._started_inside(member, pid, self.hands)
        elif isinstance(member, PythonMember):
            self._members[pid] = member
            member.is_running_as(self._pid_for_us(pid))
        elif isinstance(member, BashMember):
            member.started(self._pid_for_us(pid))
            self._shells[pid] = member

    def _started_inside(
        self, member: PythonMember | BashMember | None, pid: int, hands: Hands
    ) -> None:
        if words := self.are_walls_up():
            if isinstance(member, PythonMember):
                _no_walls(member, words)
            hands.kill_all(pid)
        elif isinstance(member, PythonMember):
            self._members[pid] = member
            member.is_running_inside_as(pid, hands)
        elif isinstance(member, BashMember):
            self._shells[pid] = member
            member.started_inside(pid, hands)

    def _exited(self, pid: int, status: int) -> None:
        if self.hands is not None:
            self.hands.ended(pid)
        if (python := self._members.pop(pid, None)) is not None:
            if not self.shares_pids:
                self._former.add(python.pid)
            kills = oom_kills(fresh=True) - python.oom_before
            limit = self.memory_in_words() if kills else ""
            python.exited(status, oom_kills=kills, limit=limit)
        elif (shell := self._shells.pop(pid, None)) is not None:
            shell.exited(status)

    # -- ending them ------------------------------------------------------------------------

    def blame(self, why: str, pid: int | None = None) -> None:
        """An interpreter (or each, without a pid) is about to be killed: that will be its cause."""
        for member in self._members.values():
            if isinstance(member, PythonMember) and pid in (None, member.pid):
                member.killed_by_us = why

    def take_former(self) -> set[int]:
        """Interpreters that have ended since this was last asked; a number may be another's now."""
        former, self._former = self._former, set()
        return former - {member.pid for member in (*self._members.values(), *self._shells.values())}

    def parked_pids(self) -> list[int]:
        return [member.pid for member in self._members.values() if isinstance(member, Parked)]


def _no_walls(member: PythonMember, why: object) -> None:
    member.killed_by_us = f"its walls could not be built: {why}"
    member.exited(None)
