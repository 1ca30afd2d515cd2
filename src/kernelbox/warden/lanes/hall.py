"""Behind the Jupyter door: five ZeroMQ sockets, and the requests that come in by them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import zmq

from kernelbox.reactor import Reactor, Timer
from kernelbox.warden.connection import Ports
from kernelbox.warden.kernel import Kernel
from kernelbox.warden.lanes.arrivals import Arrivals
from kernelbox.warden.lanes.broadcast import Broadcast, Request
from kernelbox.warden.lanes.messages import BadMessage, Session
from kernelbox.warden.lanes.requests import Desk
from kernelbox.warden.lanes.stdin import Prompts
from kernelbox.warden.lanes.zeromq import Channel, Comings, ZContext, listen, publisher, router

_LAST_WORDS = 0.3

CannotOpen = zmq.ZMQError
"""Raised by :class:`Hall`."""


class Hall:
    """The five ZeroMQ sockets, and who is in the room."""

    def __init__(
        self,
        reactor: Reactor,
        kernel: Kernel,
        ports: Ports,
        *,
        session: Session,
        on_shutdown: Callable[[bool], None],
    ) -> None:
        self._reactor = reactor
        self._kernel = kernel
        self._session = session
        self._arrivals = Arrivals()
        self._inbox: deque[Request] = deque()
        self._dispatch_is_due = False
        self._timer: Timer | None = None
        context = self._context = _new_context()
        try:
            shell, iopub, control = router(context), publisher(context), router(context)
            stdin, heart = router(context, mandatory=True), router(context)
        except zmq.ZMQError:
            context.destroy(linger=0)
            raise
        self._comings = Comings(
            reactor, shell, on_open=self._client_came, on_close=self._client_left
        )
        self._broadcast = Broadcast(
            reactor, iopub, kernel, session=session, on_subscription=self._subscribed
        )
        self._prompts = Prompts(reactor, stdin, kernel, session=session)
        self._shell = Channel(reactor, shell, on_message=self._shell_message)
        self._control = Channel(reactor, control, on_message=self._control_message)
        self._heart = Channel(reactor, heart, on_message=self._beat)
        self._desk = Desk(
            reactor,
            kernel,
            session=session,
            broadcast=self._broadcast,
            prompts=self._prompts,
            connection_info=ports.info,
            on_failure=self._abort_the_rest,
            on_shutdown=on_shutdown,
        )
        kernel.observers.append(self._broadcast)
        # Last, and iopub first: from here on clients come in.
        sockets = {"iopub": iopub, "stdin": stdin, "hb": heart, "control": control, "shell": shell}
        try:
            for name, socket in sockets.items():
                listen(socket, ports.listeners[name])
        except zmq.ZMQError:
            self.close()
            raise

    def close(self) -> None:
        if self._broadcast in self._kernel.observers:
            self._kernel.observers.remove(self._broadcast)
        if self._timer is not None:
            self._timer.cancel()
        self._inbox.clear()
        self._comings.close()
        for channel in (self._shell, self._control, self._heart, self._prompts, self._broadcast):
            channel.close(_LAST_WORDS)
        self._context.term()

    # -- who is there -----------------------------------------------------------------------

    def _client_came(self, connection: int) -> None:
        self._arrivals.connected(connection, time.monotonic())

    def _client_left(self, connection: int) -> None:
        self._arrivals.disconnected(connection)
        self._prompts.client_left(connection)

    def _subscribed(self, now: float) -> None:
        self._comings.check()
        self._arrivals.subscribed(now)
        self._dispatch_soon()

    # -- what they say ----------------------------------------------------------------------

    def _beat(self, frames: list[bytes], _: int) -> None:
        self._heart.send(frames)

    def _control_message(self, frames: list[bytes], connection: int) -> None:
        request = self._request(frames, self._control, connection)
        if request is not None:
            self._desk.handle(request)

    def _shell_message(self, frames: list[bytes], connection: int) -> None:
        request = self._request(frames, self._shell, connection)
        if request is not None:
            self._inbox.append(request)
            self._dispatch_soon()

    def _request(self, frames: list[bytes], channel: Channel, connection: int) -> Request | None:
        try:
            return Request(self._session.unpack(frames), channel, connection=connection)
        except BadMessage:
            return None

    def _dispatch_soon(self) -> None:
        if self._inbox and not self._dispatch_is_due:
            self._dispatch_is_due = True
            self._reactor.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Hand on the requests in order, but for those of clients that cannot hear us yet."""
        self._dispatch_is_due = False
        self._comings.check()
        self._broadcast.check()
        now = time.monotonic()
        arrived, self._inbox = self._inbox, deque()
        for request in arrived:
            if not self._arrivals.ready(request.connection, now):
                self._inbox.append(request)
            elif request.aborted:
                self._desk.abort(request)
            else:
                self._desk.handle(request)
        deadline = self._arrivals.deadline
        if self._inbox and deadline is not None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._reactor.call_later(deadline - now, self._dispatch_soon)

    def _abort_the_rest(self, failed: Request) -> None:
        """A cell failed: mark what its client has sent after it, read by us or not yet."""
        client = failed.message.identities
        self._shell.check()
        for request in self._inbox:
            if request.message.identities == client:
                request.aborted = request.message.msg_type == "execute_request"


def _new_context() -> ZContext:
    context: ZContext = zmq.Context()
    return context
