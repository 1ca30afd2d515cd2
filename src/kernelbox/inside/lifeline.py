"""The one socket between an interpreter and its warden: cells come in, events go out."""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from typing import Any

from kernelbox.inside.interrupts import Interrupts
from kernelbox.inside.outlets import Outlets
from kernelbox.wire import READ_SIZE, Decoder, Frame, encode

_MAX_FDS = 8


class LifelineClosed(Exception):
    """The warden is gone: there is nobody left to work for."""


class Lifeline:
    """Sends from any thread, receives in the main one, and survives a fork on one side only."""

    def __init__(self, sock: socket.socket, outlets: Outlets, interrupts: Interrupts) -> None:
        self._sock: socket.socket | None = sock
        self._outlets = outlets
        self._interrupts = interrupts
        self._decoder = Decoder()
        self._frames: deque[Frame] = deque()
        self._fds: list[int] = []

    @property
    def open(self) -> bool:
        """False in a child that user code forked: it has no warden."""
        return self._sock is not None

    @property
    def in_cell(self) -> bool:
        """Whether a cell runs: between cells, what arrives is for the interpreter itself."""
        return self._interrupts.in_cell

    def fileno(self) -> int:
        assert self._sock is not None
        return self._sock.fileno()

    def send(self, frame: dict[str, Any]) -> None:
        """Send one frame whole, with its place among the bytes of the pipes."""
        with self._outlets.lock, self._interrupts.held():
            if self._sock is None:
                return
            # A frame that cannot be encoded leaves a gap in the count, which harms nobody.
            frame["n"] = self._outlets.number_frame()
            data = encode(frame)
            try:
                self._sock.sendall(data)
            except OSError as error:
                raise LifelineClosed(str(error)) from None

    @property
    def has_frame(self) -> bool:
        """Whether :meth:`receive` would return at once with something already read."""
        return bool(self._frames)

    def wait(self, milliseconds: int | None = None) -> bool:
        """Wait until there is something to receive; unlike there, an interrupt gets through."""
        if self._sock is None or self._frames:
            return True
        waiting = select.poll()
        waiting.register(self._sock, select.POLLIN)
        return bool(waiting.poll(milliseconds))

    def receive(self) -> tuple[Frame, list[int]]:
        """The next frame, and the descriptors that came with it."""
        with self._interrupts.held():
            while not self._frames:
                if self._sock is None:
                    raise LifelineClosed("closed by a fork")
                data, fds, _, _ = socket.recv_fds(self._sock, READ_SIZE, _MAX_FDS)
                if not data:
                    raise LifelineClosed("the warden is gone")
                self._fds += fds
                self._frames += self._decoder.feed(data)
            frame = self._frames.popleft()
            count = frame.get("fds", 0)
            fds, self._fds = self._fds[:count], self._fds[count:]
            return frame, fds

    def detach(self) -> None:
        """Close our end without a word (the copy of a fork has one of its own, or none)."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        for fd in self._fds:
            os.close(fd)
        self._fds = []
