"""A client's own line to a kernel: ZeroMQ on one side, and on the other a client that may leave and
come back. What is said while it is away waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import socket
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import zmq
import zmq.asyncio

from kernelbox.result import KernelRecord
from kernelbox.server.jupyter.backlog import Backlog
from kernelbox.server.jupyter.wire import PARTS, Packet
from kernelbox.warden.lanes.messages import DELIMITER, Seal, Session, to_json

Tell = Callable[[Packet], Awaitable[None]]

_DEALERS = ("shell", "control", "stdin")
_WELCOME_PATIENCE = 2.0
_SILENCE = 0.05
_RETRY = 0.1
_MOST_AHEAD = 16 << 20
"""Bytes that wait for a client that is there but slow; beyond them the kernel's side waits too."""
_MOST_READ_AHEAD = 100
_MOST_FOLLOWED = 1000
AGAIN = b'"kernelbox_again"'
"""In the metadata of a message that its client may have sent before."""
_REPLY, _IDLE = "reply", "idle"


class Line:
    """The sockets of one client of one kernel. Messages are signed here, not by the client: who may
    talk to the kernel at all is decided at the door."""

    def __init__(
        self,
        record: KernelRecord,
        context: zmq.asyncio.Context,
        *,
        on_stored: Callable[[Line], None],
        on_end: Callable[[Line], None],
    ) -> None:
        """``on_stored``: a message waits for an absent client; ``on_end``: no more will come."""
        self.kernel_id = record.kernel_id
        self.owner: str | None = None
        self.backlog = Backlog()
        self.ended = False
        self._address = record.address
        with open(record.connection_file) as file:
            self._info: dict[str, Any] = json.load(file)
        self._seal = Seal(self._info["key"].encode(), scheme=self._info["signature_scheme"])
        self._context = context
        self._on_stored = on_stored
        self._on_end = on_end
        self._sockets: dict[str, zmq.asyncio.Socket] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._visitor: asyncio.Event | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._welcome = asyncio.Event()
        self._heard = 0
        self._open_requests: dict[str, set[str]] = {}
        self._passed_on: dict[str, None] = {}
        self.visits = 0

    async def open(self) -> None:
        """Return when nothing that the kernel says can be missed any more."""
        # One name on all channels: a question of input() finds the client by it.
        name = uuid.uuid4().hex.encode()
        for channel in _DEALERS:
            self._connect(channel, zmq.DEALER, name)
        iopub = self._connect("iopub", zmq.SUB, name)
        iopub.setsockopt(zmq.SUBSCRIBE, b"")
        for channel, sock in self._sockets.items():
            self._tasks.append(asyncio.create_task(self._listen(channel, sock)))
        self._tasks.append(asyncio.create_task(self._watch()))
        # Kernels of protocol 5.4 greet every subscriber; others are given a moment.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._welcome.wait(), _WELCOME_PATIENCE)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for sock in self._sockets.values():
            sock.close(linger=0)

    # -- the client's side --------------------------------------------------------------------

    @property
    def attached(self) -> bool:
        return self._visitor is not None

    @property
    def expects_answers(self) -> bool:
        """Whether the client has asked something that is not answered yet."""
        return bool(self._open_requests)

    @contextlib.contextmanager
    def visit(self) -> Iterator[asyncio.Event]:
        """Be the line's client. The event is set when another connection takes this one's place:
        a client that comes back may be here before its old connection is seen to be broken."""
        if self._visitor is not None:
            self._visitor.set()
        displaced = self._visitor = asyncio.Event()
        self.visits += 1
        self._news.set()
        try:
            yield displaced
        finally:
            if self._visitor is displaced:
                self._visitor = None
                self._room.set()  # nobody has to wait for a client that is away

    async def tell_all(self, tell: Tell, displaced: asyncio.Event) -> None:
        """Tell the client all it has missed, and everything from now on, until the kernel is gone.

        A message counts as told when it has been handed over; if that fails, the client hears it
        when it comes back.
        """
        while True:
            await self._news.wait()
            self._news.clear()
            while self.backlog:
                await tell(self.backlog.first())
                if displaced.is_set():
                    return  # the first one is now another's to tell
                self.backlog.pop()
                if self.backlog.size < _MOST_AHEAD:
                    self._room.set()
            if self.ended:
                return

    async def send(self, packet: Packet) -> None:
        """Pass on what the client says. After a broken connection it may not know whether a
        message has arrived, and sends it again: each is passed on once."""
        sock = self._sockets.get(packet.channel)
        if sock is None or packet.channel == "iopub":
            return
        if AGAIN in packet.parts[2] and packet.msg_id in self._passed_on:
            return
        self._passed_on[packet.msg_id] = None
        if len(self._passed_on) > _MOST_FOLLOWED:
            del self._passed_on[next(iter(self._passed_on))]
        if packet.msg_type.endswith("_request") and len(self._open_requests) < _MOST_FOLLOWED:
            self._open_requests[packet.msg_id] = {_REPLY, _IDLE}
        signature = self._seal.sign(packet.parts)
        await sock.send_multipart([DELIMITER, signature, *packet.parts, *packet.buffers])

    # -- the kernel's side ----------------------------------------------------------------------

    def _connect(self, channel: str, kind: int, name: bytes) -> zmq.asyncio.Socket:
        sock = self._context.socket(kind)
        self._sockets[channel] = sock
        sock.setsockopt(zmq.IDENTITY, name)
        sock.setsockopt(zmq.SNDHWM, 0)
        # What a slow client has not taken waits in its kernel's warden, not in everybody's service.
        sock.setsockopt(zmq.RCVHWM, _MOST_READ_AHEAD)
        ip = "127.0.0.1" if self._info["ip"] in ("", "*", "0.0.0.0") else self._info["ip"]
        sock.connect(f"tcp://{ip}:{self._info[f'{channel}_port']}")
        return sock

    async def _listen(self, channel: str, sock: zmq.asyncio.Socket) -> None:
        while True:
            frames = await sock.recv_multipart()
            packet = self._read(channel, frames)
            if packet is None:
                continue
            self._heard += 1
            self._follow(packet)
            self._store(packet)
            while self.attached and self.backlog.size > _MOST_AHEAD:
                self._room.clear()
                await self._room.wait()

    def _read(self, channel: str, frames: list[bytes]) -> Packet | None:
        try:
            at = frames.index(DELIMITER)
        except ValueError:
            return None
        parts = frames[at + 2 : at + 2 + len(PARTS)]
        if len(parts) < len(PARTS):
            return None
        # A port of a kernel that is gone may be another kernel's by now.
        if not hmac.compare_digest(frames[at + 1], self._seal.sign(parts)):
            return None
        if channel == "iopub" and b'"iopub_welcome"' in parts[0]:
            self._welcome.set()
            return None
        return Packet(channel, parts, frames[at + 2 + len(PARTS) :])

    def _store(self, packet: Packet) -> None:
        self.backlog.add(packet)
        self._news.set()
        if not self.attached:
            self._on_stored(self)

    def _follow(self, packet: Packet) -> None:
        """A request is answered when its reply and the idle state have come, in either order."""
        if not self._open_requests:
            return
        if packet.channel != "iopub":
            answer = _REPLY
        elif b'"idle"' in packet.parts[3] and packet.msg_type == "status":
            answer = _IDLE
        else:
            return
        missing = self._open_requests.get(packet.parent_id)
        if missing is not None:
            missing.discard(answer)
            if not missing:
                del self._open_requests[packet.parent_id]

    async def _watch(self) -> None:
        """The warden's socket closes when the kernel is gone, however it went."""
        loop = asyncio.get_running_loop()
        gone = False
        while not gone:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.setblocking(False)
                try:
                    await loop.sock_connect(sock, self._address)
                    while await loop.sock_recv(sock, 1024):
                        pass
                    gone = True
                except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError):
                    gone = True
                except OSError:
                    await asyncio.sleep(_RETRY)  # too many knock at the same time
        await self._last_words()
        self._store(_obituary())
        self.ended = True
        self._news.set()
        self._on_end(self)

    async def _last_words(self) -> None:
        """Wait for what the kernel said before it went: it comes by other sockets than its end."""
        heard = -1
        while heard != self._heard or any(
            int(sock.get(zmq.EVENTS)) & zmq.POLLIN for sock in self._sockets.values()
        ):
            heard = self._heard
            await asyncio.sleep(_SILENCE)


def _obituary() -> Packet:
    header = Session(b"").header("status")
    parts = [to_json(header), b"{}", b"{}", to_json({"execution_state": "dead"})]
    return Packet("iopub", parts)
