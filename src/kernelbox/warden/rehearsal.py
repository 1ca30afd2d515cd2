"""A rehearsal in the root of what every warden will do, before anything is forked.

CPython counts and specialises bytecode in place, so the first runs of a function write to the pages
it lives in, and in a fork each such page becomes private memory. What has settled in the root stays
shared: rehearsing saves every warden about a fifth of its memory, and its first request some time.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable

from kernelbox.config import Settings
from kernelbox.inside import linux
from kernelbox.inside.channel import open_channel
from kernelbox.inside.stub import FIRST
from kernelbox.inside.workingset import Lesson
from kernelbox.warden.family import Family
from kernelbox.wire import READ_SIZE, Decoder, Frame, encode

_CELLS = 25
"""Enough for the counters of the specialising interpreter to have run out."""


class _End:
    """The other end of one of the warden's sockets."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._decoder = Decoder()

    def say(self, frame: Frame) -> None:
        self.sock.sendall(encode(frame))

    def hear(self) -> None:
        """Wait until the warden has said something."""
        while not self._decoder.feed(self.sock.recv(READ_SIZE)):
            pass


class _Scene:
    """A warden's sockets, and whom they lead to: keeper, stub and interpreter are pretended."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        keeper, self._request = socket.socketpair()
        stub, self._control = socket.socketpair()
        self._channel = open_channel()
        self._keeper = _End(keeper)
        self._stub = _End(stub)
        self._interpreter = _End(socket.socket(fileno=self._channel.far.pop(0)))
        self._kernel_id = str(uuid.uuid4())

    def warden(self) -> Family:
        """Nothing is ever killed here: the interpreter never says hello, so it has no pid."""
        return Family(self._request, self._control, os.getpid(), self._channel)

    def direct(self, cells: int, turn: Callable[[], None]) -> None:
        """From the request for a kernel to the result of its last cell; ``turn`` lets the warden
        react, where it is not a process of its own."""
        self._stub.say({"op": "started", "tag": FIRST, "pid": 0})
        turn()
        address = os.path.join(self._stage, "k.sock")
        runtime = os.path.join(self._stage, "r")
        os.makedirs(runtime, exist_ok=True)
        self._keeper.say(
            {
                "op": "prime",
                "id": 0,
                "address": address,
                "draft": os.path.join(runtime, "draft.json"),
                "connection_file": os.path.join(runtime, f"kernel-{self._kernel_id}.json"),
                "spool": os.path.join(runtime, f"spool-{self._kernel_id}"),
            }
        )
        turn()
        self._interpreter.hear()
        self._interpreter.say({"op": "primed"})
        turn()
        self._keeper.hear()
        settings = Settings(
            registry_path=os.path.join(self._stage, "registry.json"),
            runtime_dir=runtime,
        )
        self._keeper.say(
            {
                "op": "become",
                "id": 1,
                "kernel_id": self._kernel_id,
                "name": "rehearsal",
                "address": address,
                "cwd": "/",
                "environ": dict(os.environ),
                "settings": settings.to_wire(),
            }
        )
        turn()
        self._keeper.hear()
        self._interpreter.hear()
        self._interpreter.say({"op": "begun"})
        turn()
        for number in range(1, cells + 1):
            self._run_cell(number, turn)

    def _run_cell(self, number: int, turn: Callable[[], None]) -> None:
        self._keeper.say(
            {
                "op": "execute",
                "id": number,
                "kernel_id": self._kernel_id,
                "execution_id": f"cell-{number}",
                "code": "1+1",
                "timeout": 60.0,
            }
        )
        turn()
        self._interpreter.hear()
        result = {"data": {"text/plain": "2"}, "execution_count": number, "metadata": {}}
        self._interpreter.say({"op": "result", **result})
        self._interpreter.say({"op": "done", "ok": True, "execution_count": number, "payload": []})
        turn()
        self._keeper.hear()

    def close_unused(self) -> None:
        """What a warden would have taken over, had there been one in this process."""
        self._request.close()
        self._control.close()
        self._channel.close_near()

    def close(self) -> None:
        self._channel.close_far()
        for end in (self._interpreter, self._keeper, self._stub):
            end.sock.close()


def rehearse(stage: str) -> None:
    """Play the scene, here, until the bytecode has settled. ``stage`` is a folder for its files."""
    scene = _Scene(stage)
    family = scene.warden()
    try:
        scene.direct(_CELLS, lambda: family.reactor.turn(1))
    finally:
        for household in list(family.households.values()):
            if member := household.kernel.member:
                member.close()
            family.end_kernel(household.kernel, "the rehearsal is over")
        family.close()
        scene.close()


def lesson(stage: str) -> Lesson:
    """Which pages a warden writes to until its kernel's first result."""
    scene = _Scene(stage)
    try:
        return Lesson(
            lambda: scene.warden().run(),
            lambda: scene.direct(1, lambda: None),
            fork=linux.bare_fork,
        )
    finally:
        scene.close()
        scene.close_unused()
