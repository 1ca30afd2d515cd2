"""A client's own line to a kernel: ZeroMQ on one side, and a client that may come and go on the
other. What is said while it is away waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import zmq
import zmq.asyncio

from kernelbox.result import KernelRecord
from kernelbox.server.jupyter.wire import PARTS, Packet
from kernelbox.warden.lanes.messages import DELIMITER, Seal, Session, to_json

Sink = Callable[[Packet], Awaitable[None]]

_DEALERS = ("shell", "control", "stdin")
_WELCOME_PATIENCE = 2.0
_MOST_WAITING = 64 << 20
KEPT_FOR = 120.0
"""Seconds that a line waits for a client that has left without a word."""


class Line:
    """The sockets of one client of one kernel. Messages are signed here, not by the client: who may
    talk to the kernel at all is decided at the door."""

    def __init__(self, record: KernelRecord, context: zmq.asyncio.Context) -> None:
        self.kernel_id = record.kernel_id
        self._address = record.address
        with open(record.connection_file) as file:
            self._info: dict[str, Any] = json.load(file)
        self._seal = Seal(self._info["key"].encode(), scheme=self._info["signature_scheme"])
        self._sockets: dict[str, zmq.asyncio.Socket] = {}
        self._context = context
        self._tasks: list[asyncio.Task[None]] = []
        self._sink: Sink | None = None
        self._waiting: deque[Packet] = deque()
        self._size = 0
        self._welcome = asyncio.Event()
        self._turn = asyncio.Lock()
        self.lost = 0
        self.ended = asyncio.Event()
        """Set when the kernel is gone for good."""

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

    async def send(self, packet: Packet) -> None:
        """Pass on what the client says."""
        sock = self._sockets.get(packet.channel)
        if sock is None or packet.channel == "iopub":
            return
        signature = self._seal.sign(packet.parts)
        await sock.send_multipart([DELIMITER, signature, *packet.parts, *packet.buffers])

    async def attach(self, sink: Sink) -> None:
        """Tell a client all it has missed, and everything from now on."""
        async with self._turn:
            while self._waiting:
                packet = self._waiting.popleft()
                self._size -= packet.size
                await sink(packet)
            self._sink = sink

    def detach(self, sink: Sink) -> None:
        """It has left: what is said from now on waits for it."""
        if self._sink is sink:
            self._sink = None

    @property
    def attached(self) -> bool:
        return self._sink is not None

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for sock in self._sockets.values():
            sock.close(linger=0)

    def _connect(self, channel: str, kind: int, name: bytes) -> zmq.asyncio.Socket:
        sock = self._context.socket(kind)
        sock.setsockopt(zmq.IDENTITY, name)
        sock.setsockopt(zmq.SNDHWM, 0)
        sock.setsockopt(zmq.RCVHWM, 0)
        ip = "127.0.0.1" if self._info["ip"] in ("", "*", "0.0.0.0") else self._info["ip"]
        sock.connect(f"tcp://{ip}:{self._info[f'{channel}_port']}")
        self._sockets[channel] = sock
        return sock

    async def _listen(self, channel: str, sock: zmq.asyncio.Socket) -> None:
        while True:
            frames = await sock.recv_multipart()
            packet = self._read(channel, frames)
            if packet is not None:
                await self._pass_on(packet)

    def _read(self, channel: str, frames: list[bytes]) -> Packet | None:
        try:
            at = frames.index(DELIMITER)
        except ValueError:
            return None
        parts = frames[at + 2 : at + 2 + len(PARTS)]
        if channel == "iopub" and b'"iopub_welcome"' in parts[0]:
            self._welcome.set()
            return None
        return Packet(channel, parts, frames[at + 2 + len(PARTS) :])

    async def _pass_on(self, packet: Packet) -> None:
        async with self._turn:
            if self._sink is not None:
                try:
                    await self._sink(packet)
                    return
                except Exception:  # noqa: BLE001 - however it went away, it may come back
                    self._sink = None
            self._waiting.append(packet)
            self._size += packet.size
            while self._size > _MOST_WAITING:
                self._size -= self._waiting.popleft().size
                self.lost += 1

    async def _watch(self) -> None:
        """The warden's socket closes when the kernel is gone, however it went."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                await loop.sock_connect(sock, self._address)
                while await loop.sock_recv(sock, 1024):
                    pass
        self.ended.set()
        await self._pass_on(self._obituary())

    def _obituary(self) -> Packet:
        header = Session(b"").header("status")
        parts = [to_json(header), b"{}", b"{}", to_json({"execution_state": "dead"})]
        return Packet("iopub", parts)


class Lines:
    """The open lines, by kernel and by the session that a client says it is."""

    def __init__(self) -> None:
        self._context: zmq.asyncio.Context | None = None  # until the first client comes
        self._lines: dict[tuple[str, str], Line] = {}
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def connections(self, kernel_id: str) -> int:
        """How many clients a kernel has right now."""
        return sum(
            line.attached for (kernel, _), line in self._lines.items() if kernel == kernel_id
        )

    async def take(self, record: KernelRecord, session: str) -> Line:
        """The line of a client that comes back, or a new one."""
        key = (record.kernel_id, session)
        if timer := self._timers.pop(key, None):
            timer.cancel()
        line = self._lines.get(key)
        if line is not None and not line.attached and not line.ended.is_set():
            return line
        if line is not None:
            # Somebody else goes by that name, or the kernel is gone: theirs stays theirs.
            key = (record.kernel_id, f"{session}/{id(object())}")
        if self._context is None:
            self._context = zmq.asyncio.Context()
        line = Line(record, self._context)
        self._lines[key] = line
        try:
            await line.open()
        except BaseException:
            del self._lines[key]
            await line.close()
            raise
        return line

    def leave(self, line: Line, *, for_good: bool) -> None:
        """A client has gone; its line waits for a while if it may come back."""
        key = next((key for key, value in self._lines.items() if value is line), None)
        if key is None:
            return
        if for_good or line.ended.is_set():
            self._drop(key)
        else:
            loop = asyncio.get_running_loop()
            self._timers[key] = loop.call_later(KEPT_FOR, self._drop, key)

    def _drop(self, key: tuple[str, str]) -> None:
        self._timers.pop(key, None)
        line = self._lines.pop(key, None)
        if line is not None:
            task = asyncio.get_running_loop().create_task(line.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        await asyncio.gather(*(line.close() for line in self._lines.values()))
        await asyncio.gather(*self._closing)
        self._lines.clear()
        if self._context is not None:
            self._context.destroy(linger=0)
