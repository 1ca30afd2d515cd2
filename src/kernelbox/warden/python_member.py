"""An interpreter as the warden sees it: a lifeline, two pipes, and a process that may die."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback

from kernelbox.inside.channel import Channel, open_channel
from kernelbox.inside.interpreter import DUMP_SIGNAL
from kernelbox.reactor import Peer, Reactor, Timer
from kernelbox.warden.events import check
from kernelbox.warden.exits import Exit, explain
from kernelbox.warden.hands import Hands, is_member_pid
from kernelbox.warden.member import MemberOwner, stub_of
from kernelbox.warden.streams import Streams
from kernelbox.warden.turns import OF_A_TURN, Turns
from kernelbox.wire import Frame

_EXIT_PATIENCE = 1.0
_REPORT_PATIENCE = 2.0
_LONGEST_STACK = 1 << 18
_LARGEST_PIPE = 1 << 20
_NONSENSE = "killed: it spoke nonsense on the kernel's private socket"


class PythonMember:
    """Makes the ends of lifeline and pipes; the far ones are handed to the process."""

    role = "interpreter"

    def __init__(
        self, reactor: Reactor, owner: MemberOwner, channel: Channel | None = None
    ) -> None:
        self._reactor = reactor
        self._owner = owner
        self.hands: Hands | None = None
        """Where it has no pid that we could signal: who does."""
        self.inner_pid = 0
        self.pid = 0
        self.forked = False
        self.is_copy = False
        """Whether another interpreter is to fork it: then no stub tells of its failure."""
        self.ended: Exit | None = None
        self.killed_by_us: str | None = None
        self.oom_before = 0
        self._turns = Turns()
        self._entering = False
        self._interrupt_due = False
        self._distrusted = False
        self._stack_room = 0
        self._death = -1  # a pidfd
        self._report_due: Timer | None = None
        self.channel = channel = channel or open_channel()
        self._dump = channel.dump
        self._peer = Peer(
            reactor,
            channel.lifeline,
            on_frame=self._arrived,
            on_close=self._lifeline_closed,
            ancillary=True,
            most_fds=0,  # it has none to give us
        )
        self._streams = Streams(
            reactor,
            (channel.stdout, channel.stderr),
            channel.token,
            on_text=lambda name, text: self._owner.member_printed(self, name, text),
            on_frame=self._said,
            poll_frames=self._peer.poll,
            pause_frames=self._peer.pause,
        )

    def give_to(self, owner: MemberOwner) -> None:
        self._owner = owner

    def send(self, frame: Frame, fds: list[int] | None = None) -> None:
        if frame["op"] == "run":
            self._entering, self._interrupt_due = True, False
        self._turns.number(frame)
        self._peer.send(frame, fds or ())

    def is_running_as(self, pid: int) -> None:
        """The stub, whose pids are ours, has forked it; it may not have come to its senses yet."""
        self.forked = True
        self._has_pid(pid)
        self._owner.member_started(self)

    def is_running_inside_as(self, pid: int, hands: Hands) -> None:
        """The same, where pids mean something to the stub alone."""
        self.forked = True
        self._is_inside(pid, hands)
        self._owner.member_started(self)

    def catch_up(self) -> None:
        """Take in what was printed up to now, so that the next cell is not taken for its author."""
        self._streams.catch_up()

    def interrupt(self) -> None:
        """SIGINT to the interpreter and what it runs: its process group.

        One that is sent before the cell is entered waits: between cells SIGINT is ignored.
        """
        if self._entering:
            self._interrupt_due = True
            return
        if self.ended is not None:
            return
        if self.hands is not None and self.inner_pid:
            self.hands.signal(self.inner_pid, signal.SIGINT, group=True)
        elif self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGINT)

    def kill(self, why: str | None) -> None:
        """SIGKILL; ``why`` becomes the cause of its death."""
        if self.ended is not None:
            return
        self.killed_by_us = why
        if self.hands is not None and self.inner_pid:
            self.hands.signal(self.inner_pid, signal.SIGKILL)
        elif self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def exited(self, status: int | None, *, oom_kills: int = 0, limit: str = "") -> None:
        """The stub has reaped it; no status: it is dead, and the stub does not say how.

        Its last words are still in the pipes: take them first.
        """
        if self.ended is not None:
            return
        self.ended = explain(
            status, killed_by_us=self.killed_by_us, oom_kills=oom_kills, limit=limit
        )
        self._streams.drain(last=True)
        self.close()
        self._owner.member_ended(self, self.ended)

    def close(self) -> None:
        self._peer.close()
        self._streams.close()
        if self._report_due is not None:
            self._report_due.cancel()
        self._close_death()
        if self._dump >= 0:
            os.close(self._dump)
            self._dump = -1

    def request_stack(self) -> bool:
        """Ask for a dump of every thread's stack; False where the process would not survive it."""
        if not self.pid or self.ended is not None or not _catches(self.pid, DUMP_SIGNAL):
            return False
        self._read_dump()  # forget what an earlier request left behind
        self._stack_room = _LONGEST_STACK
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, DUMP_SIGNAL)
            return True
        return False

    def read_stack(self) -> str:
        """What has been dumped since the request; no more than a stack of any sense is long."""
        dump = self._read_dump()[: self._stack_room]
        self._stack_room -= len(dump)
        return dump.decode("utf-8", "replace")

    def _read_dump(self) -> bytes:
        """All that the pipe held when we came; it is the cell's, and may be full again by then."""
        parts = []
        taken = 0
        with contextlib.suppress(OSError):
            while taken < _LARGEST_PIPE and (data := os.read(self._dump, 1 << 16)):
                parts.append(data)
                taken += len(data)
        return b"".join(parts)

    # -- what it says ------------------------------------------------------------------------

    def _arrived(self, frame: Frame) -> None:
        if frame.get("op") == "hello":
            frame["sender"] = self._peer.sender_pid  # who it is, whatever it says
        self._streams.take_frame(frame)

    def _said(self, frame: Frame) -> None:
        """Its words, which user code may have put in its mouth. If they make anybody here fail,
        that is the end of this one and of nobody else."""
        if self._distrusted:
            return
        try:
            check(frame)
            self._heard(frame)
        except Exception:  # noqa: BLE001
            # It may as well be a bug of ours: then this is how we get to know.
            sys.stderr.write(f"kernelbox: a frame of process {self.pid} was no good:\n")
            sys.stderr.write(traceback.format_exc())
            sys.stderr.flush()
            self._distrust()

    def _distrust(self) -> None:
        self._distrusted = True
        self.kill(self.killed_by_us or _NONSENSE)

    def _heard(self, frame: Frame) -> None:
        op = frame["op"]
        if op in OF_A_TURN:
            if not self._turns.admit(frame):
                return
            if op in ("running", "done"):
                self._entering = False
                if self._interrupt_due and op == "running":
                    self._interrupt_due = False
                    self.interrupt()
        elif op == "result":
            if not self._turns.names(frame):
                frame["op"] = "display"  # to be seen, but the value of no cell
        elif op == "hello" and not self._greeted_by(frame["sender"], frame.get("pid")):
            return
        self._owner.member_said(self, frame)

    def _greeted_by(self, pid: int, inner_pid: object) -> bool:
        """Whether a hello is news: the first word of a copy, which no stub tells of.

        Any process that has the lifeline can say it, and root can name any pid; but only one
        whose parent is our stub can be a member.
        """
        if self.hands is not None:
            # Its own word, for there is no other; if it lies, it is the liar whom we do not reach.
            if self.forked or self.inner_pid or not is_member_pid(inner_pid):
                return False
            self._is_inside(inner_pid, self.hands)
            return True
        if self.forked or self.pid or not stub_of(pid):
            return False
        self._has_pid(pid)
        return True

    def _lifeline_closed(self) -> None:
        """Not yet a death: the stub's report is. One that never comes means a cell closed it."""
        if self._peer.garbled:
            self._distrust()
        elif self.is_copy and not self.inner_pid:
            self.exited(None)
        elif self.ended is None:
            self._reactor.call_later(_EXIT_PATIENCE, self._lifeline_given_up)

    def _lifeline_given_up(self) -> None:
        if self.ended is None and self._report_due is None:
            self.kill("the cell closed the kernel's private descriptors; it could not be reached")

    # -- its death, if the stub is silent ----------------------------------------------------

    def _has_pid(self, pid: int) -> None:
        if pid != self.pid:
            self.inner_pid = self.pid = pid
            self._close_death()
            try:
                self._death = os.pidfd_open(pid)
            except ProcessLookupError:
                self._died()  # reaped already: a report is on its way, or was nobody's
            except OSError:
                pass  # no descriptors left: the stub's report has to do
            else:
                self._reactor.watch(self._death, self._died)
        if self.killed_by_us is not None:
            self.kill(self.killed_by_us)  # that was before there was anybody to kill

    def _is_inside(self, pid: int, hands: Hands) -> None:
        self.inner_pid, self.hands = pid, hands
        if self.killed_by_us is not None:
            self.kill(self.killed_by_us)

    def _close_death(self) -> None:
        if self._death >= 0:
            self._reactor.forget(self._death)
            os.close(self._death)
            self._death = -1

    def _died(self) -> None:
        """The stub's report says how, and comes at once, unless a cell has stopped the stub."""
        if self._death >= 0:
            self._reactor.forget(self._death)
        self._report_due = self._reactor.call_later(_REPORT_PATIENCE, self._wake_stub)

    def _wake_stub(self) -> None:
        # Not reaped, so its pid is still its own, and its parent is the one that should reap it.
        if stub := stub_of(self.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(stub, signal.SIGCONT)
        self._report_due = self._reactor.call_later(_EXIT_PATIENCE, lambda: self.exited(None))


def _catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal (it would die of it otherwise)."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
