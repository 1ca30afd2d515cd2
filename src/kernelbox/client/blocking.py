"""The blocking driver: performs the effects of a call one after the other, over plain sockets."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Generator, Iterator, Sequence
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
from kernelbox.client.lines import Lines
from kernelbox.client.meaning import KernelLike, OnInput
from kernelbox.keeper.launch import ensure_keeper
from kernelbox.result import Event, ExecutionResult, OutputItem
from kernelbox.wire import READ_SIZE, Frame

_T = TypeVar("_T")


class BlockingDriver:
    """Performs the effects of a call one after the other."""

    def __init__(self) -> None:
        self.lines = Lines()

    def run(self, call: Generator[Effect, Any, _T]) -> _T:
        try:
            effect = next(call)
            while True:
                try:
                    value = self._perform(effect)
                except BaseException as error:  # noqa: BLE001 - the call decides, and cleans up
                    effect = call.throw(error)
                else:
                    effect = call.send(value)
        except StopIteration as end:
            result: _T = end.value
            return result

    def follow(
        self, calls: Calls, kernel: KernelLike, request: Frame, on_input: OnInput | None
    ) -> Iterator[Event]:
        """The events of an execution as they happen; the last one has its result."""
        telling = Telling(request)
        address = self.run(calls.address(kernel))
        for tries_left in reversed(range(NOTICE_TRIES)):
            try:
                with self.lines.line(address, patience=None) as sock:
                    for item in _converse(sock, Conversation(request), on_input):
                        if (event := telling.event(item)) is not None:
                            yield event
                return
            except ConnectionLost as error:
                lost = error
            if lost.connected or not tries_left:
                yield telling.end(self.run(executing.lost_result(calls, kernel, request, lost)))
                return
            address = self.run(calls.fresh_address(kernel, stale=address))

    def items(self, events: Iterator[Event]) -> Iterator[OutputItem | ExecutionResult]:
        """What is in events; who leaves early leaves them, too."""
        return (event.item for event in events)

    def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Ask):
            return self._ask(effect)
        if isinstance(effect, StartKeeper):
            return ensure_keeper(effect.home, effect.first_root)
        if isinstance(effect, Pause):
            return time.sleep(effect.seconds)
        if isinstance(effect, Together):
            return self._run_all(effect.calls)
        if isinstance(effect, Consult):
            return effect.function(*effect.arguments)
        return effect.do()

    def _ask(self, ask: Ask) -> Frame:
        conversation = Conversation(ask.request)
        with self.lines.line(ask.address, patience=ask.patience) as sock:
            try:
                for item in _converse(sock, conversation, ask.on_input):
                    if isinstance(item, Answer):
                        return item.content
            except KeyboardInterrupt:
                if ask.cancel_on_interrupt:
                    with contextlib.suppress(OSError):
                        sock.sendall(conversation.cancel())
                raise
        raise ConnectionLost("the conversation ended without an answer", connected=True)

    def _run_all(self, calls: Sequence[Generator[Effect, Any, Any]]) -> list[Any]:
        from concurrent.futures import ThreadPoolExecutor  # who calls one only has no use for it

        with ThreadPoolExecutor(max(1, len(calls))) as pool:
            running = [pool.submit(self.run, call) for call in calls]
        return [future.result() for future in running]


def _converse(
    sock: socket.socket, conversation: Conversation, on_input: OnInput | None
) -> Iterator[Happened | Answer]:
    """Send the request, answer questions, and yield the rest of what comes, until it is over."""
    _send(sock, conversation.opening())
    while not conversation.over:
        for item in conversation.feed(_receive(sock)):
            if isinstance(item, InputWanted):
                answer = on_input(item.prompt) if on_input else None
                _send(sock, conversation.answer_input(item, answer))
            else:
                yield item


def _send(sock: socket.socket, data: bytes) -> None:
    try:
        sock.sendall(data)
    except OSError as error:
        raise _lost(error) from None


def _receive(sock: socket.socket) -> bytes:
    try:
        return sock.recv(READ_SIZE)
    except OSError as error:
        raise _lost(error) from None


def _lost(error: OSError) -> ConnectionLost:
    if isinstance(error, TimeoutError):
        return ConnectionLost("no answer in time", connected=True, late=True)
    return ConnectionLost(str(error), connected=True)
