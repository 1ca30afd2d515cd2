"""A rehearsal in the root of what every warden will do, before anything is forked.

CPython counts and specialises bytecode in place, so the first runs of a function write to the pages
it lives in, and in a fork each such page becomes private memory. What has settled in the root stays
shared: rehearsing saves every warden about a fifth of its memory, and its first request some time.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import uuid

from kernelbox.config import Settings
from kernelbox.inside.channel import open_channel
from kernelbox.warden.family import Family
from kernelbox.wire import Decoder, Frame, encode

_CELLS = 25
"""Enough for the counters of the specialising interpreter to have run out."""


class _End:
    """The other end of one of the warden's sockets."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._decoder = Decoder()

    def say(self, frame: Frame) -> None:
        self._sock.sendall(encode(frame))

    def hear(self) -> list[Frame]:
        return self._decoder.feed(self._sock.recv(1 << 18))


def rehearse(folder: str) -> None:
    """Play a family with one kernel and a few cells; the interpreter and the stub are pretended."""
    stage = tempfile.mkdtemp(dir=folder, prefix="rehearsal-")
    keeper_end, request = socket.socketpair()
    stub_end, control = socket.socketpair()
    # Nothing is ever killed on this stage: the interpreter never says hello, so it has no pid.
    channel = open_channel()
    family = Family(request, control, os.getpid(), channel)
    keeper = _End(keeper_end)
    lifeline = socket.socket(fileno=channel.far.pop(0))
    interpreter = _End(lifeline)
    try:
        _play(family, keeper, interpreter, stage=stage)
    finally:
        for household in list(family.households.values()):
            if member := household.kernel.member:
                member.close()
            family.end_kernel(household.kernel, "the rehearsal is over")
        family.close()
        channel.close_far()
        for sock in (lifeline, keeper_end, stub_end):
            sock.close()
        shutil.rmtree(stage, ignore_errors=True)


def _play(family: Family, keeper: _End, interpreter: _End, *, stage: str) -> None:
    kernel_id = str(uuid.uuid4())
    settings = Settings(
        registry_path=os.path.join(stage, "registry.json"), runtime_dir=os.path.join(stage, "r")
    )
    keeper.say(
        {
            "op": "become",
            "id": 1,
            "kernel_id": kernel_id,
            "name": "rehearsal",
            "address": os.path.join(stage, "k.sock"),
            "cwd": "/",
            "environ": dict(os.environ),
            "settings": settings.to_wire(),
        }
    )
    family.reactor.turn(1)
    interpreter.hear()
    interpreter.say({"op": "begun", "notes": []})
    family.reactor.turn(1)
    keeper.hear()
    for number in range(1, _CELLS):
        keeper.say(
            {
                "op": "execute",
                "id": number,
                "kernel_id": kernel_id,
                "execution_id": f"cell-{number}",
                "code": "1+1",
                "timeout": 60.0,
            }
        )
        family.reactor.turn(1)
        interpreter.hear()
        data = {"text/plain": "2"}
        interpreter.say({"op": "result", "data": data, "execution_count": number, "metadata": {}})
        interpreter.say({"op": "done", "ok": True, "execution_count": number, "payload": []})
        family.reactor.turn(1)
        keeper.hear()
