"""The errors that KernelBox itself raises. Failures of *user* code are results, not exceptions.

::

    BoxError
    ├── BadInput            a name, number, language or code that cannot be used (also a ValueError)
    ├── KernelNotFound      no such kernel, and there never was (also a LookupError)
    │   └── KernelLost      there was one; it says when and why it ended
    ├── CheckpointNotFound  no such checkpoint of that kernel (also a LookupError)
    ├── ExecutionNotFound   no such execution of that kernel is kept (also a LookupError)
    ├── KeyReused           an idempotency key came again with another request
    ├── EpochMismatch       the namespace is not the one the caller expects; nothing was run
    ├── StartupFailed       a kernel could not be started, or its startup code failed
    ├── InstallFailed       packages could not be installed, and why
    ├── Unsupported         this kernel or this machine cannot do that, and why
    └── KeeperUnavailable   the keeper could not be started or did not answer

Each message says what happened, to which thing, and what to do now. Errors travel over sockets as
``{"error": <class name>, "message": …, "details": {…}}``.
"""

from __future__ import annotations

from typing import Any


class BoxError(Exception):
    """Any failure of KernelBox itself; catch this to catch them all."""

    def __init__(self, message: str, /, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class BadInput(BoxError, ValueError):
    """Raised before anything is started or run: correct the argument and call again."""


class KernelNotFound(BoxError, LookupError):
    """Raised for a name or id that no kernel has; the message names the kernels that exist."""


class KernelLost(KernelNotFound):
    """Raised for a kernel that ended by itself (idle, killed, …), state and all; make a new one."""


class CheckpointNotFound(BoxError, LookupError):
    """Raised for a checkpoint that is not there; the message names those that are."""


class ExecutionNotFound(BoxError, LookupError):
    """Raised for an execution that a kernel never had, or whose output is not kept any more."""


class KeyReused(BoxError):
    """Raised when an idempotency key comes again with another request. Nothing was run."""


class EpochMismatch(BoxError):
    """Raised when ``expect_epoch`` is wrong. Nothing was run; ``details`` has the true epoch."""


class StartupFailed(BoxError):
    """Raised when a kernel does not come up, or ``KERNELBOX_STARTUP_CODE`` fails in it."""


class InstallFailed(BoxError):
    """Raised when packages are not installed; ``details["reason"]`` is one word for a program."""


class Unsupported(BoxError):
    """Raised when the kernel type or the machine cannot do what was asked for."""


class KeeperUnavailable(BoxError):
    """Raised when the keeper cannot be started or reached; the message says what is in the way."""


_BY_NAME: dict[str, type[BoxError]] = {
    cls.__name__: cls
    for cls in (
        BoxError,
        BadInput,
        KernelNotFound,
        KernelLost,
        CheckpointNotFound,
        ExecutionNotFound,
        KeyReused,
        EpochMismatch,
        StartupFailed,
        InstallFailed,
        Unsupported,
        KeeperUnavailable,
    )
}


def to_wire(error: BoxError) -> dict[str, Any]:
    """An error as the dict that crosses a socket."""
    return {"error": type(error).__name__, "message": error.message, "details": error.details}


def from_wire(frame: dict[str, Any]) -> BoxError:
    """The error that a peer sent; an unknown class (a newer peer) becomes a plain BoxError."""
    cls = _BY_NAME.get(str(frame.get("error")), BoxError)
    return cls(str(frame.get("message", "the peer gave no reason")), **(frame.get("details") or {}))


_LONGEST_SHOWN = 128


def in_short(value: object) -> str:
    """A value in an error message: never a page of it."""
    if isinstance(value, str):
        cut = value[:_LONGEST_SHOWN]
        return repr(cut) if cut == value else f"{cut!r}… ({len(value):,} characters)"
    small = isinstance(value, int) and value.bit_length() < 64
    if value is None or small or isinstance(value, float):
        return repr(value)
    return f"a value of type {type(value).__name__}"
