"""A parked copy of an interpreter as the warden sees it: a socket, a pid, and a memory."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable

from kernelbox.inside.channel import Channel
from kernelbox.reactor import Peer, Reactor
from kernelbox.warden.hands import Hands, is_member_pid
from kernelbox.warden.member import parent_of, process_facts, stub_of
from kernelbox.warden.turns import new_turn
from kernelbox.wire import Frame

Answer = Callable[[str | None], None]
"""Told what went wrong, in words, or None."""
ForkAnswer = Callable[[str | None, Frame], None]
"""The same, with what the copy had to say."""


class Parked:
    """Made before the fork that will be at its other end; ends when it is dropped."""

    def __init__(self, reactor: Reactor, hands: Hands | None = None) -> None:
        """``hands``: who signals it, where its pid means something to the stub alone."""
        near, far = socket.socketpair()
        near.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.far = [far.detach()]
        self.pid = 0
        self.inner_pid = 0
        self._hands = hands
        self.ended = False
        self.oom_before = 0
        self._announced = False
        self.on_arrival: Callable[[Parked], None] = lambda _: None
        self.on_end: Callable[[], object] = lambda: None
        self._arrivals: list[Answer] = []
        self._forks: dict[int, ForkAnswer] = {}  # by the turn that the answer must name
        self._peer = Peer(
            reactor, near, on_frame=self._said, on_close=self.exited, ancillary=True, most_fds=0
        )

    @property
    def there(self) -> bool:
        """Whether it has come, and has not ended."""
        return self._announced and not self.ended

    def handed_over(self) -> None:
        """The fork has its end of the socket; ours must close, or its end is never seen."""
        for fd in self.far:
            os.close(fd)
        self.far = []

    def when_there(self, answer: Answer) -> None:
        """Call back once it has said hello, or has ended before."""
        if self.ended:
            answer("the copy ended before it was parked")
        elif self._announced:
            answer(None)
        else:
            self._arrivals.append(answer)

    def fork(self, channel: Channel, answer: ForkAnswer) -> None:
        """Have it fork a successor for the far end of a channel."""
        if not self.there:
            channel.close_far()
            answer("its process was killed", {})
            return
        turn = new_turn()
        self._forks[turn] = answer
        self._signal(signal.SIGCONT)  # should somebody have stopped it
        order = {"op": "fork", "turn": turn, "token": channel.token, "fds": len(channel.far)}
        self._peer.send(order, channel.far)
        channel.close_far()

    def drop(self) -> None:
        """Let it end; nobody is told."""
        self.on_end = lambda: None
        self.handed_over()
        self._peer.close()
        if self.there:
            self._signal(signal.SIGKILL)  # end-of-file would do, unless somebody has stopped it
        self._end()

    def exited(self, status: int | None = None, *, oom_kills: int = 0, limit: str = "") -> None:
        """Its end, told by the stub or by its own socket, whoever is first."""
        self._peer.close()
        self._end()

    def facts(self) -> dict[str, object]:
        return process_facts(self.pid, "checkpoint")

    def _signal(self, number: int) -> None:
        if self._hands is not None and self.inner_pid:
            self._hands.signal(self.inner_pid, number)
        elif self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def _end(self) -> None:
        if self.ended:
            return
        self.ended = True
        forks, self._forks = self._forks, {}
        arrivals, self._arrivals = self._arrivals, []
        for answer in forks.values():
            answer("its process ended, or did not answer", {})
        for arrived in arrivals:
            arrived("the copy ended, or did not come up")
        self.on_end()

    def _is_ours(self, sender: int) -> bool:
        # In gVisor, whatever is written comes from the sandbox's own kernel.
        inside = self._hands is not None
        return inside or bool(stub_of(sender) or stub_of(parent_of(sender)))

    def _said(self, frame: Frame) -> None:
        match frame.get("op"):
            case "announced" | "hello" as word:
                # Any process that has the socket can say it; only a child of our stub is meant, or
                # the process between, which is there first, and whose memory is the same.
                sender = self._peer.sender_pid
                if self.pid or self.inner_pid or not self._is_ours(sender):
                    return
                self._announced = True
                if word == "hello":
                    if self._hands is None:
                        self.pid = sender
                    elif is_member_pid(frame.get("pid")):
                        self.inner_pid = frame["pid"]  # its own word, for there is no other
                    self.on_arrival(self)
                arrivals, self._arrivals = self._arrivals, []
                for arrived in arrivals:
                    arrived(None)
            case "forked" if isinstance(turn := frame.get("turn"), int) and turn in self._forks:
                answer = self._forks.pop(turn)
                failure = None if frame.get("ok") else str(frame.get("error") or "the fork failed")
                answer(failure, frame)
