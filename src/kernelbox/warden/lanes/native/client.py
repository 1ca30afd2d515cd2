"""One connection of our own lane: requests in, events and replies out."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernelbox.errors import BoxError, KernelNotFound, to_wire
from kernelbox.reactor import Peer
from kernelbox.warden.execution import Result, without_bulk
from kernelbox.warden.lanes.native import executions, keepers, kernels, sessions
from kernelbox.warden.lanes.native.listening import Listening
from kernelbox.wire import Frame, GarbledFrame

if TYPE_CHECKING:
    from kernelbox.warden.kernel import Kernel
    from kernelbox.warden.warden import Warden

Handler = Callable[["NativeClient", Any, Frame], None]

_REQUESTS: dict[str, Handler] = {
    **executions.REQUESTS,
    **sessions.REQUESTS,
    **kernels.REQUESTS,
    **keepers.REQUESTS,
}


class NativeClient:
    """Whoever is at the other end: a Box, or a keeper."""

    def __init__(self, family: Warden, sock: socket.socket, *, kernel: Kernel | None) -> None:
        """``kernel``: whose door it came in by."""
        self.family = family
        self.listening = Listening(self)
        self.owns: Kernel | None = None
        self._kernel = kernel
        self._peer = Peer(
            family.reactor,
            sock,
            on_frame=self._asked,
            on_close=self._left,
            on_drain=self.listening.drained,
        )

    @property
    def backlog(self) -> int:
        return self._peer.backlog

    def send(self, frame: Frame) -> None:
        self._peer.send(frame)

    def send_result(self, request: Any, result: Result) -> None:
        """Whatever is in it, a caller who waits for a result gets one."""
        try:
            self.send({"id": request, "result": result})
        except GarbledFrame:
            self.send({"id": request, "result": without_bulk(result)})

    def reply(self, request: Any, content: dict[str, Any] | BoxError) -> None:
        if isinstance(content, BoxError):
            self.send({"id": request, **to_wire(content)})
        else:
            self.send({"id": request, "reply": content})

    def target(self, frame: Frame) -> Kernel:
        """The kernel that a request is for."""
        kernel_id = frame.get("kernel_id")
        if kernel_id is None and self._kernel is not None:
            return self._kernel
        household = self.family.households.get(str(kernel_id))
        if household is None:
            raise KernelNotFound(f"this family has no kernel {kernel_id!r}")
        return household.kernel

    def is_for(self, kernel: Kernel) -> bool:
        """Whether it came for this kernel, or owns it."""
        return kernel in (self._kernel, self.owns)

    def close(self) -> None:
        """Hang up without telling the family."""
        self._peer.close()

    def hang_up(self) -> None:
        """Say goodbye to who came for a kernel that has ended."""
        self.owns = None
        self.flush(0.2)
        self._peer.close()
        self.family.client_left(self)

    def flush(self, patience: float) -> None:
        """Give what is under way a moment to leave, when the warden is about to end."""
        deadline = time.monotonic() + patience
        while self._peer.backlog and not self._peer.closed and time.monotonic() < deadline:
            select.select([], [self._peer.fd], [], 0.05)
            self._peer._writable()

    def _asked(self, frame: Frame) -> None:
        request = frame.get("id")
        try:
            handler = _REQUESTS.get(str(frame.get("op")))
            if handler is None:
                raise BoxError(f"this kernel does not know the request {frame.get('op')!r}")
            handler(self, request, frame)
        except BoxError as error:
            self.send({"id": request, **to_wire(error)})
        except Exception as error:  # noqa: BLE001
            # Our own bug must not take the kernel down, nor leave the caller waiting.
            self.send({"id": request, **to_wire(BoxError(f"internal error: {error!r}"))})

    def _left(self) -> None:
        self.listening.left()
        self.family.client_left(self)
