"""KernelBox: a named Python that never forgets, for agents.

The public names are imported on first use, so that ``import kernelbox`` costs next to nothing.
"""

from typing import TYPE_CHECKING

__version__ = "0.2.0"

if TYPE_CHECKING:
    from kernelbox.api import (
        branch as branch,
    )
    from kernelbox.api import (
        cancel as cancel,
    )
    from kernelbox.api import (
        destroy as destroy,
    )
    from kernelbox.api import (
        execute as execute,
    )
    from kernelbox.api import (
        execute_with_retry as execute_with_retry,
    )
    from kernelbox.api import (
        get_or_create as get_or_create,
    )
    from kernelbox.api import (
        interrupt as interrupt,
    )
    from kernelbox.api import (
        list_kernels as list_kernels,
    )
    from kernelbox.api import (
        output as output,
    )
    from kernelbox.api import (
        restart as restart,
    )
    from kernelbox.api import (
        search_output as search_output,
    )
    from kernelbox.api import (
        status as status,
    )
    from kernelbox.api import (
        stream as stream,
    )
    from kernelbox.api import (
        wipe as wipe,
    )
    from kernelbox.box import AsyncBox as AsyncBox
    from kernelbox.box import Box as Box
    from kernelbox.config import Settings as Settings
    from kernelbox.errors import (
        BadInput as BadInput,
    )
    from kernelbox.errors import (
        BoxError as BoxError,
    )
    from kernelbox.errors import (
        EpochMismatch as EpochMismatch,
    )
    from kernelbox.errors import (
        KernelLost as KernelLost,
    )
    from kernelbox.errors import (
        KernelNotFound as KernelNotFound,
    )
    from kernelbox.errors import (
        KeeperUnavailable as KeeperUnavailable,
    )
    from kernelbox.errors import (
        StartupFailed as StartupFailed,
    )
    from kernelbox.errors import (
        Unsupported as Unsupported,
    )
    from kernelbox.result import (
        AttemptSnapshot as AttemptSnapshot,
    )
    from kernelbox.result import (
        ErrorInfo as ErrorInfo,
    )
    from kernelbox.result import (
        ExecutionResult as ExecutionResult,
    )
    from kernelbox.result import (
        KernelRecord as KernelRecord,
    )
    from kernelbox.result import (
        OutputItem as OutputItem,
    )

# Where each public name lives. One table serves the lazy import, ``__all__`` and ``dir()``.
_HOMES = {
    "api": (
        "branch cancel destroy execute execute_with_retry get_or_create interrupt list_kernels"
        " output restart search_output status stream wipe"
    ),
    "box": "AsyncBox Box",
    "config": "Settings",
    "errors": (
        "BadInput BoxError EpochMismatch KeeperUnavailable KernelLost KernelNotFound"
        " StartupFailed Unsupported"
    ),
    "result": "AttemptSnapshot ErrorInfo ExecutionResult KernelRecord OutputItem",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = ["__version__", *sorted(_HOME_OF)]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'kernelbox' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"kernelbox.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
