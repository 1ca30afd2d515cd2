"""The memory of a sandbox in gVisor: looked at a few times a second.

To Linux such a sandbox is one program: a control group could only end it whole, with every kernel
in it. So the group is given some room, and before that is used up the stub is told to end the one
process that has most.
"""

from __future__ import annotations

from kernelbox.reactor import Reactor
from kernelbox.walls.cgroups import Group
from kernelbox.walls.profiles import Profile
from kernelbox.warden.hands import Hands

_EVERY = 0.25
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
        self._asked = False
        if profile.memory is not None:
            hands.on_shed, hands.on_weight = self._answered, self._weighed
            reactor.call_later(_EVERY, self._look)

    def _look(self) -> None:
        self._reactor.call_later(_EVERY, self._look)
        if self._asked:
            return  # it has not come to it yet
        if self._group is None:
            self._asked = True
            self._hands.weigh()
        else:
            self._judge(self._group.in_use() - _OF_ITS_OWN)

    def _weighed(self, used: int) -> None:
        self._asked = False
        self._judge(used)

    def _judge(self, used: int) -> None:
        allowed = self._profile.memory or 0
        if used > allowed:
            self._asked = True
            self._hands.shed(
                f"out of memory: the sandbox used {used >> 20:,} MiB, and its profile "
                f"{self._profile.name!r} allows {allowed >> 20:,} MiB"
            )

    def _answered(self) -> None:
        self._asked = False
