"""The keeper's lines to wardens: one per family, and which of them leads to which kernel."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

from kernelbox.errors import BoxError, StartupFailed, from_wire
from kernelbox.reactor import Peer, Reactor
from kernelbox.wire import Frame

Answer = dict[str, Any] | BoxError
Reply = Callable[[Answer], None]


class WardenGone(StartupFailed):
    """Raised inside the keeper when a family ends before it was ready: worth one more try."""


class FamilyLink:
    """The keeper's line to one warden; also how its end is noticed."""

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket,
        *,
        on_event: Callable[[FamilyLink, Frame], None],
        on_close: Callable[[FamilyLink], None],
    ) -> None:
        self.pid = 0
        self.kernel_ids: set[str] = set()
        self.adopted = False  # found by a later keeper, and no child of its roots
        self.reserved = ""  # the id its first kernel will have: a spare is given one ahead
        self.warm = False  # it listens there, and needs nothing but to be told whose it is
        self.notes: list[str] = []
        self.walls = ""  # of a spare that is behind walls: which
        self.sandbox = ""  # the id that its control group and what was built for it are called by
        self._on_event = on_event
        self._on_close = on_close
        self._waiting: dict[int, Reply] = {}
        self._next = 0
        self._peer = Peer(reactor, sock, on_frame=self._said, on_close=self._closed)

    @property
    def closed(self) -> bool:
        return self._peer.closed

    def ask(self, request: Frame, on_reply: Reply) -> None:
        """Send a request; exactly one reply or error comes, also when the warden dies."""
        if self._peer.closed:
            on_reply(StartupFailed("the kernel's warden ended"))
            return
        self._next += 1
        self._waiting[self._next] = on_reply
        self._peer.send({**request, "id": self._next})

    def poll(self) -> None:
        """Hear now what it has to say, its end above all."""
        self._peer.poll()

    def close(self) -> None:
        self._peer.close()

    def give_up(self) -> None:
        """There is nobody at the other end, or will not be: as if it had been closed there."""
        if not self.closed:
            self.close()
            self._closed()

    def kill(self) -> None:
        """End a warden that does not listen; its stub takes that as the word to end the rest."""
        if self.pid and not self.closed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        else:
            self.give_up()  # not forked yet: it will find nobody to work for

    def _said(self, frame: Frame) -> None:
        if "event" in frame and "id" not in frame:
            self._on_event(self, frame)
            return
        on_reply = self._waiting.pop(frame.get("id", 0), None)
        if on_reply is not None:
            on_reply(from_wire(frame) if "error" in frame else frame.get("reply") or {})

    def _closed(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for on_reply in waiting.values():
            on_reply(WardenGone("the kernel's warden ended before it answered"))
        self._on_close(self)


class Families:
    """Every family there is, spares included."""

    def __init__(
        self,
        reactor: Reactor,
        *,
        on_event: Callable[[FamilyLink, Frame], None],
        on_close: Callable[[FamilyLink], None],
    ) -> None:
        self._reactor = reactor
        self._on_event = on_event
        self._on_close = on_close
        self._links: set[FamilyLink] = set()
        self._by_kernel: dict[str, FamilyLink] = {}

    def __iter__(self) -> Iterator[FamilyLink]:
        return iter(list(self._links))

    def connect(self, sock: socket.socket) -> FamilyLink:
        """A line to whoever is, or will be, the warden at the other end."""
        link = FamilyLink(self._reactor, sock, on_event=self._on_event, on_close=self._on_close)
        self._links.add(link)
        return link

    def discard(self, link: FamilyLink) -> None:
        self._links.discard(link)

    def of(self, kernel_id: str) -> FamilyLink | None:
        """The family that a kernel lives in."""
        return self._by_kernel.get(kernel_id)

    def house(self, kernel_id: str, link: FamilyLink) -> None:
        """A kernel lives there from now on."""
        link.kernel_ids.add(kernel_id)
        self._by_kernel[kernel_id] = link

    def vacate(self, kernel_id: str) -> None:
        """A kernel is gone; its family may still be ending."""
        self._by_kernel.pop(kernel_id, None)
