"""A gateway of kernels and its client, as an async API: start one, connect, execute, stream.

::

    async with KernelGateway() as gateway, KernelClient() as client:
        result = await client.execute("print('hello')")
        print(result.text)  # hello
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelbox.gateway.client import KernelClient
    from kernelbox.gateway.process import KernelGateway
    from kernelbox.gateway.results import (
        ConnectionLost,
        ExecutionError,
        ExecutionResult,
        KernelDied,
    )
    from kernelbox.gateway.tools import ApprovalRequest, ToolRejected

__all__ = [
    "ApprovalRequest",
    "ConnectionLost",
    "ExecutionError",
    "ExecutionResult",
    "KernelClient",
    "KernelDied",
    "KernelGateway",
    "ToolRejected",
]

_HOMES = {
    "ApprovalRequest": "tools",
    "ConnectionLost": "results",
    "ExecutionError": "results",
    "ExecutionResult": "results",
    "KernelClient": "client",
    "KernelDied": "results",
    "KernelGateway": "process",
    "ToolRejected": "tools",
}


def __getattr__(name: str) -> Any:
    """Imported when they are wanted: the gateway's own process wants none of them, and would be
    a tenth of a second later with its first kernel."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"kernelbox.gateway.{_HOMES[name]}")
    except ImportError as error:
        if error.name != "websockets":
            raise
        raise ImportError(
            "the gateway's client needs websockets, which is not installed. In a checkout, this "
            'line installs it: pip install "./kernelbox[server]"',
            name="websockets",
        ) from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
