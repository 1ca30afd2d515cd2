"""What waits for subscribers who are slower than the kernel: kept in order, joined, and bounded.

ZeroMQ would drop what is too much for one of them without a word, the last "idle" included, for
which its client then waits for ever. So it is told to refuse instead, and what is refused waits
here for all of them. One who takes nothing at all for a minute holds nobody up any longer.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernelbox.reactor import Reactor, Timer
from kernelbox.warden.lanes.messages import Header
from kernelbox.warden.lanes.zeromq import Channel

MOST_WAITING = 64 << 20
"""Bytes of output; beyond them it is left out, in words."""
_OVERHEAD = 500
"""What a waiting message costs beyond its text, roughly."""
_JOINED = 1 << 20
_RETRY, _AT_ONCE = 0.002, 1000
_STUCK = 60.0
_OUTPUT = frozenset(("stream", "display_data", "update_display_data", "comm_msg"))
"""What a cell may say without end. States, results and errors are few, and worth more."""


@dataclass(slots=True)
class Publication:
    """A message before it is packed."""

    msg_type: str
    content: dict[str, Any]
    parent: Header
    metadata: dict[str, Any] | None = None
    buffers: Sequence[bytes] = ()
    topic: bytes | None = None

    @property
    def size(self) -> int:
        size = sum(len(part) for part in self.buffers)
        for value in (*self.content.values(), *(self.content.get("data") or {}).values()):
            size += len(value) if isinstance(value, str) else 0
        return size + _OVERHEAD

    def join(self, other: Publication) -> bool:
        """Take in the next one, if both are text of the same stream of the same cell."""
        if not (
            self.msg_type == other.msg_type == "stream"
            and self.content["name"] == other.content["name"]
            and self.parent == other.parent
            and len(self.content["text"]) < _JOINED
        ):
            return False
        self.content = {**self.content, "text": self.content["text"] + other.content["text"]}
        return True


class Outgoing:
    """Sends publications in order, as fast as the slowest subscriber takes them."""

    def __init__(
        self, reactor: Reactor, channel: Channel, pack: Callable[[Publication], list[bytes]]
    ) -> None:
        self._reactor = reactor
        self._channel = channel
        self._pack = pack
        self._waiting: deque[Publication] = deque()
        self._size = 0
        self._left_out = 0
        self._retry: Timer | None = None
        self._sent_at = 0.0

    def put(self, publication: Publication) -> None:
        if not self._waiting and self._channel.send(self._pack(publication)):
            return
        if not self._waiting:
            self._sent_at = time.monotonic()
        self._keep(publication)
        if self._retry is None:
            self._retry = self._reactor.call_later(_RETRY, self._flush)

    def subscribers_changed(self) -> None:
        """One who was stuck may be gone: from now on all of them are waited for again."""
        self._channel.drop_what_is_too_much(False)

    def close(self) -> None:
        """What can still leave does."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        while self._waiting and self._channel.send(self._pack(self._waiting.popleft())):
            pass

    def _keep(self, publication: Publication) -> None:
        if publication.msg_type in _OUTPUT and self._size > MOST_WAITING:
            self._left_out += 1
            return
        if self._left_out:
            self._waiting.append(_notice(publication.parent, self._left_out))
            self._left_out = 0
        before = self._waiting[-1].size if self._waiting else 0
        if self._waiting and self._waiting[-1].join(publication):
            self._size += self._waiting[-1].size - before
            return
        self._waiting.append(publication)
        self._size += publication.size

    def _flush(self) -> None:
        self._retry = None
        self._send_what_goes()
        if not self._waiting:
            return
        if time.monotonic() - self._sent_at > _STUCK:
            self._channel.drop_what_is_too_much(True)
            self._send_what_goes()
        self._retry = self._reactor.call_later(_RETRY, self._flush)

    def _send_what_goes(self) -> None:
        # Not all at once: where what is too much is dropped, it must not be too much for the quick.
        for _ in range(_AT_ONCE):
            if not self._waiting or not self._channel.send(self._pack(self._waiting[0])):
                return
            self._size -= self._waiting.popleft().size
            self._sent_at = time.monotonic()


def _notice(parent: Header, left_out: int) -> Publication:
    words = (
        f"\n[kernelbox: {left_out} messages of output were left out here, because a client of this "
        "kernel did not take them; run the cell again to see all of it]\n"
    )
    return Publication("stream", {"name": "stderr", "text": words}, parent)
