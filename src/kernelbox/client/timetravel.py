"""A kernel's other times: branches, checkpoints, and the way back to them."""

from __future__ import annotations

from collections.abc import Sequence

from kernelbox.client.calls import START_MARGIN, Calls
from kernelbox.client.effects import Call
from kernelbox.client.meaning import KernelLike, wanted_checkpoint
from kernelbox.config.checks import check_choice, check_flag, check_label, check_name, check_whole
from kernelbox.errors import BadInput, in_short
from kernelbox.result import Checkpoint, KernelRecord
from kernelbox.wire import Frame


def branch(
    calls: Calls,
    kernel: KernelLike,
    names: Sequence[str],
    *,
    reseed: bool,
    files: str,
    method: str,
) -> Call[list[KernelRecord]]:
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise BadInput(f"names is a list of names for the branches, not {in_short(names)}")
    if not names:
        raise BadInput("names is empty; give each branch a name: names=['a', 'b']")
    check_flag("reseed", reseed)
    for name in names:
        check_name(name)
    check_choice("files", files, ("share", "copy"))
    check_choice("method", method, ("auto", "fork", "copy"))
    settings = calls.settings
    reply = yield from calls.keeper_on(
        kernel,
        {
            "op": "branch",
            "names": list(names),
            "reseed": reseed,
            "files": files,
            "method": method,
        },
        patience=settings.fork_timeout + settings.start_timeout + START_MARGIN,
    )
    return [calls.remember(record) for record in reply["records"]]


def one_or_many(name: str | None, names: Sequence[str] | None) -> Sequence[str]:
    """The names of the branches that somebody wants."""
    if (name is None) == (names is None) or isinstance(name, list | tuple):
        raise BadInput("branch takes a name, or names=[…] for many at once")
    return [name] if name is not None else names or []


def checkpoint(calls: Calls, kernel: KernelLike, label: str | None) -> Call[str]:
    settings = calls.settings
    request = {
        "op": "checkpoint",
        "label": check_label(label),
        "most": settings.max_checkpoints,
        "patience": settings.fork_timeout,
    }
    reply = yield from calls.kernel(kernel, request, patience=2 * settings.fork_timeout + 5)
    return str(reply["checkpoint_id"])


def checkpoints(calls: Calls, kernel: KernelLike) -> Call[list[Checkpoint]]:
    reply = yield from calls.kernel(kernel, {"op": "checkpoints"})
    return [Checkpoint.from_wire(values) for values in reply["checkpoints"]]


def drop_checkpoint(calls: Calls, kernel: KernelLike, checkpoint: str | Checkpoint) -> Call[None]:
    request = {"op": "drop_checkpoint", "checkpoint": wanted_checkpoint(checkpoint)}
    yield from calls.kernel(kernel, request)


def rewind(calls: Calls, kernel: KernelLike, checkpoint: str | Checkpoint) -> Call[KernelRecord]:
    request = {"op": "rewind", "checkpoint": wanted_checkpoint(checkpoint)}
    return (yield from _back(calls, kernel, request))


def undo(calls: Calls, kernel: KernelLike, cells: int) -> Call[KernelRecord]:
    request = {"op": "undo", "cells": check_whole("n", cells, least=1)}
    return (yield from _back(calls, kernel, request))


def _back(calls: Calls, kernel: KernelLike, request: Frame) -> Call[KernelRecord]:
    reply = yield from calls.kernel(kernel, request)
    return KernelRecord.from_wire(reply["record"])
