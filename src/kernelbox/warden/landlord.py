"""The family, as far as a kernel needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from kernelbox.reactor import Reactor
    from kernelbox.warden.bash_member import BashMember
    from kernelbox.warden.hands import Hands
    from kernelbox.warden.kernel import Kernel
    from kernelbox.warden.member import Member
    from kernelbox.warden.parked import Parked
    from kernelbox.wire import Frame


class CopyAnswer(Protocol):
    """Called with the word of who was to fork a copy: its failure, or None."""

    def __call__(self, error: str | None, *, quiet: bool = False) -> None: ...


class Landlord(Protocol):
    """Gives a kernel its processes, and is told what becomes of it."""

    reactor: Reactor
    hands: Hands | None

    def start_interpreter(self, kernel: Kernel) -> Member: ...
    def start_bash(self, kernel: Kernel, cwd: str) -> BashMember: ...
    def clear_out(self, pid: int) -> None: ...
    def kernel_changed(self, kernel: Kernel) -> None: ...
    def kernel_stirred(self, kernel: Kernel) -> None: ...
    def expect_copy(
        self,
        arrived: Callable[[Any], None],
        failed: Callable[[str], None],
        *,
        patience: float,
    ) -> tuple[Any, CopyAnswer]: ...
    def parked_arrived(self, parked: Parked) -> None: ...
    def install_asked(self, kernel: Kernel, frame: Frame) -> None: ...
