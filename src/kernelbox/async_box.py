"""AsyncBox: the methods of :class:`kernelbox.Box`, awaited, over the same calls.

Written by ``scripts/make_api.py`` from ``box.py``; change them there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, overload

from kernelbox.client import aio, creating, executing, kernels
from kernelbox.client.calls import Calls
from kernelbox.client.meaning import AsyncOnInput, AsyncRepair, KernelKey, KernelLike, ProfileLike
from kernelbox.config import Settings
from kernelbox.result import (
    Checkpoint,
    Event,
    ExecutionResult,
    InstallReport,
    KernelRecord,
    OutputItem,
    OutputMatch,
    OutputPage,
    SaveReport,
)


class AsyncBox:
    """The same as :class:`Box`, awaited; the methods are explained there.

    Cancelling a call, or the task that awaits it, interrupts its cell.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        """``settings`` default to the environment as it is now."""
        self.settings = settings or Settings.from_environment()
        self._calls = Calls(self.settings, on_disconnect="interrupt")
        self._driver = aio.AsyncDriver()

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
            creating.get_or_create(
                self._calls,
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
        request = executing.execute_request(
            self._calls,
            code,
            language=language,
            timeout=timeout,
            expect_epoch=expect_epoch,
            execution_id=execution_id,
            atomic=atomic,
            stdin=on_input is not None,
            on_disconnect=on_disconnect,
            idempotency_key=idempotency_key,
        )
        return await self._driver.run(executing.execute(self._calls, kernel, request, on_input))

    def stream(
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
        return self._driver.items(
            self.events(
                kernel,
                code,
                language=language,
                timeout=timeout,
                expect_epoch=expect_epoch,
                execution_id=execution_id,
                atomic=atomic,
                on_input=on_input,
            )
        )

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
        request = executing.execute_request(
            self._calls,
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
        return self._driver.follow(self._calls, kernel, request, on_input)

    def attach(
        self, kernel: KernelLike, execution_id: str, *, start: int = 0
    ) -> AsyncGenerator[Event, None]:
        """See :meth:`Box.attach`."""
        request = executing.attach_request(execution_id, start)
        return self._driver.follow(self._calls, kernel, request, None)

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
        return await self._driver.run(
            executing.execute_with_retry(
                self._calls,
                kernel,
                code,
                on_error_fn,
                max_attempts=max_attempts,
                language=language,
                timeout=timeout,
                atomic=atomic,
            )
        )

    async def execute_many(
        self,
        cells: Mapping[KernelKey, str],
        *,
        language: str = "python",
        timeout: float | None = None,
        atomic: bool = False,
    ) -> dict[KernelKey, ExecutionResult]:
        """See :meth:`Box.execute_many`."""
        return await self._driver.run(
            executing.execute_many(
                self._calls, cells, language=language, timeout=timeout, atomic=atomic
            )
        )

    async def interrupt(self, kernel: KernelLike) -> bool:
        """See :meth:`Box.interrupt`."""
        return await self._driver.run(kernels.interrupt(self._calls, kernel))

    async def cancel(self, kernel: KernelLike, execution_id: str) -> bool:
        """See :meth:`Box.cancel`."""
        return await self._driver.run(kernels.cancel(self._calls, kernel, execution_id))

    async def restart(self, kernel: KernelLike) -> KernelRecord:
        """See :meth:`Box.restart`."""
        return await self._driver.run(kernels.restart(self._calls, kernel))

    async def status(self, kernel: KernelLike) -> dict[str, Any]:
        """See :meth:`Box.status`."""
        return await self._driver.run(kernels.status(self._calls, kernel))

    async def list_kernels(self, *, refresh: bool = False) -> list[KernelRecord]:
        """See :meth:`Box.list_kernels`."""
        return await self._driver.run(kernels.list_kernels(self._calls, refresh=refresh))

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
        from kernelbox.client import timetravel

        chosen = timetravel.one_or_many(name, names)
        made = await self._driver.run(
            timetravel.branch(
                self._calls, kernel, chosen, reseed=reseed, files=files, method=method
            )
        )
        return made[0] if names is None else made

    async def checkpoint(self, kernel: KernelLike, label: str | None = None) -> str:
        """See :meth:`Box.checkpoint`."""
        from kernelbox.client import timetravel

        return await self._driver.run(timetravel.checkpoint(self._calls, kernel, label))

    async def checkpoints(self, kernel: KernelLike) -> list[Checkpoint]:
        """See :meth:`Box.checkpoints`."""
        from kernelbox.client import timetravel

        return await self._driver.run(timetravel.checkpoints(self._calls, kernel))

    async def drop_checkpoint(self, kernel: KernelLike, checkpoint: str | Checkpoint) -> None:
        """See :meth:`Box.drop_checkpoint`."""
        from kernelbox.client import timetravel

        return await self._driver.run(timetravel.drop_checkpoint(self._calls, kernel, checkpoint))

    async def rewind(self, kernel: KernelLike, checkpoint: str | Checkpoint) -> KernelRecord:
        """See :meth:`Box.rewind`."""
        from kernelbox.client import timetravel

        return await self._driver.run(timetravel.rewind(self._calls, kernel, checkpoint))

    async def undo(self, kernel: KernelLike, n: int = 1) -> KernelRecord:
        """See :meth:`Box.undo`."""
        from kernelbox.client import timetravel

        return await self._driver.run(timetravel.undo(self._calls, kernel, n))

    async def save(self, kernel: KernelLike, path: str) -> SaveReport:
        """See :meth:`Box.save`."""
        from kernelbox.client import sessions

        return await self._driver.run(sessions.save(self._calls, kernel, path))

    async def load(self, name: str, path: str, *, trust: bool = False) -> KernelRecord:
        """See :meth:`Box.load`."""
        from kernelbox.client import sessions

        return await self._driver.run(sessions.load(self._calls, name, path, trust=trust))

    async def install(
        self, kernel: KernelLike, *requirements: str, upgrade: bool = False
    ) -> InstallReport:
        """See :meth:`Box.install`."""
        from kernelbox.client import installing

        return await self._driver.run(
            installing.install(self._calls, kernel, requirements, upgrade=upgrade)
        )

    async def destroy(self, kernel: KernelLike) -> bool:
        """See :meth:`Box.destroy`."""
        return await self._driver.run(kernels.destroy(self._calls, kernel))

    async def wipe(self) -> list[str]:
        """See :meth:`Box.wipe`."""
        return await self._driver.run(kernels.wipe(self._calls))

    async def output(
        self,
        kernel: KernelLike,
        execution_id: str,
        *,
        stream: str = "stdout",
        start: int = 0,
        length: int = 10000,
    ) -> OutputPage:
        """See :meth:`Box.output`."""
        from kernelbox.client import reading

        return await self._driver.run(
            reading.output(
                self._calls, kernel, execution_id, stream=stream, start=start, length=length
            )
        )

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
        from kernelbox.client import reading

        return await self._driver.run(
            reading.search_output(
                self._calls, kernel, execution_id, pattern, stream=stream, limit=limit
            )
        )

    async def complete(
        self, kernel: KernelLike, code: str, *, cursor: int | None = None
    ) -> list[str]:
        """See :meth:`Box.complete`."""
        return await self._driver.run(kernels.complete(self._calls, kernel, code, cursor))
