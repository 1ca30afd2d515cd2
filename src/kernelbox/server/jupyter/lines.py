"""All lines of the service: who has one, who is away, and how much may wait for those who are."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import zmq
import zmq.asyncio

from kernelbox.result import KernelRecord
from kernelbox.server.jupyter.line import Line

Key = tuple[str, str]

KEPT_FOR = 3600.0
"""Seconds that a line waits for a client that left in the middle of something."""
_KEPT_SHORTLY = 3.0
"""The same for one that said goodbye and had nothing open; it may only be changing connections."""
MOST_WAITING = 32 << 20
"""Bytes that may wait for one client that is away; then its oldest output is dropped."""
_MOST_WAITING_OF_ALL = 256 << 20
_MOST_AWAY = 64
_MOST_AWAY_OF_A_TENANT = 16
_MOST_AWAY_OF_A_KERNEL = 8
_MOST_SOCKETS = 16_384


@dataclass(slots=True)
class _Absence:
    until: float
    timer: asyncio.TimerHandle


class Lines:
    """The open lines, by kernel and by the session that a client says it is."""

    def __init__(self) -> None:
        self._context: zmq.asyncio.Context | None = None  # until the first client comes
        self._lines: dict[Key, Line] = {}
        self._away: dict[Key, _Absence] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def connections(self, kernel_id: str) -> int:
        """How many clients a kernel has right now."""
        return sum(
            line.attached for (kernel, _), line in self._lines.items() if kernel == kernel_id
        )

    async def take(self, record: KernelRecord, session: str, *, owner: str | None = None) -> Line:
        """The line of a client that comes back, or a new one; ``owner`` is the tenant."""
        key = (record.kernel_id, session)
        if (line := self._known(key)) is not None:
            return line
        if self._context is None:
            self._context = zmq.asyncio.Context()
            self._context.set(zmq.MAX_SOCKETS, _MOST_SOCKETS)
        line = Line(record, self._context, on_stored=self._stored, on_end=self._ended)
        line.owner = owner
        try:
            await line.open()
        except BaseException:
            await line.close()
            raise
        if (other := self._known(key)) is not None:
            # The same client came twice at once, and its other connection was faster.
            await line.close()
            return other
        self._lines[key] = line
        return line

    def leave(self, line: Line, *, for_good: bool, goodbye: bool) -> None:
        """A client has gone. Its line waits for it, unless it left ``for_good``; after a
        ``goodbye`` not for long, if it had nothing left to hear."""
        key = self._key(line)
        if key is None or line.attached:
            return
        if for_good or line.ended:
            self._drop(key)
            return
        loop = asyncio.get_running_loop()
        seconds = _KEPT_SHORTLY if goodbye and not line.expects_answers else KEPT_FOR
        timer = loop.call_later(seconds, self._drop, key)
        self._away[key] = _Absence(loop.time() + seconds, timer)
        self._make_room(
            [other for other in self._away if other[0] == key[0]], _MOST_AWAY_OF_A_KERNEL
        )
        # Of one owner only: who leaves many lines behind takes nobody else's place.
        self._make_room(
            [other for other in self._away if self._lines[other].owner == line.owner],
            _MOST_AWAY if line.owner is None else _MOST_AWAY_OF_A_TENANT,
        )
        self._stored(line)

    async def close(self) -> None:
        for absence in self._away.values():
            absence.timer.cancel()
        await asyncio.gather(*(line.close() for line in self._lines.values()))
        await asyncio.gather(*self._closing)
        self._lines.clear()
        self._away.clear()
        if self._context is not None:
            self._context.destroy(linger=0)

    def _known(self, key: Key) -> Line | None:
        line = self._lines.get(key)
        if line is None or line.ended:
            return None
        if absence := self._away.pop(key, None):
            absence.timer.cancel()
        return line

    def _key(self, line: Line) -> Key | None:
        return next((key for key, value in self._lines.items() if value is line), None)

    def _make_room(self, keys: list[Key], most: int) -> None:
        """Drop those that would have been dropped first anyway."""
        for key in sorted(keys, key=lambda key: self._away[key].until)[: max(0, len(keys) - most)]:
            self._drop(key)

    def _stored(self, line: Line) -> None:
        """Something waits for a client that is away: see that it does not become too much."""
        if line.backlog.size > MOST_WAITING:
            # Well below the limit, so that this is not done again for every message.
            line.backlog.thin(MOST_WAITING * 3 // 4)
        lines = [self._lines[key] for key in self._away]
        if sum(other.backlog.size for other in lines) > _MOST_WAITING_OF_ALL:
            largest = max(lines, key=lambda other: other.backlog.size)
            largest.backlog.thin(largest.backlog.size // 2)

    def _ended(self, line: Line) -> None:
        key = self._key(line)
        if key is not None and not line.attached:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        if absence := self._away.pop(key, None):
            absence.timer.cancel()
        line = self._lines.pop(key, None)
        if line is not None:
            task = asyncio.get_running_loop().create_task(line.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
