"""ZeroMQ sockets in the reactor, on listening sockets that were open before them."""

from __future__ import annotations

import socket as sockets
from collections.abc import Callable, Sequence

import zmq
from zmq.utils.monitor import parse_monitor_message

from kernelbox.reactor import Reactor

ZContext = zmq.Context[zmq.Socket[bytes]]
ZSocket = zmq.Socket[bytes]
OnMessage = Callable[[list[bytes], int], None]
"""Told of a message: its frames, and the number of the connection it came over."""

_AT_ONCE = 100
_MOST_QUEUED = 50_000
_LARGEST_FRAME = 180 << 20


class Channel:
    """One socket: what arrives is handed on, what is sent leaves in the background."""

    def __init__(self, reactor: Reactor, socket: ZSocket, *, on_message: OnMessage) -> None:
        self._reactor = reactor
        self._socket = socket
        self._on_message = on_message
        self._check_is_due = False
        self._fd = int(socket.get(zmq.FD))
        reactor.watch(self._fd, self.check)
        self._check_soon()  # a socket that nobody has read from yet signals nothing at all

    def check(self) -> None:
        """Take what has arrived. ZeroMQ signals a change only once, so all of it has to be taken,
        and looked for again after everything that may have swallowed the signal."""
        self._check_is_due = False
        for _ in range(_AT_ONCE):
            if self._socket.closed or not int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN:
                return
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.ZMQError:
                continue
            self._on_message([frame.bytes for frame in frames], _connection(frames[-1]))
        # Let others have a turn; a timer, because a call_soon would come before them.
        self._reactor.call_later(0, self.check)

    def send(self, frames: Sequence[bytes]) -> bool:
        """False if there is nobody at that address (told by sockets that are mandatory only), or,
        of a publisher, if one of the subscribers has not taken what was sent before."""
        if self._socket.closed:
            return False
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        finally:
            self._check_soon()
        return True

    def drop_what_is_too_much(self, drop: bool) -> None:
        """Of a publisher: for a subscriber who takes nothing, instead of refusing to send."""
        if not self._socket.closed:
            self._socket.set(zmq.XPUB_NODROP, not drop)

    def close(self, linger: float) -> None:
        """What was sent has ``linger`` seconds to leave, while the context terminates."""
        self._reactor.forget(self._fd)
        self._socket.close(linger=round(linger * 1000))

    def _check_soon(self) -> None:
        if not self._check_is_due:
            self._check_is_due = True
            self._reactor.call_soon(self.check)


class Comings:
    """Tells of connections to a socket that open and close."""

    def __init__(
        self,
        reactor: Reactor,
        socket: ZSocket,
        *,
        on_open: Callable[[int], None],
        on_close: Callable[[int], None],
    ) -> None:
        self._watched = socket
        self._on_open = on_open
        self._on_close = on_close
        self._monitor: ZSocket = socket.get_monitor_socket(
            zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
        )
        self._channel = Channel(reactor, self._monitor, on_message=self._happened)

    def check(self) -> None:
        self._channel.check()

    def close(self) -> None:
        if not self._watched.closed:
            self._watched.disable_monitor()
        self._channel.close(0)

    def _happened(self, frames: list[bytes], _: int) -> None:
        event = parse_monitor_message(frames)
        tell = self._on_open if event["event"] == zmq.EVENT_ACCEPTED else self._on_close
        tell(int(event["value"]))


def router(context: ZContext, *, mandatory: bool = False) -> ZSocket:
    """A socket that knows its clients by their identities."""
    socket = context.socket(zmq.ROUTER)
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.MAXMSGSIZE, _LARGEST_FRAME)
    # A client that comes back before its old connection was seen to break keeps its name.
    socket.set(zmq.ROUTER_HANDOVER, 1)
    if mandatory:
        socket.set(zmq.ROUTER_MANDATORY, 1)
    return socket


def publisher(context: ZContext) -> ZSocket:
    """A socket that tells of every subscription."""
    socket = context.socket(zmq.XPUB)
    socket.set(zmq.XPUB_VERBOSE, 1)
    # By default it drops what is too much for one of them, without a word to anybody.
    socket.set(zmq.XPUB_NODROP, 1)
    socket.set(zmq.SNDHWM, _MOST_QUEUED)
    socket.set(zmq.MAXMSGSIZE, 1 << 16)
    return socket


def listen(socket: ZSocket, listener: sockets.socket) -> None:
    """Hand a listening socket over; connections that wait in its backlog are accepted."""
    ip, port = listener.getsockname()[:2]
    socket.set(zmq.USE_FD, listener.detach())
    socket.bind(f"tcp://{ip}:{port}")


def _connection(frame: zmq.Frame) -> int:
    """The descriptor a message was read from: unique among the connections that are open."""
    try:
        return int(frame.get(zmq.SRCFD))
    except (zmq.ZMQError, ValueError):
        return -1
