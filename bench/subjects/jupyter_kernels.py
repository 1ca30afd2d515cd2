"""An installed kernelspec (ipykernel, xeus-python) through jupyter_client's blocking client.

The kernelspec's name is the only argument. One client stays connected to each kernel, which is
how jupyter_client is meant to be used and the fastest it can be.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from queue import Empty
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from measures import Reply, serve, with_descendants


@dataclass(frozen=True)
class Kernel:
    manager: Any
    client: Any


class JupyterKernels:
    """Kernels of one kernelspec, each with its connected client."""

    def __init__(self, kernelspec: str) -> None:
        self._kernelspec = kernelspec

    def open(self, name: str) -> Kernel:
        manager = KernelManager(kernel_name=self._kernelspec)
        manager.client_factory = BlockingKernelClient
        manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        client = manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=60)
        return Kernel(manager=manager, client=client)

    def run(self, kernel: Kernel, code: str, *, timeout: float) -> Reply:
        """Send the cell, read its output until idle, then its reply."""
        deadline = time.monotonic() + timeout
        sent = kernel.client.execute(code)
        value: str | None = None
        pieces: list[str] = []
        try:
            while True:
                message = kernel.client.get_iopub_msg(timeout=_left(deadline))
                # A kernel that lost its own "idle" may go on sending for minutes.
                if time.monotonic() > deadline:
                    raise Empty
                if message["parent_header"].get("msg_id") != sent:
                    continue
                kind, content = message["msg_type"], message["content"]
                if kind == "stream":
                    pieces.append(content["text"])
                elif kind == "execute_result":
                    value = content["data"]["text/plain"]
                elif kind == "status" and content["execution_state"] == "idle":
                    break
            while True:
                message = kernel.client.get_shell_msg(timeout=_left(deadline))
                if message["parent_header"].get("msg_id") == sent:
                    break
        except Empty:
            seen = sum(map(len, pieces))
            problem = f"no result after {timeout:.0f} s; {seen:,} characters had arrived"
            return Reply(ok=False, problem=problem if seen else f"no result after {timeout:.0f} s")
        status = message["content"]["status"]
        # Joined as any caller would: the whole text is the result.
        output = "".join(pieces)
        return Reply(ok=status == "ok", value=value, tail=output[-64:], problem=status)

    def family(self, kernel: Kernel) -> list[int]:
        return with_descendants(int(kernel.manager.provisioner.pid))

    def close(self, kernel: Kernel) -> None:
        kernel.client.stop_channels()
        kernel.manager.shutdown_kernel(now=True)

    def settle(self) -> None:
        """Nothing of it goes on between calls."""

    def branch(self, kernel: Kernel, name: str) -> Kernel:
        raise NotImplementedError("Jupyter's protocol has no branch")

    def end(self) -> None:
        """Its kernels were closed one by one; there is nothing else to end."""


def _left(deadline: float) -> float:
    # Zero would be an endless wait for some versions, and a negative one is for all.
    return max(0.001, deadline - time.monotonic())


if __name__ == "__main__":
    serve(partial(JupyterKernels, sys.argv[1]))
