"""How often the memory of a sandbox in gVisor is looked at, and who pays when it is too much."""

from __future__ import annotations

from typing import Any

import pytest

from kernelbox.reactor import Timer
from kernelbox.walls.profiles import named
from kernelbox.warden.gvisor_watch import Watch, pause

MB = 1 << 20
PROFILE = named("restrictive").but(driver="gvisor", memory=500 * MB, name="restrictive")


@pytest.mark.parametrize(
    ("left", "asking", "seconds"),
    [
        (8 << 30, False, 0.25),
        (256 * MB, False, 0.125),
        (64 * MB, False, 0.03125),
        (1 * MB, False, 0.01),
        (0, False, 0.01),
        (256 * MB, True, 0.125),
        (1 * MB, True, 0.05),
    ],
)
def test_the_less_is_left_the_sooner_it_is_looked_at(
    left: int, asking: bool, seconds: float
) -> None:
    assert pause(left, asking=asking) == seconds


class Clock:
    """A reactor whose time passes when a test says so."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def call_later(self, delay: float, callback: Any) -> Timer:
        self.timers.append(Timer(delay, callback))
        return self.timers[-1]

    def due(self) -> list[float]:
        return [timer.due for timer in self.timers if timer.callback is not None]

    def ring(self) -> None:
        (timer,) = [timer for timer in self.timers if timer.callback is not None]
        callback, self.timers = timer.callback, []
        assert callback is not None
        callback()


class Stub:
    """In the place of :class:`kernelbox.warden.hands.Hands`: it writes down what it is told."""

    def __init__(self) -> None:
        self.orders: list[str] = []
        self.on_shed: Any = None
        self.on_weight: Any = None

    def weigh(self) -> None:
        self.orders.append("weigh")

    def shed(self, why: str) -> None:
        self.orders.append(why)


class Counted:
    """In the place of a control group."""

    def __init__(self, used: int) -> None:
        self.used = used

    def in_use(self) -> int:
        return self.used + 64 * MB


def watch(group: Counted | None) -> tuple[Clock, Stub]:
    clock, stub = Clock(), Stub()
    Watch(clock, stub, PROFILE, group)  # type: ignore[arg-type]
    return clock, stub


def test_a_group_is_read_and_nobody_is_asked() -> None:
    group = Counted(100 * MB)
    clock, stub = watch(group)
    clock.ring()
    assert clock.due() == [0.1953125]
    group.used = 499 * MB
    clock.ring()
    assert clock.due() == [0.01]
    assert stub.orders == []


def test_what_is_too_much_is_shed_once_and_then_given_time_to_go() -> None:
    group = Counted(600 * MB)
    clock, stub = watch(group)
    clock.ring()
    (why,) = stub.orders
    assert why.startswith("out of memory: the sandbox used 600 MiB")
    assert clock.due() == []
    stub.on_shed()
    assert clock.due() == [0.25]
    group.used = 50 * MB
    clock.ring()
    assert len(stub.orders) == 1


def test_without_a_group_the_stub_is_asked_by_one_at_a_time() -> None:
    clock, stub = watch(None)
    clock.ring()
    assert (stub.orders, clock.due()) == (["weigh"], [])
    stub.on_weight(490 * MB)
    stub.on_weight(490 * MB)  # somebody else has asked, too
    assert clock.due() == [0.05]
    stub.on_weight(501 * MB)
    assert stub.orders[1:] == [
        "out of memory: the sandbox used 501 MiB, and its profile 'restrictive' allows 500 MiB"
    ]
