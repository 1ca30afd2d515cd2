"""Who is told what becomes of kernels: the keeper, and whoever else asked for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kernelbox.reactor import Reactor
from kernelbox.wire import Frame

if TYPE_CHECKING:
    from kernelbox.warden.kernel import Kernel
    from kernelbox.warden.lanes.native.client import NativeClient

_TELL_AFTER = 0.2


class Watchers:
    """Connections on which events are sent; nobody can push another aside."""

    def __init__(self, reactor: Reactor, lives: Callable[[Kernel], bool]) -> None:
        """``lives``: whether a kernel is still one of ours; of others there is nothing to tell."""
        self._reactor = reactor
        self._lives = lives
        self._clients: set[NativeClient] = set()
        self._stirred: set[str] = set()

    def __contains__(self, client: NativeClient) -> bool:
        return client in self._clients

    def __bool__(self) -> bool:
        return bool(self._clients)

    def add(self, client: NativeClient) -> None:
        self._clients.add(client)

    def discard(self, client: NativeClient) -> None:
        self._clients.discard(client)

    def changed(self, kernel: Kernel) -> None:
        """Its namespace is another: who is asked for its record must know, before its caller."""
        self._tell({"event": "changed", "record": kernel.record()})

    def stirred(self, kernel: Kernel) -> None:
        """It has begun something, or ended it. The keeper, whom others ask for a list, is told in a
        moment, once for many."""
        kernel_id = kernel.identity.kernel_id
        if kernel_id in self._stirred:
            return
        self._stirred.add(kernel_id)

        def tell() -> None:
            self._stirred.discard(kernel_id)
            if self._lives(kernel):
                self._tell({"event": "changed", "record": kernel.record(), "minor": True})

        self._reactor.call_later(_TELL_AFTER, tell)

    def ended(self, kernel: Kernel, cause: str) -> None:
        kernel_id, epoch = kernel.identity.kernel_id, kernel.truth.epoch
        self._tell({"event": "ended", "kernel_id": kernel_id, "cause": cause, "epoch": epoch})

    def _tell(self, event: Frame) -> None:
        for client in list(self._clients):
            client.send(event)
