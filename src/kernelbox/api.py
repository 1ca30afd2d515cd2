"""The module-level functions, over one default Box that follows the environment."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from kernelbox.box import Box, OnInput
from kernelbox.client.calls import KernelLike
from kernelbox.config import Settings
from kernelbox.result import ExecutionResult, KernelRecord, OutputItem
from kernelbox.retry import Repair
from kernelbox.spool import OutputMatch, OutputPage

_boxes: dict[Settings, Box] = {}
_MOST_BOXES = 16


def default_box() -> Box:
    """The Box for the environment and the working directory of now."""
    settings = Settings.from_environment(os.environ)
    box = _boxes.get(settings)
    if box is None:
        while len(_boxes) >= _MOST_BOXES:
            _boxes.pop(next(iter(_boxes))).close()
        box = _boxes[settings] = Box(settings)
    return box


def get_or_create(
    name: str,
    *,
    session_name: str | None = None,
    tags: Mapping[str, Any] | list[str] | None = None,
    cwd: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> KernelRecord:
    """The live kernel of that name, made if it is not there. See :meth:`Box.get_or_create`."""
    return default_box().get_or_create(
        name, session_name=session_name, tags=tags, cwd=cwd, environ=environ
    )


def execute(
    kernel: KernelLike,
    code: str,
    *,
    language: str = "python",
    timeout: float | None = None,
    expect_epoch: int | None = None,
    execution_id: str | None = None,
    on_input: OnInput | None = None,
) -> ExecutionResult:
    """Run code in a kernel and wait for its result. See :meth:`Box.execute`."""
    return default_box().execute(
        kernel,
        code,
        language=language,
        timeout=timeout,
        expect_epoch=expect_epoch,
        execution_id=execution_id,
        on_input=on_input,
    )


def stream(
    kernel: KernelLike,
    code: str,
    *,
    language: str = "python",
    timeout: float | None = None,
    expect_epoch: int | None = None,
    execution_id: str | None = None,
    on_input: OnInput | None = None,
) -> Iterator[OutputItem | ExecutionResult]:
    """Output items as they happen, the result last. See :meth:`Box.stream`."""
    return default_box().stream(
        kernel,
        code,
        language=language,
        timeout=timeout,
        expect_epoch=expect_epoch,
        execution_id=execution_id,
        on_input=on_input,
    )


def execute_with_retry(
    kernel: KernelLike,
    code: str,
    on_error_fn: Repair,
    *,
    max_attempts: int | None = None,
    language: str = "python",
    timeout: float | None = None,
) -> ExecutionResult:
    """Run code and let the caller repair it. See :meth:`Box.execute_with_retry`."""
    return default_box().execute_with_retry(
        kernel, code, on_error_fn, max_attempts=max_attempts, language=language, timeout=timeout
    )


def interrupt(kernel: KernelLike) -> bool:
    """Interrupt what runs now. See :meth:`Box.interrupt`."""
    return default_box().interrupt(kernel)


def cancel(kernel: KernelLike, execution_id: str) -> bool:
    """Dequeue or interrupt one execution. See :meth:`Box.cancel`."""
    return default_box().cancel(kernel, execution_id)


def restart(kernel: KernelLike) -> KernelRecord:
    """A fresh namespace under the same name. See :meth:`Box.restart`."""
    return default_box().restart(kernel)


def status(kernel: KernelLike) -> dict[str, Any]:
    """What a kernel is doing. See :meth:`Box.status`."""
    return default_box().status(kernel)


def list_kernels(*, refresh: bool = False) -> list[KernelRecord]:
    """The kernels of this home. See :meth:`Box.list_kernels`."""
    return default_box().list_kernels(refresh=refresh)


def branch(kernel: KernelLike, name: str) -> KernelRecord:
    """A copy of a live kernel under a new name. See :meth:`Box.branch`."""
    return default_box().branch(kernel, name)


def destroy(kernel: KernelLike) -> bool:
    """End a kernel. See :meth:`Box.destroy`."""
    return default_box().destroy(kernel)


def wipe() -> list[str]:
    """Destroy every kernel of this home. See :meth:`Box.wipe`."""
    return default_box().wipe()


def output(
    kernel: KernelLike,
    execution_id: str,
    *,
    stream: str = "stdout",
    start: int = 0,
    length: int = 10_000,
) -> OutputPage:
    """A page of an execution's whole output. See :meth:`Box.output`."""
    return default_box().output(kernel, execution_id, stream=stream, start=start, length=length)


def search_output(
    kernel: KernelLike, execution_id: str, pattern: str, *, stream: str = "stdout", limit: int = 20
) -> list[OutputMatch]:
    """Search an execution's whole output. See :meth:`Box.search_output`."""
    return default_box().search_output(kernel, execution_id, pattern, stream=stream, limit=limit)
