"""Box, which every entrance calls: the kernels of a home. ``async_box.py`` is the same, awaited."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kernelbox.client import blocking
from kernelbox.client.calls import Calls, KernelLike
from kernelbox.client.conversation import (
    Answer,
    ConnectionLost,
    Conversation,
    Happened,
    InputWanted,
)
from kernelbox.config import Settings
from kernelbox.errors import BadInput
from kernelbox.result import ExecutionResult, KernelRecord, OutputItem
from kernelbox.retry import Repair, Run, attempts
from kernelbox.spool import OutputMatch, OutputPage, SpoolReader
from kernelbox.wire import Frame

OnInput = Callable[[str], str | None]
_SHOWN = {
    "stream",
    "display_data",
    "update_display_data",
    "execute_result",
    "clear_output",
    "error",
}
PAGE = 10_000


class Box:
    """A home of named kernels. Safe to share between threads; nothing runs until it is asked."""

    def __init__(self, settings: Settings | None = None) -> None:
        """``settings`` default to the environment as it is now."""
        self.settings = settings or Settings.from_environment()
        self._calls = Calls(self.settings)
        self._driver = blocking.BlockingDriver()

    def __enter__(self) -> Box:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Kernels live on."""
        self._driver.lines.close()

    def get_or_create(
        self,
        name: str,
        *,
        session_name: str | None = None,
        tags: Mapping[str, Any] | list[str] | None = None,
        cwd: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> KernelRecord:
        """The live kernel of that name, made if it is not there.

        A new kernel starts in ``cwd`` with ``environ`` (this process's by default). If one of that
        name ended by itself since, ``record.state`` is ``"lost"`` and ``record.cause`` says why.
        """
        return self._driver.run(
            self._calls.get_or_create(
                name, session_name=session_name, tags=tags, cwd=cwd, environ=environ
            )
        )

    def execute(
        self,
        kernel: KernelLike,
        code: str,
        *,
        language: str = "python",
        timeout: float | None = None,
        expect_epoch: int | None = None,
        execution_id: str | None = None,
        on_input: OnInput | None = None,
    ) -> ExecutionResult:
        """Run code and wait for its result. What the code does wrong is in the result; only our
        own failures raise. ``on_input(prompt)`` answers ``input()`` in the code."""
        if on_input is not None:
            *_, result = self.stream(
                kernel,
                code,
                language=language,
                timeout=timeout,
                expect_epoch=expect_epoch,
                execution_id=execution_id,
                on_input=on_input,
            )
            assert isinstance(result, ExecutionResult)
            return result
        request = self._calls.execute_request(
            code,
            language=language,
            timeout=timeout,
            expect_epoch=expect_epoch,
            execution_id=execution_id,
        )
        return self._driver.run(self._calls.execute(kernel, request))

    def stream(
        self,
        kernel: KernelLike,
        code: str,
        *,
        language: str = "python",
        timeout: float | None = None,
        expect_epoch: int | None = None,
        execution_id: str | None = None,
        on_input: OnInput | None = None,
    ) -> Iterator[OutputItem | ExecutionResult]:
        """Output items as they happen, the :class:`ExecutionResult` last. Leaving early interrupts
        the cell."""
        request = self._calls.execute_request(
            code,
            language=language,
            timeout=timeout,
            expect_epoch=expect_epoch,
            execution_id=execution_id,
            stdin=on_input is not None,
            stream=True,
            on_disconnect="interrupt",
        )
        return self._stream(kernel, request, on_input)

    def _stream(
        self, kernel: KernelLike, request: Frame, on_input: OnInput | None
    ) -> Iterator[OutputItem | ExecutionResult]:
        run = self._driver.run
        address = run(self._calls.address(kernel))
        for last_try in (False, True):
            conversation = Conversation(request)
            try:
                with self._driver.lines.line(address, patience=None) as sock:
                    for item in blocking.converse(sock, conversation):
                        if isinstance(item, InputWanted):
                            answer = on_input(item.prompt) if on_input else None
                            sock.sendall(conversation.answer_input(answer))
                        elif isinstance(item, Answer):
                            yield ExecutionResult.from_wire(item.content)
                        elif (shown := shown_item(item)) is not None:
                            yield shown
                return
            except ConnectionLost as error:
                if error.connected:
                    yield run(self._calls.lost_result(kernel, request, error))
                    return
                if last_try:
                    raise
                address = run(self._calls.fresh_address(kernel))

    def execute_with_retry(
        self,
        kernel: KernelLike,
        code: str,
        on_error_fn: Repair,
        *,
        max_attempts: int | None = None,
        language: str = "python",
        timeout: float | None = None,
    ) -> ExecutionResult:
        """Run code; on failure run what ``on_error_fn(result, attempt)`` returns (None: the same
        again), at most ``max_attempts`` times in all."""
        rules = attempts(code, self.settings.max_retries if max_attempts is None else max_attempts)
        try:
            step = next(rules)
            while True:
                if isinstance(step, Run):
                    step = rules.send(
                        self.execute(kernel, step.code, language=language, timeout=timeout)
                    )
                else:
                    step = rules.send(on_error_fn(step.result, step.attempt))
        except StopIteration as end:
            result: ExecutionResult = end.value
            return result

    def interrupt(self, kernel: KernelLike) -> bool:
        """Interrupt what runs now; False if nothing did."""
        return bool(self._ask(kernel, {"op": "interrupt"})["interrupted"])

    def cancel(self, kernel: KernelLike, execution_id: str) -> bool:
        """Dequeue or interrupt that execution and no other."""
        return bool(self._ask(kernel, {"op": "cancel", "execution_id": execution_id})["cancelled"])

    def restart(self, kernel: KernelLike) -> KernelRecord:
        """A fresh namespace under the same name and id."""
        reply = self._ask(kernel, {"op": "restart"}, patience=self.settings.start_timeout)
        return KernelRecord.from_wire(reply["record"])

    def status(self, kernel: KernelLike) -> dict[str, Any]:
        """What a kernel is doing: its record, processes, queue, and while a cell runs its stack."""
        return self._ask(kernel, {"op": "status"})

    def list_kernels(self, *, refresh: bool = False) -> list[KernelRecord]:
        """The kernels of this home; ``refresh`` asks each for its state of now."""
        return self._driver.run(self._calls.list_kernels(refresh=refresh))

    def branch(self, kernel: KernelLike, name: str) -> KernelRecord:
        """A copy of a live kernel under a new name: same variables, separate from now on."""
        return self._driver.run(self._calls.branch(kernel, name))

    def destroy(self, kernel: KernelLike) -> bool:
        """End a kernel and all its processes; False if there was none."""
        return self._driver.run(self._calls.destroy(kernel))

    def wipe(self) -> list[str]:
        """Destroy every kernel of this home; their ids are returned."""
        return self._driver.run(self._calls.wipe())

    def output(
        self,
        kernel: KernelLike,
        execution_id: str,
        *,
        stream: str = "stdout",
        start: int = 0,
        length: int = PAGE,
    ) -> OutputPage:
        """A page of an execution's whole output, also of what its result left out."""
        check_length(length)
        return self._reader(kernel, execution_id, stream).page(stream, start=start, length=length)

    def search_output(
        self,
        kernel: KernelLike,
        execution_id: str,
        pattern: str,
        *,
        stream: str = "stdout",
        limit: int = 20,
    ) -> list[OutputMatch]:
        """The lines of an execution's whole output that match a regular expression."""
        check_pattern(pattern)
        return self._reader(kernel, execution_id, stream).search(
            pattern, stream=stream, limit=limit
        )

    def complete(self, kernel: KernelLike, code: str, *, cursor: int | None = None) -> list[str]:
        """What the code could go on with at ``cursor`` (its end by default)."""
        fields = {"code": code, "cursor_pos": len(code) if cursor is None else cursor}
        reply = self._ask(kernel, {"op": "ask", "what": "complete", "fields": fields})
        return list(reply.get("matches", ()))

    def _reader(self, kernel: KernelLike, execution_id: str, stream: str) -> SpoolReader:
        check_stream(stream)
        return SpoolReader(self._ask(kernel, {"op": "spool", "execution_id": execution_id}))

    def _ask(self, kernel: KernelLike, request: Frame, *, patience: float = 60.0) -> Frame:
        return self._driver.run(self._calls.kernel(kernel, request, patience=patience))


def shown_item(item: Happened) -> OutputItem | None:
    """An event as a caller sees it; what only matters between machines is passed over."""
    if item.event.get("kind") not in _SHOWN:
        return None
    shown = OutputItem.from_wire(item.event)
    if shown.text is None:
        shown.text = shown.data.get("text/plain")
    return shown


def check_stream(stream: str) -> None:
    if stream not in ("stdout", "stderr"):
        raise BadInput(f"stream is 'stdout' or 'stderr', not {stream!r}")


def check_length(length: int) -> None:
    if length < 1:
        raise BadInput(f"a page has a length from 1 on, not {length!r}")


def check_pattern(pattern: str) -> None:
    import re

    try:
        re.compile(pattern)
    except re.error as error:
        raise BadInput(f"{pattern!r} is no regular expression: {error}") from None
