"""The asyncio driver: the same calls, awaited."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from kernelbox.client.calls import Ask, Effect, Pause, StartKeeper
from kernelbox.client.conversation import Answer, ConnectionLost, Conversation, Item
from kernelbox.client.peers import check_peer
from kernelbox.keeper.launch import ensure_keeper
from kernelbox.wire import Frame

_T = TypeVar("_T")
_MOST_IDLE = 64
Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncLines:
    """Open connections of one event loop, by address."""

    def __init__(self) -> None:
        self._idle: dict[str, list[Line]] = {}
        self._owner: tuple[int, asyncio.AbstractEventLoop] | None = None

    @asynccontextmanager
    async def line(self, address: str) -> AsyncIterator[Line]:
        line = self._take(address) or await _connect(address)
        try:
            yield line
        except BaseException:
            line[1].close()
            raise
        idle = self._idle.setdefault(address, [])
        if len(idle) < _MOST_IDLE:
            idle.append(line)
        else:
            line[1].close()

    async def close(self) -> None:
        idle, self._idle = self._idle, {}
        for lines in idle.values():
            for _, writer in lines:
                writer.close()
                try:
                    await writer.wait_closed()
                except OSError:
                    continue

    def _take(self, address: str) -> Line | None:
        owner = (os.getpid(), asyncio.get_running_loop())
        if self._owner != owner:
            # Another loop or a forked child: streams of the old one cannot be used here.
            self._owner, self._idle = owner, {}
        idle = self._idle.get(address, [])
        while idle:
            reader, writer = idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return None


async def _connect(address: str) -> Line:
    try:
        reader, writer = await asyncio.open_unix_connection(address, limit=1 << 20)
    except OSError as error:
        raise ConnectionLost(str(error), connected=False) from None
    try:
        check_peer(writer.get_extra_info("socket"), address)
    except BaseException:
        writer.close()
        raise
    return reader, writer


async def converse(line: Line, conversation: Conversation) -> AsyncIterator[Item]:
    reader, writer = line
    try:
        writer.write(conversation.opening())
        await writer.drain()
        while not conversation.over:
            for item in conversation.feed(await reader.read(1 << 18)):
                yield item
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
            return await asyncio.to_thread(ensure_keeper, effect.home)
        if isinstance(effect, Pause):
            return await asyncio.sleep(effect.seconds)
        try:
            return await asyncio.wait_for(self._ask(effect), effect.patience)
        except TimeoutError:
            raise ConnectionLost("no answer in time", connected=True, late=True) from None

    async def _ask(self, ask: Ask) -> Frame:
        async with self.lines.line(ask.address) as line:
            async for item in converse(line, Conversation(ask.request)):
                if isinstance(item, Answer):
                    return item.content
        raise ConnectionLost("the conversation ended without an answer", connected=True)
