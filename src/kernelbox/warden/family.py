"""A family of our own kernels: a spare that becomes the first, and branches forked from it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kernelbox.errors import BoxError, Unsupported
from kernelbox.inside.channel import Channel
from kernelbox.warden import newcomers
from kernelbox.warden.bash_member import BashMember
from kernelbox.warden.branching import Branching
from kernelbox.warden.connection import Ports, open_ports
from kernelbox.warden.household import Door
from kernelbox.warden.kernel import Kernel
from kernelbox.warden.landlord import CopyAnswer
from kernelbox.warden.lanes import jupyter
from kernelbox.warden.newcomers import Nobody
from kernelbox.warden.parked import Parked
from kernelbox.warden.python_member import PythonMember
from kernelbox.warden.reservation import Reservation, reserve
from kernelbox.warden.roster import Roster
from kernelbox.warden.warden import Reply, Warden
from kernelbox.wire import Frame

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernelbox.warden.installing import InstallDesk
    from kernelbox.warden.sandbox import Sandbox

_PORT_PATIENCE = 5.0


class Family(Warden):
    """The warden's whole world: interpreters, all descended from one clean fork of the root."""

    def __init__(
        self,
        request: socket.socket,
        control: socket.socket,
        stub_pid: int,
        channel: Channel,
        *,
        notes: Sequence[str] = (),
    ) -> None:
        """``channel`` leads to the interpreter that the stub starts without being told; ``notes``
        is what every kernel of this root has to say."""
        super().__init__(request, control, stub_pid)
        self.notes = notes
        self.spare_time: Callable[[], object] = lambda: None
        """What to do while nobody waits for us: a spare is made, or walls are built."""
        self.spare: PythonMember | None = PythonMember(self.reactor, Nobody(), channel)
        self._roster = Roster(self.reactor, self._stub, stub_pid=stub_pid, first=self.spare)
        self._roster.on_shed = self._denied
        self._sandbox: Sandbox | None = None
        self._reservation: Reservation | None = None
        self._installs: InstallDesk | None = None
        self._host_environ: Mapping[str, str] = {}

    # -- becoming somebody's ----------------------------------------------------------------

    def prime(self, frame: Frame, reply: Reply) -> None:
        """Get ready while nobody waits: what a kernel has from its birth, and its first cell."""
        if self.spare is None:
            raise BoxError("it is somebody's already")
        self._reservation = reserve(frame)
        if frame.get("walls"):
            self._walk_in(frame["walls"])
        self.spare.give_to(Nobody(lambda: reply({"notes": list(self.notes)})))
        self.spare.send({"op": "prime"})
        if self._sandbox is None:  # else it has been done while the walls were built
            self.spare_time()

    def _become(self, frame: Frame, reply: Reply) -> None:
        self._host_environ = frame["environ"]
        if frame.get("profile") and self._sandbox is None:
            frame = self._walk_in(frame)
        elif frame.get("profile") and self._sandbox is not None:
            frame = self._sandbox.move_in(frame)
        super()._become(frame, reply)
        self._discard_reservation()  # what is left of it

    def _walk_in(self, frame: Frame) -> Frame:
        from kernelbox.warden.sandbox import Sandbox  # most families have none

        sandbox = self._sandbox = Sandbox(
            frame, self._roster, reactor=self.reactor, stub=self._stub, stub_pid=self.stub_pid
        )
        changed = sandbox.order(frame, self._denied)
        self.hands = sandbox.hands
        self.spare_time()
        sandbox.watch()
        return changed

    def _first_member(self) -> PythonMember | None:
        spare, self.spare = self.spare, None
        return spare if spare is None or spare.ended is None else None

    def _open_ports(self, frame: Frame) -> Ports:
        info = frame.get("connection")
        if info is None and self._reservation is not None:
            return self._reservation.take_ports()
        deadline = time.monotonic() + _PORT_PATIENCE
        while True:
            try:
                return open_ports(info)
            except OSError as error:
                # A Jupyter manager restarts a kernel on the same ports; the old one may still
                # be letting go of them.
                if info is None or time.monotonic() > deadline:
                    raise Unsupported(f"the kernel's ports cannot be opened: {error}") from None
                time.sleep(0.05)

    def _listen(self, address: str) -> socket.socket:
        ready = self._reservation and self._reservation.take_listener(address)
        return ready or super()._listen(address)

    def _publish(self, path: str, ports: Ports) -> None:
        if self._reservation is None or not self._reservation.publish(path, ports):
            super()._publish(path, ports)

    def _open_door(self, kernel: Kernel, ports: Ports) -> Door:
        return jupyter.JupyterDoor(self.reactor, kernel, ports, on_shutdown=self._jupyter_shutdown)

    def _jupyter_shutdown(self, kernel: Kernel) -> None:
        self.end_kernel(kernel, "a Jupyter client asked it to shut down")

    def _discard_reservation(self) -> None:
        if self._reservation is not None:
            self._reservation.discard()
            self._reservation = None

    # -- members ----------------------------------------------------------------------------

    def start_interpreter(self, kernel: Kernel) -> PythonMember:
        return self._roster.start_interpreter(kernel, kernel.scope)

    def start_bash(self, kernel: Kernel, cwd: str) -> BashMember:
        environ = kernel.identity.environ
        return self._roster.start_bash(kernel.bash, kernel.scope, cwd=cwd, environ=environ)

    def clear_out(self, pid: int) -> None:
        if self._sandbox is not None and self.hands is None:
            self._sandbox.clear_out(pid)

    def branch(self, kernel: Kernel, frame: Frame, reply: Reply) -> None:
        """Copy a live kernel; the copy becomes a kernel of its own under a new name."""
        Branching(self, kernel, frame, reply).start()

    def expect_copy(
        self,
        arrived: Callable[[PythonMember], None],
        failed: Callable[[str], None],
        *,
        patience: float,
    ) -> tuple[PythonMember, CopyAnswer]:
        """A member that a fork elsewhere is to become."""
        return newcomers.expect_copy(
            self.reactor, self._roster, arrived=arrived, failed=failed, patience=patience
        )

    def parked_arrived(self, parked: Parked) -> None:
        """Its end is told by the stub, as every member's is."""
        self._roster.enter(parked)

    def _stub_said(self, frame: Frame) -> None:
        self._roster.heard(frame)

    # -- walls ------------------------------------------------------------------------------

    @property
    def profile(self) -> Frame | None:
        return None if self._sandbox is None else self._sandbox.walls.profile.to_wire()

    def _wall_facts(self) -> Frame | None:
        return None if self._sandbox is None else self._sandbox.walls.facts()

    def _denied(self, words: str, said: Frame | None = None) -> None:
        """Whoever runs something now may have tried it; the gate knows no kernels."""
        for household in self.households.values():
            household.kernel.note_denial(words)
            if said is not None and household.kernel.audit is not None:
                household.kernel.audit.denied(said)

    # -- packages ---------------------------------------------------------------------------

    def install(self, kernel: Kernel, frame: Frame, reply: Reply) -> None:
        self._desk().ask(kernel, frame, reply)

    def install_asked(self, kernel: Kernel, frame: Frame) -> None:
        from kernelbox.warden.installing import answer_cell

        answer_cell(self._desk, kernel, frame)

    def _desk(self) -> InstallDesk:
        sandbox = self._sandbox
        if sandbox is not None:
            sandbox.check_installs()
        if self._installs is None:
            from kernelbox.walls.packages import PLACE
            from kernelbox.warden.installing import InstallDesk

            assert self.settings is not None
            self._installs = InstallDesk(
                self.reactor,
                self.settings,
                self._host_environ,
                folder=None if sandbox is None else sandbox.packages,
                inside=None if sandbox is None else PLACE,
            )
        return self._installs

    # -- ending -----------------------------------------------------------------------------

    def end(self) -> None:
        if self._installs is not None:
            self._installs.close()
        self._discard_reservation()
        super().end()
        if self._sandbox is not None:
            self._sandbox.end()

    def _why_all_ended(self) -> str | None:
        return None if self._sandbox is None else self._sandbox.why_all_ended()

    def _before_leaving(self) -> None:
        if self._sandbox is not None:
            self._sandbox.walls.take_down()
        if self._installs is not None:
            self._installs.remove()
        elif self._sandbox is not None and self._sandbox.packages is not None:
            self._sandbox.packages.remove()
