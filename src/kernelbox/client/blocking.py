"""The blocking driver: plain sockets, pooled, safe for threads and forks."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Generator, Iterator
from typing import Any, TypeVar

from kernelbox.client.calls import Ask, Effect, Pause, StartKeeper, Work
from kernelbox.client.conversation import Answer, ConnectionLost, Conversation, Item
from kernelbox.client.peers import LONGEST_PATIENCE, check_peer
from kernelbox.keeper.launch import ensure_keeper
from kernelbox.wire import READ_SIZE, Frame

_T = TypeVar("_T")
_MOST_IDLE = 64
_SWEEP_AT = 16
_CONNECT_PATIENCE = struct.pack("ll", 30, 0)
_NO_LIMIT = struct.pack("ll", 0, 0)


class Lines:
    """Open connections by address; one conversation at a time on each."""

    def __init__(self) -> None:
        self._idle: dict[str, list[socket.socket]] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._sweep_at = _SWEEP_AT

    @contextlib.contextmanager
    def line(self, address: str, *, patience: float | None) -> Iterator[socket.socket]:
        """A connection; it goes back to the pool only if the conversation ended well."""
        sock = self.take(address) or _connect(address)
        try:
            sock.settimeout(None if patience is None else min(patience, LONGEST_PATIENCE))
            yield sock
        except BaseException:
            sock.close()
            raise
        self.give_back(address, sock)

    def give_back(self, address: str, sock: socket.socket) -> None:
        """Keep a connection for the next conversation."""
        with self._lock:
            if len(self._idle) >= self._sweep_at:
                self._sweep()
            idle = self._idle.setdefault(address, [])
            if len(idle) < _MOST_IDLE:
                idle.append(sock)
                return
        sock.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, {}
        for socks in idle.values():
            for sock in socks:
                sock.close()

    def _sweep(self) -> None:
        """Close what led to kernels that have ended, before a long-lived caller runs out of
        descriptors; each time twice as many have gathered, so that it costs next to nothing."""
        for address, socks in list(self._idle.items()):
            live = [sock for sock in socks if not _has_news(sock)]
            for sock in socks:
                if sock not in live:
                    sock.close()
            self._idle[address] = live
            if not live:
                del self._idle[address]
        self._sweep_at = max(_SWEEP_AT, 2 * len(self._idle))

    def take(self, address: str) -> socket.socket | None:
        """A connection that is open already, if there is one."""
        if self._pid != os.getpid():
            # The child of a fork: these connections are the parent's.
            self._pid, self._idle, self._lock = os.getpid(), {}, threading.Lock()
        with self._lock:
            idle = self._idle.get(address, [])
            while idle:
                sock = idle.pop()
                if not _has_news(sock):
                    return sock
                sock.close()  # an idle line that is readable has ended
        return None


def _has_news(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _connect(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A blocking connect waits for room among the callers that have yet to be accepted; with
        # a timeout of Python's it would fail at once.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _CONNECT_PATIENCE)
        sock.connect(address)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _NO_LIMIT)
        check_peer(sock, address)
    except OSError as error:
        sock.close()
        raise ConnectionLost(str(error), connected=False) from None
    except BaseException:
        sock.close()
        raise
    return sock


def converse(sock: socket.socket, conversation: Conversation) -> Iterator[Item]:
    """Send the request and yield what comes back, until it is over."""
    try:
        sock.sendall(conversation.opening())
        while not conversation.over:
            yield from conversation.feed(sock.recv(READ_SIZE))
    except TimeoutError:
        raise ConnectionLost("no answer in time", connected=True, late=True) from None
    except OSError as error:
        raise ConnectionLost(str(error), connected=True) from None


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
                except Exception as error:  # noqa: BLE001 - thrown into the call, which decides
                    effect = call.throw(error)
                else:
                    effect = call.send(value)
        except StopIteration as end:
            result: _T = end.value
            return result

    def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, StartKeeper):
            ensure_keeper(effect.home, effect.first_root)
            return None
        if isinstance(effect, Pause):
            time.sleep(effect.seconds)
            return None
        if isinstance(effect, Work):
            return effect.do()
        return self._ask(effect)

    def _ask(self, ask: Ask) -> Frame:
        conversation = Conversation(ask.request)
        with self.lines.line(ask.address, patience=ask.patience) as sock:
            try:
                for item in converse(sock, conversation):
                    if isinstance(item, Answer):
                        return item.content
            except KeyboardInterrupt:
                if ask.cancel_on_interrupt:
                    with contextlib.suppress(OSError):
                        sock.sendall(conversation.cancel())
                raise
        raise ConnectionLost("the conversation ended without an answer", connected=True)
