"""A gateway of kernels and its client, as an async API: start one, connect, execute, stream.

::

    async with KernelGateway() as gateway, KernelClient() as client:
        result = await client.execute("print('hello')")
        print(result.text)  # hello
"""

from kernelbox.gateway.client import KernelClient
from kernelbox.gateway.process import KernelGateway
from kernelbox.gateway.results import ExecutionError, ExecutionResult, KernelDied
from kernelbox.gateway.tools import ApprovalRequest, ToolRejected

__all__ = [
    "ApprovalRequest",
    "ExecutionError",
    "ExecutionResult",
    "KernelClient",
    "KernelDied",
    "KernelGateway",
    "ToolRejected",
]
