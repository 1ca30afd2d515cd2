"""One execution of a client: what comes in, until both its reply and the idle status are here."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kernelbox.gateway.apart import in_thread
from kernelbox.gateway.connection import Connection, Ended, Message, Missed
from kernelbox.gateway.results import (
    Collected,
    ConnectionLost,
    ExecutionResult,
    KernelDied,
    error_of,
)
from kernelbox.gateway.tools import ApprovalRequest, Desk, is_call

Item = str | ExecutionResult | ApprovalRequest

_STEPS = (2.0, 3.0)
"""Seconds after an interrupt until the next, and after that until the interpreter is ended."""
_BEGIN_PATIENCE = 10.0


class TimeIsUp:
    """The clock's word in the inbox."""


class AnotherInterpreter(Exception):
    """The code was not run: the interpreter that it was meant for is gone; its words say why."""


class Clock:
    """Tells when the code has had its time; it stands still while somebody decides."""

    def __init__(self, seconds: float | None, on_end: Callable[[], None]) -> None:
        self._left = seconds
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._held = 0

    def start(self) -> None:
        if self._left is not None and not self._held:
            self._since = self._loop.time()
            self._timer = self._loop.call_later(max(self._left, 0.0), self._on_end)

    def stop(self) -> None:
        if self._timer is not None and self._left is not None:
            self._timer.cancel()
            self._timer = None
            self._left -= self._loop.time() - self._since

    @contextmanager
    def held(self) -> Iterator[None]:
        self.stop()
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            self.start()


class Execution:
    """Runs code once. :meth:`items` is what happens; :meth:`leave` must follow, however it went.

    - ``desk``: who answers calls of tools; None: nobody answers any question
    - ``interrupt``, ``restart``: how to stop the kernel, gently and not
    - ``shows_approvals``: requests for approval are among the items
    """

    def __init__(
        self,
        connection: Connection,
        output: Collected,
        *,
        desk: Desk | None,
        interrupt: Callable[[], Awaitable[None]],
        restart: Callable[[], Awaitable[None]],
        shows_approvals: bool = False,
    ) -> None:
        self._connection = connection
        self._output = output
        self._desk = desk
        self._interrupt = interrupt
        self._restart = restart
        self._shows_approvals = shows_approvals
        self._inbox: asyncio.Queue[Message | Ended | Missed | ApprovalRequest | TimeIsUp]
        self._inbox = asyncio.Queue()
        self._calls: set[asyncio.Task[None]] = set()
        self._clock: Clock | None = None
        self._request = ""
        self._reply: Message | None = None
        self._idle = False
        self._gone = False
        self._missed = False
        self._begun = False

    @property
    def over(self) -> bool:
        """Output may come after the reply, and the idle status before it."""
        return self._reply is not None and self._idle

    @property
    def epoch(self) -> int | None:
        """Which of the kernel's interpreters ran it."""
        found = self._facts.get("epoch")
        return found if isinstance(found, int) else None

    @property
    def loss(self) -> str | None:
        """Why the variables were gone when it began, if it is the first to hear of it."""
        return str(self._facts.get("cause")) if self._facts.get("state") == "lost" else None

    @property
    def _facts(self) -> dict[str, Any]:
        """What our own kernels say about a cell, besides what Jupyter's do."""
        metadata = (self._reply or {}).get("metadata") or {}
        return metadata.get("kernelbox") or {}

    async def items(
        self,
        code: str,
        timeout: float | None,
        *,
        silent: bool = False,
        expect_epoch: int | None = None,
    ) -> AsyncGenerator[Item, None]:
        """What the code prints, as it does, and the result last. With ``expect_epoch`` it is not
        run by another of the kernel's interpreters, and :class:`AnotherInterpreter` is raised."""
        content = {
            "code": code,
            "silent": silent,
            "store_history": not silent,
            "user_expressions": {},
            "allow_stdin": self._desk is not None and not silent,
            "stop_on_error": False,
        }
        self._clock = Clock(timeout, lambda: self._inbox.put_nowait(TimeIsUp()))
        self._clock.start()
        # Named before it is sent: whoever is cancelled meanwhile has to know what to stop.
        self._request = uuid.uuid4().hex
        wanted = {} if expect_epoch is None else {"kernelbox": {"expect_epoch": expect_epoch}}
        await self._connection.ask(self._request, content, self._inbox.put_nowait, metadata=wanted)
        while not self.over:
            item = await self._inbox.get()
            if isinstance(item, TimeIsUp):
                await self._time_out(timeout)
            elif isinstance(item, Ended):
                self._gone = True
                raise KernelDied(
                    f"KernelDied: {item.words}",
                    ename="KernelDied",
                    evalue=item.words,
                    result=await self._result(),
                )
            elif isinstance(item, Missed):
                self._missed = True
                raise ConnectionLost(
                    f"ConnectionLost: {item.words}",
                    ename="ConnectionLost",
                    evalue=item.words,
                    result=await self._result(),
                )
            elif isinstance(item, ApprovalRequest):
                yield item
            elif (text := self._take(item)) is not None:
                yield text
        self._clock.stop()
        assert self._reply is not None
        if self._facts.get("mismatch"):
            raise AnotherInterpreter(str(self._facts.get("cause") or ""))
        result = await self._result()
        if self._reply["content"].get("status") != "ok":
            raise error_of(self._reply["content"], result)
        yield result

    async def leave(self) -> None:
        """However it ended, nothing of it goes on."""
        if self._clock is not None:
            self._clock.stop()
        try:
            await self._drop_calls()
            if self._missed:
                await self._interrupt()  # nobody would hear that it has stopped
            elif self._request and not self.over and not self._gone:
                await self._stop()
        finally:
            self._connection.forget(self._request)

    # -- what comes in --------------------------------------------------------------------------

    def _take(self, message: Message) -> str | None:
        content: dict[str, Any] = message["content"]
        self._begun = True
        match message["header"]["msg_type"]:
            case "execute_reply":
                self._reply = message
            case "status":
                self._idle = self._idle or content.get("execution_state") == "idle"
            case "stream":
                return self._output.stream(str(content.get("text", "")))
            case "display_data" | "execute_result":
                return self._output.display(content)
            case "update_display_data":
                self._output.update(content)
            case "clear_output":
                self._output.clear(wait=bool(content.get("wait")))
            case "input_request":
                # A cell asks one thing at a time: what it asked before, it does not wait for any
                # more, and the answer must not be taken for that to this.
                for earlier in self._calls:
                    earlier.cancel()
                call = asyncio.create_task(self._answer(message))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)
        return None

    async def _answer(self, question: Message) -> None:
        assert self._clock is not None
        prompt = str(question["content"].get("prompt", ""))
        value = None  # to input(), which has nobody here, it is an EOFError
        if self._desk is not None and is_call(prompt):
            value = await self._desk.answer(
                prompt,
                thinking=self._clock.held,
                show=self._inbox.put_nowait if self._shows_approvals else None,
            )
        await self._connection.reply({"value": value}, question)

    async def _result(self) -> ExecutionResult:
        if self._output.has_pictures:
            return await in_thread(self._output.result)
        return self._output.result()

    # -- how it is stopped ----------------------------------------------------------------------

    async def _time_out(self, timeout: float | None) -> None:
        await self._drop_calls()
        kept = await self._stop()
        what = "was interrupted; the kernel's variables are kept"
        if not kept:
            what = (
                "did not heed interrupts, so its interpreter was ended; the kernel's variables are "
                "gone"
            )
        raise TimeoutError(f"the code took longer than {timeout:g} s and {what}")

    async def _drop_calls(self) -> None:
        """A tool that runs in a thread cannot be stopped; nobody waits for it any more."""
        calls = set(self._calls)
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls)

    async def _stop(self) -> bool:
        """Interrupt it and wait until it has stopped, so that the next one finds a free kernel;
        False if it took the interpreter."""
        if not self._begun:
            # A large one may still be on its way; before it runs, there is nothing to interrupt.
            await self._waited(lambda: self._begun or self.over, _BEGIN_PATIENCE)
        for patience in _STEPS:
            await self._interrupt()
            if await self._is_over_in(patience):
                return True
        await self._restart()
        await self._is_over_in(sum(_STEPS))
        return False

    async def _is_over_in(self, seconds: float) -> bool:
        return await self._waited(lambda: self.over, seconds)

    async def _waited(self, until: Callable[[], bool], seconds: float) -> bool:
        """Take what comes in until something is so, or the kernel is gone."""
        try:
            async with asyncio.timeout(seconds):
                while not (until() or self._gone or self._missed):
                    item = await self._inbox.get()
                    if isinstance(item, Ended):
                        self._gone = True
                    elif isinstance(item, Missed):
                        self._missed = True
                    elif isinstance(item, dict) and item["header"]["msg_type"] != "input_request":
                        self._take(item)
        except TimeoutError:
            return False
        return True
