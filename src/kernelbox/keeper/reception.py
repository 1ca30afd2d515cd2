"""Where clients come in: each frame is a request, each request is answered once."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

from kernelbox.errors import BoxError, to_wire
from kernelbox.keeper.callers import Callers, Request
from kernelbox.keeper.families import Answer
from kernelbox.reactor import Peer, Reactor
from kernelbox.wire import Frame

Handlers = Mapping[str, Callable[[Request], None]]

_ACCEPT_AGAIN = 0.1


class Reception:
    """Nobody is let in before :meth:`open`; until then they wait at the door."""

    def __init__(
        self, reactor: Reactor, listener: socket.socket, *, callers: Callers, handlers: Handlers
    ) -> None:
        self._reactor = reactor
        self._listener = listener
        self._callers = callers
        self._handlers = handlers
        self._clients: set[Peer] = set()
        listener.setblocking(False)

    def open(self) -> None:
        self._reactor.watch(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(64):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                # Most likely without a descriptor left: to try at once would only be busy.
                self._reactor.forget(self._listener.fileno())
                self._reactor.call_later(_ACCEPT_AGAIN, self.open)
                return
            self._welcome(sock)

    def _welcome(self, sock: socket.socket) -> None:
        def asked(frame: Frame) -> None:
            self._asked(peer, frame)

        peer = Peer(
            self._reactor, sock, on_frame=asked, on_close=lambda: self._clients.discard(peer)
        )
        self._clients.add(peer)

    def _asked(self, peer: Peer, frame: Frame) -> None:
        request_id = frame.get("id")

        def reply(content: Answer) -> None:
            if isinstance(content, BoxError):
                peer.send({"id": request_id, **to_wire(content)})
            else:
                peer.send({"id": request_id, "reply": content})

        try:
            settings = self._callers.asking(frame)
            handler = self._handlers.get(str(frame.get("op")))
            if handler is None:
                raise BoxError(f"the keeper does not know the request {frame.get('op')!r}")
            handler(Request(frame, reply, settings=settings))
        except BoxError as error:
            reply(error)
        except Exception as error:  # noqa: BLE001 - our own bug must not end the keeper
            reply(BoxError(f"internal error in the keeper: {error!r}"))
