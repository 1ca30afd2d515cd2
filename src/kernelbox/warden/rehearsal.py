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

_CELLS = 14
"""Enough for the counters of the specialising interpreter to have run out."""

_MOST_TURNS = 20
_TURN = 0.1


class _End:
    """The other end of one of the warden's sockets."""

    def __init__(self, scene: _Scene, sock: socket.socket) -> None:
        self.sock = sock
        self._scene = scene
        self._decoder = Decoder()

    def say(self, frame: Frame) -> None:
        self.sock.sendall(encode(frame))

    def hear(self) -> Frame:
        """Wait until the warden has said something; the last of it. Not for ever: a root that hangs
        in its rehearsal would be worse than one that has not rehearsed."""
        for patience in (0, *[_TURN] * _MOST_TURNS):
            if patience:
                self._scene.turn()
            self.sock.settimeout(patience)
            try:
                data = self.sock.recv(READ_SIZE)
            except (BlockingIOError, TimeoutError):
                continue
            if not data:
                raise ConnectionError("the warden hung up")
            for frame in (frames := self._decoder.feed(data)):
                if "error" in frame:
                    raise RuntimeError(f"the warden refused: {frame['error']}")
            if frames:
                return frames[-1]
        raise TimeoutError("the warden had nothing to say")


class _Scene:
    """A warden's sockets, and whom they lead to: keeper, stub and interpreter are pretended."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self.turn: Callable[[], None] = lambda: None
        """Lets the warden react, where it is not a process of its own."""
        keeper, self._request = socket.socketpair()
        stub, self._control = socket.socketpair()
        self._channel = open_channel()
        self._keeper = _End(self, keeper)
        self._stub = _End(self, stub)
        self._interpreter = _End(self, socket.socket(fileno=self._channel.far.pop(0)))
        self._client = _End(self, socket.socket(socket.AF_UNIX))
        self._kernel_id = str(uuid.uuid4())

    def warden(self, kind: type[Family] = Family) -> Family:
        """Nothing is ever killed here: the interpreter never says hello, so it has no pid."""
        return kind(self._request, self._control, os.getpid(), self._channel)

    def direct(self, cells: int, *, spare: bool) -> None:
        """From the request for a kernel to the result of its last cell; ``spare``: it was made
        ready before."""
        self._stub.say({"op": "started", "tag": FIRST, "pid": 0})
        address = os.path.join(self._stage, f"{self._kernel_id[:8]}.sock")
        runtime = os.path.join(self._stage, "r")
        os.makedirs(runtime, exist_ok=True)
        if spare:
            self._prime(address, runtime)
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
        self._keeper.hear()
        self._interpreter.hear()
        self._interpreter.say({"op": "begun"})
        self.turn()
        self._client.sock.connect(address)
        for number in range(1, cells + 1):
            self._run_cell(number)

    def _prime(self, address: str, runtime: str) -> None:
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
        self._interpreter.hear()
        self._interpreter.say({"op": "primed"})
        self._keeper.hear()

    def _run_cell(self, number: int) -> None:
        self._client.say(
            {
                "op": "execute",
                "id": number,
                "kernel_id": self._kernel_id,
                "execution_id": f"cell-{number}",
                "code": "1+1",
                "timeout": 60.0,
            }
        )
        turn = self._interpreter.hear()["turn"]
        result = {"data": {"text/plain": "2"}, "execution_count": number, "metadata": {}}
        self._interpreter.say({"op": "result", "turn": turn, **result})
        self._interpreter.say(
            {"op": "done", "turn": turn, "ok": True, "execution_count": number, "payload": []}
        )
        self._client.hear()

    def close_unused(self) -> None:
        """What a warden would have taken over, had there been one in this process."""
        self._request.close()
        self._control.close()
        self._channel.close_near()

    def close(self) -> None:
        self._channel.close_far()
        for end in (self._interpreter, self._keeper, self._stub, self._client):
            end.sock.close()


class _Actor(Family):
    """A warden that is not a process of its own, and must not end the one it plays in."""

    def _leave(self) -> None:
        pass


def rehearse(stage: str) -> None:
    """Play the scenes, here, until the bytecode has settled. ``stage`` is a folder for files."""
    _play(stage, spare=True)
    _play(stage, spare=False)


def _play(stage: str, *, spare: bool) -> None:
    scene = _Scene(stage)
    family = scene.warden(_Actor)
    scene.turn = lambda: family.reactor.turn(_TURN)
    try:
        scene.direct(_CELLS, spare=spare)
    finally:
        if family.spare is not None:
            family.spare.close()
        for household in list(family.households.values()):
            if member := household.kernel.member:
                member.close()
            family.end_kernel(household.kernel, "the rehearsal is over")
        family.close()
        scene.close()


def lesson(stage: str) -> Lesson:
    """Which pages a warden writes to until its kernel's first result, if somebody waits for it."""
    scene = _Scene(stage)
    try:
        return Lesson(
            lambda: scene.warden().run(),
            lambda: scene.direct(1, spare=False),
            fork=linux.bare_fork,
        )
    finally:
        scene.close()
        scene.close_unused()
