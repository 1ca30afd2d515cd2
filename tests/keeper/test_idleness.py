"""When wardens are asked whether a kernel is idle, and what is made of their answers."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from kernelbox.keeper.endings import Endings
from kernelbox.keeper.families import Families
from kernelbox.keeper.idleness import Idleness
from kernelbox.keeper.registry import Registry
from kernelbox.reactor import Reactor, Timer
from kernelbox.wire import Decoder, Frame, encode


class Scene:
    """An idleness with one kernel, unused for an hour, and the warden's end of its line."""

    def __init__(self) -> None:
        self.reactor, self.registry = Reactor(), Registry("")
        families = Families(self.reactor, on_event=lambda *_: None, on_close=lambda _: None)
        mine, self.warden = socket.socketpair()
        self.link = families.connect(mine)
        families.house("k", self.link)
        self.idleness = Idleness(self.reactor, self.registry, families=families, endings=Endings())
        self.used_at = time.time() - 3600
        self.registry.add({"kernel_id": "k", "name": "k", "last_used_at": self.used_at})
        self._decoder = Decoder()

    def asked(self, within: float) -> Frame | None:
        """What the warden is asked next; None: nothing."""
        deadline = time.monotonic() + within
        while (left := deadline - time.monotonic()) > 0:
            self.reactor.turn(min(left, 0.05))
            if select.select([self.warden], [], [], 0)[0]:
                (frame,) = self._decoder.feed(self.warden.recv(1 << 16))
                return frame
        return None

    def answer(self, question: Frame, content: Frame) -> None:
        self.warden.sendall(encode({"id": question["id"], "reply": content}))
        self.reactor.turn(5)

    def close(self) -> None:
        self.link.close()
        self.warden.close()
        self.reactor.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.close()


def test_a_kernel_that_is_busy_by_itself_is_not_said_to_be_used_nor_asked_again_at_once(
    scene: Scene,
) -> None:
    scene.idleness.limit("k", seconds=2.0)
    question = scene.asked(within=5)
    assert question is not None
    assert (question["op"], question["kernel_id"], question["idle"]) == ("retire", "k", 2.0)
    scene.answer(question, {"retired": False})
    assert scene.registry.kernels["k"]["last_used_at"] == scene.used_at
    assert scene.asked(within=0.8) is None  # there have been looks, every half second
    assert scene.asked(within=5) is not None


def test_what_the_warden_says_of_the_last_use_is_known_from_then_on(scene: Scene) -> None:
    scene.idleness.limit("k", seconds=2.0)
    question = scene.asked(within=5)
    assert question is not None
    used_at = time.time() - 1
    scene.answer(question, {"retired": False, "last_used_at": used_at})
    assert scene.registry.kernels["k"]["last_used_at"] == used_at
    assert scene.asked(within=0.7) is None
    assert scene.asked(within=5) is not None


def test_who_asks_for_a_kernel_again_and_again_leaves_no_timers_behind(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[float] = []
    plan = scene.reactor.call_later

    def count(delay: float, callback: Callable[[], None]) -> Timer:
        planned.append(delay)
        return plan(delay, callback)

    monkeypatch.setattr(scene.reactor, "call_later", count)
    scene.registry.kernels["k"]["last_used_at"] = time.time()
    for _ in range(1000):
        scene.idleness.limit("k", seconds=1800.0)
    assert len(planned) == 1
    scene.idleness.limit("k", seconds=10.0)
    assert len(planned) == 2, "sooner than was planned"
