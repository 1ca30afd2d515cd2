"""AsyncBox: the methods of :class:`kernelbox.Box`, awaited, over the same calls."""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, overload

from kernelbox.box import (
    PAGE,
    KernelKey,
    attach_request,
    check_cells,
    check_pattern,
    check_stream,
    one_or_many,
    shown_item,
)
from kernelbox.client import aio
from kernelbox.client.calls import Calls, KernelLike, ProfileLike, wanted_checkpoint
from kernelbox.client.conversation import Answer, ConnectionLost, Conversation, InputWanted
from kernelbox.config import Settings
from kernelbox.config.checks import check_whole
from kernelbox.result import (
    Checkpoint,
    Event,
    ExecutionResult,
    InstallReport,
    KernelRecord,
    OutputItem,
    SaveReport,
)
from kernelbox.retry import AsyncRepair, Mend, attempts, check_repair
from kernelbox.spool import OutputMatch, OutputPage, SpoolReader
from kernelbox.wire import Frame

AsyncOnInput = Callable[[str], str | Awaitable[str | None] | None]
"""Answers ``input(prompt)`` in a cell, at once or awaited; None: there is no answer."""


class AsyncBox:
    """The same as :class:`Box`, awaited; the methods are explained there.

    Cancelling a call, or the task that awaits it, interrupts its cell.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        """``settings`` default to the environment as it is now."""
        self.settings = settings or Settings.from_environment()
        self._calls = Calls(self.settings)
        self._driver = aio.AsyncDriver()
        self._send, self._receive = aio.send, aio.receive

    async def __aenter__(self) -> AsyncBox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Kernels live on."""
        self._driver.lines.close()

    async def get_or_create(
        self,
        name: str,
        *,
        session_name: str | None = None,
        tags: Mapping[str, Any] | list[str] | None = None,
        cwd: str | None = None,
        environ: Mapping[str, str] | None = None,
        template: KernelLike | None = None,
        profile: ProfileLike | None = None,
    ) -> KernelRecord:
        """See :meth:`Box.get_or_create`."""
        return await self._driver.run(
            self._calls.get_or_create(
                name,
                session_name=session_name,
                tags=tags,
                cwd=cwd,
                environ=environ,
                template=template,
                profile=profile,
            )
        )

    async def execute(
        self,
        kernel: KernelLike,
        code: str,
        *,
        language: str = "python",
        timeout: float | None = None,
        expect_epoch: int | None = None,
        execution_id: str | None = None,
        atomic: bool = False,
        on_input: AsyncOnInput | None = None,
        on_disconnect: str | None = None,
        idempotency_key: str | None = None,
    ) -> ExecutionResult:
        """See :meth:`Box.execute`."""
        if on_input is not None:
            events = self.events(
                kernel,
                code,
                language=language,
                timeout=timeout,
                expect_epoch=expect_epoch,
                execution_id=execution_id,
                atomic=atomic,
                on_input=on_input,
                on_disconnect=on_disconnect,
                idempotency_key=idempotency_key,
            )
            result = [event.item async for event in events][-1]
            assert isinstance(result, ExecutionResult)
            return result
        request = self._calls.execute_request(
            code,
            language=language,
            timeout=timeout,
            expect_epoch=expect_epoch,
            execution_id=execution_id,
            atomic=atomic,
            on_disconnect=on_disconnect or "interrupt",
            idempotency_key=idempotency_key,
        )
        return await self._driver.run(self._calls.execute(kernel, request))

    async def stream(
        self,
        kernel: KernelLike,
        code: str,
        *,
        language: str = "python",
        timeout: float | None = None,
        expect_epoch: int | None = None,
        execution_id: str | None = None,
        atomic: bool = False,
        on_input: AsyncOnInput | None = None,
    ) -> AsyncGenerator[OutputItem | ExecutionResult, None]:
        """See :meth:`Box.stream`."""
        events = self.events(
            kernel,
            code,
            language=language,
            timeout=timeout,
            expect_epoch=expect_epoch,
            execution_id=execution_id,
            atomic=atomic,
            on_input=on_input,
        )
        # Closed when we are: who leaves early means the cell, too.
        async with aclosing(events):
            async for event in events:
                yield event.item

    def events(
        self,
        kernel: KernelLike,
        code: str,
        *,
        language: str = "python",
        timeout: float | None = None,
        expect_epoch: int | None = None,
        execution_id: str | None = None,
        atomic: bool = False,
        on_input: AsyncOnInput | None = None,
        on_disconnect: str | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncGenerator[Event, None]:
        """See :meth:`Box.events`."""
        request = self._calls.execute_request(
            code,
            language=language,
            timeout=timeout,
            expect_epoch=expect_epoch,
            execution_id=execution_id,
            atomic=atomic,
            stdin=on_input is not None,
            stream=True,
            on_disconnect=on_disconnect or "interrupt",
            idempotency_key=idempotency_key,
        )
        return self._follow(kernel, request, on_input)

    def attach(
        self, kernel: KernelLike, execution_id: str, *, start: int = 0
    ) -> AsyncGenerator[Event, None]:
        """See :meth:`Box.attach`."""
        return self._follow(kernel, attach_request(execution_id, start), None)

    async def _follow(
        self, kernel: KernelLike, request: Frame, on_input: AsyncOnInput | None
    ) -> AsyncGenerator[Event, None]:
        run = self._driver.run
        address = await run(self._calls.address(kernel))
        number = int(request.get("start", 0)) - 1
        answering: list[asyncio.Future[None]] = []
        for last_try in (False, True):
            conversation = Conversation(request)
            try:
                async with self._driver.lines.line(address) as sock:
                    await self._send(sock, conversation.opening())
                    while not conversation.over:
                        for item in conversation.feed(await self._receive(sock)):
                            if isinstance(item, InputWanted):
                                answer = on_input(item.prompt) if on_input else None
                                # Meanwhile the cell may time out or be interrupted.
                                answering.append(
                                    asyncio.ensure_future(self._answer(sock, conversation, answer))
                                )
                            elif isinstance(item, Answer):
                                result = ExecutionResult.from_wire(item.content)
                                yield Event(number + 1, result)
                            elif (shown := shown_item(item)) is not None:
                                number = item.number
                                yield Event(number, shown)
                return
            except ConnectionLost as error:
                if error.connected:
                    result = await run(self._calls.lost_result(kernel, request, error))
                    yield Event(number + 1, result)
                    return
                if last_try:
                    raise
                address = await run(self._calls.fresh_address(kernel))
            finally:
                for task in answering:
                    task.cancel()

    async def _answer(
        self,
        sock: socket.socket,
        conversation: Conversation,
        answer: str | Awaitable[str | None] | None,
    ) -> None:
        if inspect.isawaitable(answer):
            answer = await answer
        await self._send(sock, conversation.answer_input(answer))

    async def execute_with_retry(
        self,
        kernel: KernelLike,
        code: str,
        on_error_fn: AsyncRepair,
        *,
        max_attempts: int | None = None,
        language: str = "python",
        timeout: float | None = None,
        atomic: bool = False,
    ) -> ExecutionResult:
        """See :meth:`Box.execute_with_retry`; ``on_error_fn`` may be a coroutine function."""
        check_repair(on_error_fn)
        rules = attempts(code, self.settings.max_retries if max_attempts is None else max_attempts)
        try:
            step = next(rules)
            while True:
                if isinstance(step, Mend):
                    better = on_error_fn(step.result, step.attempt)
                    if inspect.isawaitable(better):
                        better = await better
                    step = rules.send(better)
                else:
                    step = rules.send(
                        await self.execute(
                            kernel, step.code, language=language, timeout=timeout, atomic=atomic
                        )
                    )
        except StopIteration as end:
            result: ExecutionResult = end.value
            return result

    async def execute_many(
        self,
        cells: Mapping[KernelKey, str],
        *,
        language: str = "python",
        timeout: float | None = None,
        atomic: bool = False,
    ) -> dict[KernelKey, ExecutionResult]:
        """See :meth:`Box.execute_many`."""
        check_cells(cells)
        for kernel in cells:
            await self._driver.run(self._calls.address(kernel))
        results = await asyncio.gather(
            *(
                self.execute(kernel, code, language=language, timeout=timeout, atomic=atomic)
                for kernel, code in cells.items()
            )
        )
        return dict(zip(cells, results, strict=True))

    async def interrupt(self, kernel: KernelLike) -> bool:
        """See :meth:`Box.interrupt`."""
        return bool((await self._ask(kernel, {"op": "interrupt"}))["interrupted"])

    async def cancel(self, kernel: KernelLike, execution_id: str) -> bool:
        """See :meth:`Box.cancel`."""
        reply = await self._ask(kernel, {"op": "cancel", "execution_id": execution_id})
        return bool(reply["cancelled"])

    async def restart(self, kernel: KernelLike) -> KernelRecord:
        """See :meth:`Box.restart`."""
        reply = await self._ask(kernel, {"op": "restart"}, patience=self.settings.start_timeout)
        return KernelRecord.from_wire(reply["record"])

    async def status(self, kernel: KernelLike) -> dict[str, Any]:
        """See :meth:`Box.status`."""
        return await self._ask(kernel, {"op": "status"})

    async def list_kernels(self, *, refresh: bool = False) -> list[KernelRecord]:
        """See :meth:`Box.list_kernels`."""
        return await self._driver.run(self._calls.list_kernels(refresh=refresh))

    @overload
    async def branch(
        self,
        kernel: KernelLike,
        name: str,
        *,
        reseed: bool = False,
        files: str = "share",
        method: str = "auto",
    ) -> KernelRecord: ...

    @overload
    async def branch(
        self,
        kernel: KernelLike,
        *,
        names: Sequence[str],
        reseed: bool = False,
        files: str = "share",
        method: str = "auto",
    ) -> list[KernelRecord]: ...

    async def branch(
        self,
        kernel: KernelLike,
        name: str | None = None,
        *,
        names: Sequence[str] | None = None,
        reseed: bool = False,
        files: str = "share",
        method: str = "auto",
    ) -> KernelRecord | list[KernelRecord]:
        """See :meth:`Box.branch`."""
        chosen = one_or_many(name, names)
        made = await self._driver.run(
            self._calls.branch(kernel, chosen, reseed=reseed, files=files, method=method)
        )
        return made[0] if names is None else made

    async def checkpoint(self, kernel: KernelLike, label: str | None = None) -> str:
        """See :meth:`Box.checkpoint`."""
        request = self._calls.checkpoint_request(label)
        patience = 2 * self.settings.fork_timeout + 5
        return str((await self._ask(kernel, request, patience=patience))["checkpoint_id"])

    async def checkpoints(self, kernel: KernelLike) -> list[Checkpoint]:
        """See :meth:`Box.checkpoints`."""
        reply = await self._ask(kernel, {"op": "checkpoints"})
        return [Checkpoint.from_wire(values) for values in reply["checkpoints"]]

    async def drop_checkpoint(self, kernel: KernelLike, checkpoint: str | Checkpoint) -> None:
        """See :meth:`Box.drop_checkpoint`."""
        wanted = wanted_checkpoint(checkpoint)
        await self._ask(kernel, {"op": "drop_checkpoint", "checkpoint": wanted})

    async def rewind(self, kernel: KernelLike, checkpoint: str | Checkpoint) -> KernelRecord:
        """See :meth:`Box.rewind`."""
        request = {"op": "rewind", "checkpoint": wanted_checkpoint(checkpoint)}
        return KernelRecord.from_wire((await self._ask(kernel, request))["record"])

    async def undo(self, kernel: KernelLike, n: int = 1) -> KernelRecord:
        """See :meth:`Box.undo`."""
        request = {"op": "undo", "cells": check_whole("n", n, least=1)}
        return KernelRecord.from_wire((await self._ask(kernel, request))["record"])

    async def save(self, kernel: KernelLike, path: str) -> SaveReport:
        """See :meth:`Box.save`."""
        return await self._driver.run(self._calls.save(kernel, path))

    async def load(self, name: str, path: str, *, trust: bool = False) -> KernelRecord:
        """See :meth:`Box.load`."""
        return await self._driver.run(self._calls.load(name, path, trust=trust))

    async def install(
        self, kernel: KernelLike, *requirements: str, upgrade: bool = False
    ) -> InstallReport:
        """See :meth:`Box.install`."""
        return await self._driver.run(self._calls.install(kernel, requirements, upgrade=upgrade))

    async def destroy(self, kernel: KernelLike) -> bool:
        """See :meth:`Box.destroy`."""
        return await self._driver.run(self._calls.destroy(kernel))

    async def wipe(self) -> list[str]:
        """See :meth:`Box.wipe`."""
        return await self._driver.run(self._calls.wipe())

    async def output(
        self,
        kernel: KernelLike,
        execution_id: str,
        *,
        stream: str = "stdout",
        start: int = 0,
        length: int = PAGE,
    ) -> OutputPage:
        """See :meth:`Box.output`."""
        check_whole("start", start)
        check_whole("length", length, least=1)
        reader = await self._reader(kernel, execution_id, stream)
        return await asyncio.to_thread(reader.page, stream, start=start, length=length)

    async def search_output(
        self,
        kernel: KernelLike,
        execution_id: str,
        pattern: str,
        *,
        stream: str = "stdout",
        limit: int = 20,
    ) -> list[OutputMatch]:
        """See :meth:`Box.search_output`."""
        check_pattern(pattern)
        check_whole("limit", limit, least=1)
        reader = await self._reader(kernel, execution_id, stream)
        return reader.search(pattern, stream=stream, limit=limit)

    async def complete(
        self, kernel: KernelLike, code: str, *, cursor: int | None = None
    ) -> list[str]:
        """See :meth:`Box.complete`."""
        fields = {"code": code, "cursor_pos": len(code) if cursor is None else cursor}
        reply = await self._ask(kernel, {"op": "ask", "what": "complete", "fields": fields})
        return list(reply.get("matches", ()))

    async def _reader(self, kernel: KernelLike, execution_id: str, stream: str) -> SpoolReader:
        check_stream(stream)
        return SpoolReader(await self._ask(kernel, {"op": "spool", "execution_id": execution_id}))

    async def _ask(self, kernel: KernelLike, request: Frame, *, patience: float = 60.0) -> Frame:
        return await self._driver.run(self._calls.kernel(kernel, request, patience=patience))
