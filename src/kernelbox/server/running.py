"""Executions that a client waits for: known while they run, and ended when the client leaves."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from kernelbox.async_box import AsyncOnInput
from kernelbox.result import Event, ExecutionResult
from kernelbox.server.errors import Refused
from kernelbox.server.models import Execute
from kernelbox.server.reception import Guest, Underway

_T = TypeVar("_T")


class Gone(Exception):
    """The client has left; there is nobody to answer."""


@dataclass(frozen=True, slots=True)
class Order:
    """One execution that was asked for, with all that was left open filled in."""

    guest: Guest
    kernel: str
    body: Execute
    key: str | None
    execution_id: str
    on_disconnect: str

    @classmethod
    def of(cls, guest: Guest, kernel: str, body: Execute, *, key: str | None = None) -> Order:
        key = guest.key(key)
        # The same key means the same execution, so that a second caller is told its id at once.
        made_up = uuid.uuid4().hex if key is None else key[:32]
        return cls(
            guest,
            kernel,
            body,
            key,
            body.execution_id or made_up,
            body.on_disconnect or ("interrupt" if key is None else "continue"),
        )

    async def execute(self) -> ExecutionResult:
        """The result of it."""
        with self._known(asyncio.current_task()):
            return await self.guest.reception.box.execute(
                self.kernel, self.body.code, **self._arguments()
            )

    async def events(self, on_input: AsyncOnInput | None = None) -> AsyncIterator[Event]:
        """What happens, as it happens, and the result last. Leaving early is a disconnect."""
        events = self.guest.reception.box.events(
            self.kernel, self.body.code, on_input=on_input, **self._arguments()
        )
        with self._known(None):
            try:
                async for event in events:
                    yield event
            finally:
                await events.aclose()

    def _arguments(self) -> dict[str, Any]:
        return {
            "language": self.body.language,
            "timeout": self.body.timeout,
            "expect_epoch": self.body.expect_epoch,
            "execution_id": self.execution_id,
            "atomic": self.body.atomic,
            "on_disconnect": self.on_disconnect,
            "idempotency_key": self.key,
        }

    @contextmanager
    def _known(self, waiting: asyncio.Task[Any] | None) -> Iterator[None]:
        underway = self.guest.reception.underway
        me = Underway(self.kernel, self.execution_id, self.on_disconnect, waiting)
        underway.add(me)
        try:
            yield
        finally:
            underway.discard(me)


async def unless_gone(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """Do some work while the client is there; it is cancelled, and :class:`Gone` raised, if the
    connection ends first."""
    task = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(disconnected(request.receive))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
        if task.cancelled():
            raise Refused(
                503,
                "GoingAway",
                "the service ends; the cell goes on without it",
                hint="come back to it by its execution id, or send the same Idempotency-Key again",
                headers={"retry-after": "5"},
            )
        return task.result()
    finally:
        leaving.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def disconnected(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        continue
