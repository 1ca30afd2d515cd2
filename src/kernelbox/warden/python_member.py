"""An interpreter as the warden sees it: a lifeline, two pipes, and a process that may die."""

from __future__ import annotations

import contextlib
import os
import signal

from kernelbox.inside.channel import Channel, open_channel
from kernelbox.inside.interpreter import DUMP_SIGNAL
from kernelbox.reactor import Peer, Reactor
from kernelbox.warden.exits import Exit, explain
from kernelbox.warden.member import MemberOwner
from kernelbox.warden.streams import Streams
from kernelbox.wire import Frame

_EXIT_PATIENCE = 1.0


class PythonMember:
    """Makes the ends of lifeline and pipes; the far ones are handed to the process."""

    role = "interpreter"

    def __init__(
        self, reactor: Reactor, owner: MemberOwner, channel: Channel | None = None
    ) -> None:
        self._reactor = reactor
        self._owner = owner
        self.inner_pid = 0
        self.pid = 0
        self.forked = False
        self.ended: Exit | None = None
        self.killed_by_us: str | None = None
        self.oom_before = 0
        self._entering = False
        self._interrupt_due = False
        self.channel = channel = channel or open_channel()
        self._dump = channel.dump
        self._peer = Peer(
            reactor,
            channel.lifeline,
            on_frame=self._arrived,
            on_close=self._lifeline_closed,
            ancillary=True,
        )
        self._streams = Streams(
            reactor,
            (channel.stdout, channel.stderr),
            channel.token,
            on_text=lambda name, text: self._owner.member_printed(self, name, text),
            on_frame=self._said,
            poll_frames=self._peer.poll,
        )

    def give_to(self, owner: MemberOwner) -> None:
        self._owner = owner

    def send(self, frame: Frame, fds: list[int] | None = None) -> None:
        if frame["op"] == "run":
            self._entering, self._interrupt_due = True, False
        self._peer.send(frame, fds or ())

    def is_running_as(self, pid: int) -> None:
        """The stub, whose pids are ours, has forked it; it may not have come to its senses yet."""
        self.inner_pid = self.pid = pid
        self.forked = True
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
        if self.pid and self.ended is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGINT)

    def kill(self, why: str | None) -> None:
        """SIGKILL; ``why`` becomes the cause of its death."""
        if self.ended is not None:
            return
        self.killed_by_us = why
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def exited(self, status: int, *, oom_kills: int = 0) -> None:
        """The stub has reaped it. Its last words are still in the pipes: take them first."""
        if self.ended is not None:
            return
        self.ended = explain(status, killed_by_us=self.killed_by_us, oom_kills=oom_kills)
        self._streams.drain(last=True)
        self.close()
        self._owner.member_ended(self, self.ended)

    def close(self) -> None:
        self._peer.close()
        self._streams.close()
        if self._dump >= 0:
            os.close(self._dump)
            self._dump = -1

    def request_stack(self) -> bool:
        """Ask for a dump of every thread's stack; False where the process would not survive it."""
        if not self.pid or self.ended is not None or not _catches(self.pid, DUMP_SIGNAL):
            return False
        self.read_stack()  # forget what an earlier request left behind
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, DUMP_SIGNAL)
            return True
        return False

    def read_stack(self) -> str:
        """What has been dumped since the request."""
        parts = []
        with contextlib.suppress(OSError):
            while data := os.read(self._dump, 1 << 16):
                parts.append(data)
        return b"".join(parts).decode("utf-8", "replace")

    def _arrived(self, frame: Frame) -> None:
        self._streams.take_frame(frame)

    def _said(self, frame: Frame) -> None:
        if frame.get("op") == "hello":
            self.inner_pid = int(frame.get("pid", 0))
            self.pid = self._peer.sender_pid
        elif frame.get("op") in ("running", "done"):
            self._entering = False
            if self._interrupt_due and frame["op"] == "running":
                self._interrupt_due = False
                self.interrupt()
        self._owner.member_said(self, frame)

    def _lifeline_closed(self) -> None:
        """Not yet a death: the stub's report is. One that never comes means a cell closed it."""
        if self.ended is None:
            self._reactor.call_later(_EXIT_PATIENCE, self._lifeline_given_up)

    def _lifeline_given_up(self) -> None:
        if self.ended is None:
            self.kill("the cell closed the kernel's private descriptors; it could not be reached")


def _catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal (it would die of it otherwise)."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
