"""What callers pass, and what they mean by it: kernels, walls, checkpoints, executions, answers."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Union

from kernelbox.errors import BadInput, in_short
from kernelbox.result import Checkpoint, ExecutionResult, KernelRecord

KernelLike = KernelRecord | str
KernelKey = TypeVar("KernelKey", str, KernelRecord)
"""What results of many kernels come back under: what their code was given under."""
if TYPE_CHECKING:
    from kernelbox.walls.profiles import Profile

    ProfileLike = Profile | str | Mapping[str, Any] | os.PathLike[str]
else:
    # Only who asks for the types of a function loads the walls: ``typing.get_type_hints`` does.
    ProfileLike = Union["__import__('kernelbox').Profile", str, Mapping[str, Any], os.PathLike[str]]
"""Walls: a profile, its name, the same as plain data, or the path of a file that has it."""
OnInput = Callable[[str], str | None]
"""Answers ``input(prompt)`` in a cell; None: there is no answer."""
AsyncOnInput = Callable[[str], str | Awaitable[str | None] | None]
"""Answers ``input(prompt)`` in a cell, at once or awaited; None: there is no answer."""
Repair = Callable[[ExecutionResult, int], str | None]
"""Told a failure and the number of the attempt: better code, or None for the same again."""
AsyncRepair = Callable[[ExecutionResult, int], str | Awaitable[str | None] | None]
"""The same, at once or awaited."""


def wanted_kernel(kernel: object) -> str:
    """What to look a kernel up by: a record means its id, a string an id or a name."""
    if isinstance(kernel, KernelRecord):
        return kernel.kernel_id
    if isinstance(kernel, str):
        if not kernel:
            raise BadInput("a kernel is meant by its record, its name or its id, not by ''")
        return kernel
    raise BadInput(f"a kernel is a KernelRecord, a name or an id, not {type(kernel).__name__}")


def wanted_checkpoint(checkpoint: object) -> str:
    """What a checkpoint is looked up by: its id or its label."""
    if isinstance(checkpoint, Checkpoint):
        return checkpoint.checkpoint_id
    if not isinstance(checkpoint, str) or not checkpoint:
        raise BadInput(f"a checkpoint is meant by its id or label, not by {in_short(checkpoint)}")
    return checkpoint


def check_meant(execution_id: object) -> None:
    """An execution is meant by its id; a whole result is easily passed instead."""
    if isinstance(execution_id, ExecutionResult):
        raise BadInput("execution_id is a string, not a whole result; pass result.execution_id")
    if not isinstance(execution_id, str):
        raise BadInput(
            f"execution_id is a string, not {in_short(execution_id)}; pass result.execution_id"
        )
