"""Exit codes, in one table, and what a person can do about each kind of failure."""

from __future__ import annotations

import shlex

from kernelbox.errors import (
    BadInput,
    BoxError,
    CheckpointNotFound,
    EpochMismatch,
    ExecutionNotFound,
    InstallFailed,
    KeeperUnavailable,
    KernelLost,
    KernelNotFound,
    KeyReused,
    StartupFailed,
    Unsupported,
)

DONE = 0
CODE_FAILED = 1
USAGE = 2
NOT_FOUND = 3
LOST = 4
EPOCH_MISMATCH = 5
BAD_INPUT = 6
STARTUP_FAILED = 7
UNSUPPORTED = 8
KEEPER_UNAVAILABLE = 9
FAILED = 10
INSTALL_FAILED = 11
HUNG_UP = 129
INTERRUPTED = 130
PIPE_CLOSED = 141
TERMINATED = 143

MEANINGS: dict[int, str] = {
    DONE: "done",
    CODE_FAILED: "the code failed: an error, a timeout or a crash; the result says which",
    USAGE: "the command line was not understood; nothing was done",
    NOT_FOUND: "no such kernel, checkpoint, execution or file",
    LOST: "the kernel ended by itself, and its variables with it",
    EPOCH_MISMATCH: "--expect-epoch names another epoch than the kernel's; nothing was run",
    BAD_INPUT: "a value cannot be used; nothing was done",
    STARTUP_FAILED: "a kernel did not come up, or its startup code failed",
    UNSUPPORTED: "this kernel, machine or installation cannot do that",
    KEEPER_UNAVAILABLE: "the keeper could not be started or reached",
    FAILED: "anything else that went wrong on our side",
    INSTALL_FAILED: "packages could not be installed; the message says why",
    HUNG_UP: "the terminal went away; the cell was interrupted",
    INTERRUPTED: "Ctrl-C; the cell was interrupted",
    PIPE_CLOSED: "whoever read our output closed the pipe",
    TERMINATED: "SIGTERM; the cell was interrupted",
}

# The first that fits counts, so a class comes before its parent.
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (KernelLost, LOST),
    (KernelNotFound, NOT_FOUND),
    (CheckpointNotFound, NOT_FOUND),
    (ExecutionNotFound, NOT_FOUND),
    (EpochMismatch, EPOCH_MISMATCH),
    (BadInput, BAD_INPUT),
    (KeyReused, BAD_INPUT),
    (StartupFailed, STARTUP_FAILED),
    (InstallFailed, INSTALL_FAILED),
    (Unsupported, UNSUPPORTED),
    (KeeperUnavailable, KEEPER_UNAVAILABLE),
    (FileNotFoundError, NOT_FOUND),
)


def code_of(error: BaseException) -> int:
    """The exit code of a failure of ours."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def hint_for(error: BaseException, *, command: str, name: str | None) -> str:
    """What to do next, as a command line where there is one."""
    which = f"--name {shlex.quote(name)}" if name else "--name NAME"
    if isinstance(error, KernelLost):
        lost = error.details.get("name")
        fresh = f"--name {shlex.quote(lost)}" if isinstance(lost, str) else which
        return f"kernelbox create {fresh} makes a new one; its variables have to be made again"
    if isinstance(error, KernelNotFound):
        return f"kernelbox list shows the kernels here; kernelbox create {which} makes one"
    if isinstance(error, CheckpointNotFound):
        return f"kernelbox checkpoints {which} shows what there is to go back to"
    if isinstance(error, ExecutionNotFound):
        return "the execution_id is in the line that kernelbox exec printed"
    if isinstance(error, EpochMismatch):
        return (
            "make the variables again, then send "
            f"--expect-epoch {error.details.get('epoch', 'N')}, or leave the option out"
        )
    if isinstance(error, KeyReused):
        return "use another key for another request"
    if isinstance(error, BadInput):
        return f"kernelbox {command} --help shows what it takes"
    if isinstance(error, StartupFailed):
        return "kernelbox logs shows what was said meanwhile; kernelbox doctor checks this machine"
    if isinstance(error, InstallFailed):
        return "nothing was changed; correct the names or versions, then ask again"
    if isinstance(error, Unsupported):
        hint = error.details.get("hint")
        return str(hint) if hint else "kernelbox doctor says what works on this machine"
    if isinstance(error, KeeperUnavailable):
        return "kernelbox logs shows the keeper's last words; kernelbox doctor checks this machine"
    if isinstance(error, BoxError):
        return f"try again; kernelbox status {which} says what the kernel is doing"
    if isinstance(error, FileNotFoundError):
        return "check the path"
    return "kernelbox doctor checks this machine"
