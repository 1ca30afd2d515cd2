"""Runs what may never come back where it holds up nobody: threads and tasks that can be left.

asyncio's own pool of threads is small and shared: a few functions that hang, and nothing that needs
a thread happens any more, not even the interrupt that would end the wait for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")

_left: set[asyncio.Task[Any]] = set()
"""Tasks that run or that were left: the loop alone would not keep them alive."""


async def in_thread(function: Callable[..., T], *positional: Any, **named: Any) -> T:
    """Call a function in a thread of its own, which ends with the process if it does not before.
    Whoever is cancelled while it waits leaves at once."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()

    def tell(value: T | None, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((value, error))

    def run() -> None:
        value, error = None, None
        try:
            value = context.run(function, *positional, **named)
        except BaseException as raised:  # noqa: BLE001 - it is raised where it is waited for
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits
            loop.call_soon_threadsafe(tell, value, error)

    context = contextvars.copy_context()
    name = getattr(function, "__name__", type(function).__name__)
    threading.Thread(target=run, name=f"kernelbox-{name}", daemon=True).start()
    value, error = await done
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


async def outcome_of(make: Callable[[], Awaitable[T]]) -> T:
    """Await what ``make`` returns in a task of its own. Whatever it raises is raised here, also if
    it cancels itself, and never in the loop; whoever is cancelled while it waits leaves at once,
    also if the task does not."""

    async def run() -> tuple[T | None, BaseException | None]:
        try:
            return await make(), None
        except BaseException as raised:  # noqa: BLE001 - SystemExit would end the whole loop
            return None, raised

    task = asyncio.get_running_loop().create_task(run())
    _left.add(task)
    task.add_done_callback(_left.discard)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        raise
    if task.cancelled():  # before it began
        raise Abandoned("it was cancelled")
    value, error = task.result()
    if isinstance(error, asyncio.CancelledError):
        raise Abandoned("it was cancelled") from error
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


class Abandoned(Exception):
    """What was awaited has cancelled itself."""


async def finished(work: Awaitable[T]) -> T:
    """Have something come to its end, also if whoever waits is cancelled meanwhile: then that is
    raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # seen; the cancellation is what counts
        raise cancelled
    return task.result()


async def call(function: Callable[..., Any], *positional: Any, **named: Any) -> Any:
    """Call somebody's function, sync or async: in a thread, or in a task. ``Abandoned`` if it
    cancelled itself; whatever else it raises is raised here."""

    async def run() -> Any:
        if is_async(function):
            return await function(*positional, **named)
        value = await in_thread(function, *positional, **named)
        return await value if inspect.isawaitable(value) else value

    return await outcome_of(run)


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - the method, not whether there is one
    )
