"""Executions that a client waits for, and what it is told when the service ends first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from kernelbox.server.errors import Refused

_T = TypeVar("_T")


def going_away() -> Refused:
    """What clients are told for whom there is no time left."""
    return Refused(
        503,
        "GoingAway",
        "the service ends; a cell that was to go on goes on without it",
        hint="come back to it by its execution id, or send the same Idempotency-Key again",
        headers={"retry-after": "5"},
    )


@dataclass(slots=True, eq=False)
class Underway:
    """An execution that a client waits for; what comes of it is awaited with :meth:`heard`."""

    kernel: str
    execution_id: str
    on_disconnect: str
    _listener: asyncio.Task[Any] | None = None
    _over: bool = False

    async def heard(self, news: Callable[[], Awaitable[_T]]) -> _T:
        """What is to come, unless :meth:`leave` is called first: then :func:`going_away`."""
        if self._over:
            raise going_away()
        listener = self._listener = asyncio.current_task()
        assert listener is not None
        try:
            return await news()
        except asyncio.CancelledError:
            # Somebody else may want this task to end, too.
            if not self._was_left() or listener.uncancel() > 0:
                raise
            raise going_away() from None
        finally:
            self._listener = None

    def _was_left(self) -> bool:
        return self._over

    def leave(self) -> None:
        """Let go of it; what becomes of the cell is what was asked for."""
        if not self._over:
            self._over = True
            if self._listener is not None:
                self._listener.cancel()
