"""The Jupyter lane: any Jupyter client attaches to a kernel over the ports of its connection file.

It costs nothing until somebody knocks: five listening sockets are watched, and only when a client
connects to one of them are they handed to ZeroMQ, which a root has imported (:func:`furnish`).
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from kernelbox.errors import BadInput
from kernelbox.reactor import Reactor
from kernelbox.warden.connection import Ports
from kernelbox.warden.kernel import Kernel
from kernelbox.warden.lanes.messages import Session, algorithm_of

if TYPE_CHECKING:
    from kernelbox.warden.lanes.hall import Hall

LAUNCHED = "kernelbox_launcher"
"""In a connection's info: the pid of the launcher that stands for this kernel. The kernel ends with
it, and a client that asks for a restart starts another one."""

_HALL = "kernelbox.warden.lanes.hall"


def furnish() -> None:
    """In the root: import all that is behind the door, for all wardens, and before an upgrade can
    change it on disk."""
    importlib.import_module(_HALL)


class JupyterDoor:
    """A kernel's five ports: closed at first, then a :class:`Hall` behind them."""

    def __init__(
        self,
        reactor: Reactor,
        kernel: Kernel,
        ports: Ports,
        *,
        on_shutdown: Callable[[Kernel], None],
    ) -> None:
        try:
            algorithm_of(str(ports.info["signature_scheme"]))
        except ValueError as error:
            raise BadInput(
                f"the connection file of kernel {kernel.identity.name!r}: {error}"
            ) from None
        self._reactor = reactor
        self._kernel = kernel
        self._ports = ports
        self._on_shutdown = on_shutdown
        self._hall: Hall | None = None
        self._launcher = self._watch_launcher(ports.info.get(LAUNCHED))
        for listener in ports.listeners.values():
            reactor.watch(listener.fileno(), self._open)

    def close(self) -> None:
        """Let nobody in any more; what was already said still has a moment to leave."""
        if self._launcher is not None:
            self._reactor.forget(self._launcher)
            os.close(self._launcher)
            self._launcher = None
        if self._hall is not None:
            self._hall.close()
        else:
            self._stop_watching()
        self._ports.close()

    def _open(self) -> None:
        from kernelbox.warden.lanes.hall import CannotOpen, Hall

        self._stop_watching()
        key, scheme = str(self._ports.info["key"]), str(self._ports.info["signature_scheme"])
        try:
            self._hall = Hall(
                self._reactor,
                self._kernel,
                self._ports,
                session=Session(key.encode(), scheme=scheme),
                on_shutdown=self._shut_down,
            )
        except CannotOpen as error:
            # Out of descriptors, most likely: better a kernel without this lane than none.
            self._kernel.identity.notes.append(f"Jupyter clients cannot attach: {error}")
            self._ports.close()

    def _watch_launcher(self, pid: object) -> int | None:
        """Not by its connection to us alone: it may die before it has made one."""
        if not isinstance(pid, int) or pid <= 0:
            return None
        try:
            launcher = os.pidfd_open(pid)
        except OSError:
            self._reactor.call_soon(self._launcher_died)
            return None
        self._reactor.watch(launcher, self._launcher_died)
        return launcher

    def _launcher_died(self) -> None:
        self._on_shutdown(self._kernel)

    def _stop_watching(self) -> None:
        for listener in self._ports.listeners.values():
            if listener.fileno() >= 0:
                self._reactor.forget(listener.fileno())

    def _shut_down(self, restart: bool) -> None:
        if restart and not self._ports.info.get(LAUNCHED):
            self._kernel.succession.restart(lambda failure: None)
        else:
            self._on_shutdown(self._kernel)
