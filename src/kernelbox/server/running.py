"""Executions that a client waits for: known while they run, and ended when the client leaves."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from kernelbox.client.meaning import AsyncOnInput
from kernelbox.errors import BoxError
from kernelbox.result import Event, ExecutionResult
from kernelbox.retry import Mend, attempts
from kernelbox.server.errors import Refused
from kernelbox.server.models import Execute, Repeated
from kernelbox.server.reception import Guest, Reception
from kernelbox.server.underway import Underway

_T = TypeVar("_T")
_STOPPED = ("KeyboardInterrupt", "Cancelled")
"""The errors of a cell that somebody has stopped."""
_MOST_REMEMBERED = 10_000


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
        if key is None:
            made_up = body.execution_id or uuid.uuid4().hex
        else:
            # The same key means the same execution, so that a second caller is told its id at once:
            # the one that the first caller chose, if it chose one.
            chosen = guest.reception.chosen_ids.get((kernel, key), body.execution_id)
            made_up = chosen or key[:32]
        return cls(
            guest,
            kernel,
            body,
            key,
            made_up,
            body.on_disconnect or ("interrupt" if key is None else "continue"),
        )

    async def execute(self) -> ExecutionResult:
        """The result of it."""
        box = self.guest.reception.box
        with self._known() as underway:
            result = await underway.heard(
                lambda: box.execute(self.kernel, self.body.code, **self._arguments())
            )
            self._remember(result.execution_id)
            return result

    async def events(self, on_input: AsyncOnInput | None = None) -> AsyncGenerator[Event, None]:
        """What happens, as it happens, and the result last. Leaving early is a disconnect."""
        events = self.guest.reception.box.events(
            self.kernel, self.body.code, on_input=on_input, **self._arguments()
        )
        with self._known() as underway:
            async for event in _heard(underway, events):
                if isinstance(event.item, ExecutionResult):
                    self._remember(event.item.execution_id)
                yield event

    @contextmanager
    def _known(self) -> Iterator[Underway]:
        reception = self.guest.reception
        first = (self.kernel, self.key) not in reception.chosen_ids
        with reception.running(
            self.kernel, self.execution_id, on_disconnect=self.on_disconnect
        ) as underway:
            self._remember(self.execution_id)
            try:
                yield underway
            except BoxError:
                if first:
                    self._remember(None)  # nothing was run, so the key stands for nothing
                raise

    def _remember(self, execution_id: str | None) -> None:
        """What the key stands for, if that cannot be told from the key itself."""
        if self.key is None:
            return
        chosen = self.guest.reception.chosen_ids
        if not execution_id or execution_id == self.key[:32]:
            chosen.pop((self.kernel, self.key), None)
            return
        if len(chosen) > _MOST_REMEMBERED:
            chosen.clear()
        chosen[self.kernel, self.key] = execution_id

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


async def follow(
    reception: Reception, kernel: str, execution_id: str, *, start: int
) -> AsyncGenerator[Event, None]:
    """The events of an execution that somebody comes back to; leaving does not end it."""
    events = reception.box.attach(kernel, execution_id, start=start)
    with reception.running(kernel, execution_id, on_disconnect="continue") as underway:
        async for event in _heard(underway, events):
            yield event


async def _heard(
    underway: Underway, events: AsyncGenerator[Event, None]
) -> AsyncGenerator[Event, None]:
    try:
        while True:
            try:
                event = await underway.heard(events.__anext__)
            except StopAsyncIteration:
                return
            yield event
    finally:
        await events.aclose()


async def execute_until_it_works(
    guest: Guest, kernel: str, body: Repeated, next_code: Callable[[int], str | None]
) -> ExecutionResult:
    """Run code, and after each failure the code that ``next_code(attempt)`` has.

    Who stops a cell means all of it: nothing is run after an interrupt.
    """
    reception = guest.reception
    limit = reception.settings.max_retries if body.max_attempts is None else body.max_attempts
    rules = attempts(body.code, limit)
    try:
        step = next(rules)
        while True:
            if isinstance(step, Mend):
                error = step.result.error
                if reception.ending or (error is not None and error.ename in _STOPPED):
                    return step.result
                step = rules.send(next_code(step.attempt))
                continue
            execution_id = uuid.uuid4().hex
            with reception.running(kernel, execution_id, on_disconnect="interrupt") as underway:
                run = partial(
                    reception.box.execute,
                    kernel,
                    step.code,
                    language=body.language,
                    timeout=body.timeout,
                    execution_id=execution_id,
                    atomic=body.atomic,
                )
                result = await underway.heard(run)
            step = rules.send(result)
    except StopIteration as end:
        last: ExecutionResult = end.value
        return last


def refuse_key(request: Request) -> None:
    """Of several executions in one request, none could be told from another by its key."""
    if "idempotency-key" in request.headers:
        raise Refused(
            422,
            "KeyNotSupported",
            "an Idempotency-Key means one execution, and this route may run several. Nothing was "
            "run",
            hint="leave the key out, or repair the code yourself with one execute for each attempt",
        )


async def unless_gone(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """Do some work while the client is there; it is cancelled, and :class:`Gone` raised, if the
    connection ends first."""
    task = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(disconnected(request.receive))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
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
