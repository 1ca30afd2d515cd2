"""The asyncio driver: the same calls, awaited."""

from __future__ import annotations

import asyncio
import inspect
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Generator
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

from kernelbox.client import executing
from kernelbox.client.calls import NOTICE_TRIES, Calls
from kernelbox.client.conversation import (
    Answer,
    ConnectionLost,
    Conversation,
    Happened,
    InputWanted,
)
from kernelbox.client.effects import Ask, Consult, Effect, Pause, StartKeeper, Together
from kernelbox.client.following import Telling
from kernelbox.client.lines import Lines, check_peer
from kernelbox.client.meaning import AsyncOnInput, KernelLike
from kernelbox.keeper.launch import ensure_keeper
from kernelbox.result import Event, ExecutionResult, OutputItem
from kernelbox.wire import READ_SIZE, Frame

_T = TypeVar("_T")
_CONNECT_PATIENCE = 30.0


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
                except BaseException as error:  # noqa: BLE001 - the call decides, and cleans up
                    effect = call.throw(error)
                else:
                    effect = call.send(value)
        except StopIteration as end:
            result: _T = end.value
            return result

    async def follow(
        self, calls: Calls, kernel: KernelLike, request: Frame, on_input: AsyncOnInput | None
    ) -> AsyncGenerator[Event, None]:
        """The events of an execution as they happen; the last one has its result."""
        telling = Telling(request)
        address = await self.run(calls.address(kernel))
        for tries_left in reversed(range(NOTICE_TRIES)):
            try:
                async with (
                    self.lines.line(address) as sock,
                    aclosing(_converse(sock, Conversation(request), on_input)) as items,
                ):
                    async for item in items:
                        if (event := telling.event(item)) is not None:
                            yield event
                return
            except ConnectionLost as error:
                lost = error
            if lost.connected or not tries_left:
                result = await self.run(executing.lost_result(calls, kernel, request, lost))
                yield telling.end(result)
                return
            address = await self.run(calls.fresh_address(kernel, stale=address))

    async def items(
        self, events: AsyncGenerator[Event, None]
    ) -> AsyncGenerator[OutputItem | ExecutionResult, None]:
        """What is in events; who leaves early leaves them, too."""
        async with aclosing(events):
            async for event in events:
                yield event.item

    async def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Ask):
            try:
                return await asyncio.wait_for(self._ask(effect), effect.patience)
            except TimeoutError:
                raise ConnectionLost("no answer in time", connected=True, late=True) from None
        if isinstance(effect, StartKeeper):
            return await asyncio.to_thread(ensure_keeper, effect.home, effect.first_root)
        if isinstance(effect, Pause):
            return await asyncio.sleep(effect.seconds)
        if isinstance(effect, Together):
            return await asyncio.gather(*map(self.run, effect.calls))
        if isinstance(effect, Consult):
            answer = effect.function(*effect.arguments)
            return await answer if inspect.isawaitable(answer) else answer
        return await asyncio.to_thread(effect.do)

    async def _ask(self, ask: Ask) -> Frame:
        content: Frame | None = None
        async with self.lines.line(ask.address) as sock:
            # To its end, which comes with the answer: a generator that is left has to be closed.
            async for item in _converse(sock, Conversation(ask.request), ask.on_input):
                if isinstance(item, Answer):
                    content = item.content
        if content is None:
            raise ConnectionLost("the conversation ended without an answer", connected=True)
        return content


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


async def _converse(
    sock: socket.socket, conversation: Conversation, on_input: AsyncOnInput | None
) -> AsyncGenerator[Happened | Answer, None]:
    """Send the request, answer questions, and yield the rest of what comes, until it is over."""
    answering: set[asyncio.Future[Any]] = set()
    try:
        await _send(sock, conversation.opening())
        while not conversation.over:
            data = await (_receive_beside(sock, answering) if answering else _receive(sock))
            for item in conversation.feed(data):
                if isinstance(item, InputWanted):
                    answer = on_input(item.prompt) if on_input else None
                    # Meanwhile the cell may time out or be interrupted.
                    sent = _answer(sock, conversation, item, answer)
                    answering.add(asyncio.ensure_future(sent))
                else:
                    yield item
    finally:
        for task in answering:
            task.cancel()


async def _answer(
    sock: socket.socket,
    conversation: Conversation,
    question: InputWanted,
    answer: str | Awaitable[str | None] | None,
) -> None:
    if inspect.isawaitable(answer):
        answer = await answer
    await _send(sock, conversation.answer_input(question, answer))


async def _receive_beside(sock: socket.socket, answering: set[asyncio.Future[Any]]) -> bytes:
    """As :func:`_receive`; but an answer that fails is raised at once, for nothing more would come:
    the cell waits for it."""
    receiving = asyncio.ensure_future(_receive(sock))
    try:
        while True:
            done, _ = await asyncio.wait(
                {receiving, *answering}, return_when=asyncio.FIRST_COMPLETED
            )
            for answer in done & answering:
                answering.discard(answer)
                answer.result()
            if receiving in done:
                return receiving.result()
    finally:
        receiving.cancel()


async def _send(sock: socket.socket, data: bytes) -> None:
    try:
        await asyncio.get_running_loop().sock_sendall(sock, data)
    except OSError as error:
        raise ConnectionLost(str(error), connected=True) from None


async def _receive(sock: socket.socket) -> bytes:
    try:
        return await asyncio.get_running_loop().sock_recv(sock, READ_SIZE)
    except OSError as error:
        raise ConnectionLost(str(error), connected=True) from None
