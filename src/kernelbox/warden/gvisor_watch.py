"""The memory of a sandbox in gVisor: looked at the more often, the less of it is left.

To Linux such a sandbox is one program: a control group could only end it whole, with every kernel
in it. So the group is given some room, and before that is used up the stub is told to end the one
process that has most.
"""

from __future__ import annotations

from kernelbox.reactor import Reactor, Timer
from kernelbox.walls.cgroups import Group
from kernelbox.walls.profiles import Profile
from kernelbox.warden.hands import Hands

_RARELY = 0.25
_OFTEN = 0.01
_OFTEN_BY_ASKING = 0.05
"""Where the stub has to be asked, who is one of those that want the processor."""
_FASTEST = 2 << 30
"""Bytes in a second: more is hardly ever filled, and then Linux counts, too."""
_OF_ITS_OWN = 64 << 20
"""What gVisor takes before anything runs in it."""
_ROOM = 512 << 20
"""Between two looks: a process can fill that much."""
_TASKS_OF_ITS_OWN, _TASKS_EACH = 256, 16


def host_limits(profile: Profile) -> tuple[int | None, int | None]:
    """Memory, and processes with threads, that Linux lets the sandbox have as a whole."""
    memory, processes = profile.memory, profile.processes
    return (
        None if memory is None else memory + _OF_ITS_OWN + _ROOM,
        # Each process in it takes several tasks outside.
        None if processes is None else _TASKS_OF_ITS_OWN + _TASKS_EACH * processes,
    )


def pause(left: int, *, asking: bool) -> float:
    """Seconds until the next look: what is left is not filled before."""
    return min(max(left / _FASTEST, _OFTEN_BY_ASKING if asking else _OFTEN), _RARELY)


class Watch:
    """Looks at the memory of one sandbox as long as that lives: at what its control group counts,
    or, where there is none, what the stub is told in there."""

    def __init__(
        self, reactor: Reactor, hands: Hands, profile: Profile, group: Group | None
    ) -> None:
        self._reactor = reactor
        self._hands = hands
        self._profile = profile
        self._group = group
        self._shedding = False
        self._next: Timer | None = None
        if profile.memory is not None:
            hands.on_shed, hands.on_weight = self._shed, self._judge
            self._look_in(_RARELY)

    def _look_in(self, seconds: float) -> None:
        if self._next is not None:
            self._next.cancel()  # others ask the stub how much it is, too
        self._next = self._reactor.call_later(seconds, self._look)

    def _look(self) -> None:
        if self._group is None:
            self._hands.weigh()
        else:
            self._judge(self._group.in_use() - _OF_ITS_OWN)

    def _judge(self, used: int) -> None:
        allowed = self._profile.memory or 0
        if self._shedding:
            return
        if used <= allowed:
            self._look_in(pause(allowed - used, asking=self._group is None))
            return
        self._shedding = True
        self._hands.shed(
            f"out of memory: the sandbox used {used >> 20:,} MiB, and its profile "
            f"{self._profile.name!r} allows {allowed >> 20:,} MiB"
        )

    def _shed(self) -> None:
        """One has been ended. What it had is not free at once; nobody else should pay for it."""
        self._shedding = False
        self._look_in(_RARELY)
