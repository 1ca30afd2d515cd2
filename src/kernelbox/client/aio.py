"""The asyncio driver: the same calls, awaited."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from kernelbox.client.blocking import Lines
from kernelbox.client.calls import Ask, Effect, Pause, StartKeeper, Work
from kernelbox.client.conversation import Answer, ConnectionLost, Conversation
from kernelbox.client.peers import check_peer
from kernelbox.keeper.launch import ensure_keeper
from kernelbox.wire import READ_SIZE, Frame

_T = TypeVar("_T")
_CONNECT_PATIENCE = 30.0


class AsyncLines:
    """Open connections by address. Plain sockets, not asyncio's streams: those belong to one event
    loop, and a Box may be used in one loop after another."""

    def __init__(self) -> None:
        self._lines = Lines()

    @asynccontextmanager
    async def line(self, address: str) -> AsyncIterator[socket.socket]:
        """A connection; it goes back to the pool only if the conversation ended well."""
        sock = self._lines.take(address) or await _connect(address)
        try:
            yield sock
        except BaseException:
            sock.close()
            raise
        self._lines.give_back(address, sock)

    def close(self) -> None:
        self._lines.close()


async def _connect(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    deadline = time.monotonic() + _CONNECT_PATIENCE
    try:
        while True:
            try:
                sock.connect(address)
                break
            except BlockingIOError:
                # Many callers have yet to be accepted. The loop's own sock_connect would take this
                # for a connection under way, which a Unix socket does not know.
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.005)
        check_peer(sock, address)
    except OSError as error:
        sock.close()
        raise ConnectionLost(str(error), connected=False) from None
    except BaseException:
        sock.close()
        raise
    return sock


async def send(sock: socket.socket, data: bytes) -> None:
    try:
        await asyncio.get_running_loop().sock_sendall(sock, data)
    except OSError as error:
        raise ConnectionLost(str(error), connected=True) from None


async def receive(sock: socket.socket) -> bytes:
    try:
        return await asyncio.get_running_loop().sock_recv(sock, READ_SIZE)
    except OSError as error:
        raise ConnectionLost(str(error), connected=True) from None


class AsyncDriver:
    """Performs the effects of a call, each awaited."""

    def __init__(self) -> None:
        self.lines = AsyncLines()

    async def run(self, call: Generator[Effect, Any, _T]) -> _T:
        try:
            effect = next(call)
            while True:
                try:
                    value = await self._perform(effect)
                except Exception as error:  # noqa: BLE001 - thrown into the call, which decides
                    effect = call.throw(error)
                else:
                    effect = call.send(value)
        except StopIteration as end:
            result: _T = end.value
            return result

    async def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, StartKeeper):
            return await asyncio.to_thread(ensure_keeper, effect.home, effect.first_root)
        if isinstance(effect, Pause):
            return await asyncio.sleep(effect.seconds)
        if isinstance(effect, Work):
            return await asyncio.to_thread(effect.do)
        try:
            return await asyncio.wait_for(self._ask(effect), effect.patience)
        except TimeoutError:
            raise ConnectionLost("no answer in time", connected=True, late=True) from None

    async def _ask(self, ask: Ask) -> Frame:
        conversation = Conversation(ask.request)
        async with self.lines.line(ask.address) as sock:
            await send(sock, conversation.opening())
            while True:
                for item in conversation.feed(await receive(sock)):
                    if isinstance(item, Answer):
                        return item.content
