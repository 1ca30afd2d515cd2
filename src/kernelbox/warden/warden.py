"""What every warden has, whatever its kernels are: households, clients, a stub, and an end."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from kernelbox.config import Settings
from kernelbox.errors import BadInput, BoxError, StartupFailed, Unsupported
from kernelbox.inside import linux
from kernelbox.reactor import Peer, Reactor
from kernelbox.warden import portrait, retirement
from kernelbox.warden.bash_member import BashMember
from kernelbox.warden.connection import Ports, write_private
from kernelbox.warden.hands import Hands
from kernelbox.warden.household import Door, Household
from kernelbox.warden.identity import Identity, identity_from
from kernelbox.warden.kernel import Kernel
from kernelbox.warden.landlord import CopyAnswer
from kernelbox.warden.lanes.native.client import NativeClient
from kernelbox.warden.member import Member, process_facts
from kernelbox.warden.parked import Parked
from kernelbox.warden.reservation import listen
from kernelbox.warden.shelf import Shelf
from kernelbox.warden.truth import Loss
from kernelbox.warden.watchers import Watchers
from kernelbox.wire import Frame

Reply = Callable[[dict[str, Any] | BoxError], None]

_LAST_CHILD_PATIENCE = 6.0


class Warden(ABC):
    """Runs until its last kernel has ended."""

    def __init__(self, request: socket.socket, control: socket.socket, stub_pid: int) -> None:
        self.reactor = Reactor()
        self.stub_pid = stub_pid
        self.households: dict[str, Household] = {}
        self.kernel_type = "python3"
        self.can_fork = True
        self.notes: Sequence[str] = ()
        self.mortal = True  # until it is somebody's, it ends with the keeper
        self.settings: Settings | None = None
        self.hands: Hands | None = None
        """Where members have no pid that we could signal: who does."""
        self._clients: set[NativeClient] = set()
        self._ended = False
        # The stub's death is told by its pidfd, not by the end of this socket.
        self._stub = Peer(self.reactor, control, on_frame=self._stub_said, on_close=lambda: None)
        self._stub_death = os.pidfd_open(stub_pid)
        self.reactor.watch(self._stub_death, self._stub_died)
        self.watchers = Watchers(self.reactor, self._has)
        self.watchers.add(self._welcome(request, None))  # the keeper

    def run(self) -> None:
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        self.reactor.run()

    # -- what differs -----------------------------------------------------------------------

    @abstractmethod
    def prime(self, frame: Frame, reply: Reply) -> None:
        """Get ready while nobody waits."""

    @abstractmethod
    def branch(self, kernel: Kernel, frame: Frame, reply: Reply) -> None:
        """Copy a live kernel."""

    @abstractmethod
    def start_interpreter(self, kernel: Kernel) -> Member:
        """A process for a kernel to run its code in; it has not begun yet."""

    @abstractmethod
    def start_bash(self, kernel: Kernel, cwd: str) -> BashMember:
        """A shell beside the kernel."""

    @abstractmethod
    def _open_ports(self, frame: Frame) -> Ports:
        """The ports that the connection file of a new kernel names."""

    @abstractmethod
    def _open_door(self, kernel: Kernel, ports: Ports) -> Door:
        """Let Jupyter clients in by those ports."""

    @abstractmethod
    def _stub_said(self, frame: Frame) -> None:
        """The stub has started or reaped a member."""

    def clear_out(self, pid: int) -> None:
        """Whoever had this interpreter is restarted: behind walls, what it left goes with it."""
        return

    def expect_copy(
        self,
        arrived: Callable[[Any], None],
        failed: Callable[[str], None],
        *,
        patience: float,
    ) -> tuple[Any, CopyAnswer]:
        """Only who can fork has copies."""
        raise Unsupported("this needs our own python3 kernel")

    def parked_arrived(self, parked: Parked) -> None:
        """A checkpoint is there."""
        raise Unsupported("this needs our own python3 kernel")

    def install(self, kernel: Kernel, frame: Frame, reply: Reply) -> None:
        """Give a kernel packages."""
        raise Unsupported("installing packages needs our own python3 kernel")

    def install_asked(self, kernel: Kernel, frame: Frame) -> None:  # noqa: B027
        """Code of a kernel wants packages; only our own interpreter asks."""

    @property
    def profile(self) -> Frame | None:
        """The walls around the family; None: it stands in the open."""
        return None

    def _wall_facts(self) -> Frame | None:
        """For ``status``: its profile, its limits and what it uses of them."""
        return None

    def _listen(self, address: str) -> socket.socket:
        """Where the new kernel's clients come in; nobody is let in yet."""
        return listen(address)

    def _publish(self, path: str, ports: Ports) -> None:
        """Write the connection file."""
        write_private(path, ports.info)

    def _make_kernel(self, identity: Identity, *, shelf: Shelf, epoch: int) -> Kernel:
        return Kernel(self, identity, shelf=shelf, epoch=epoch)

    def _first_member(self) -> Member | None:
        """A process that is there already for the first kernel to begin in."""
        return None

    def _why_all_ended(self) -> str | None:
        """When the stub has died: what is known of it."""
        return None

    def _before_leaving(self) -> None:  # noqa: B027 - most have nothing to do
        """All processes have ended; what they leave behind goes now."""

    # -- moving in --------------------------------------------------------------------------

    def become(self, frame: Frame, reply: Reply) -> None:
        """Be the caller's kernel from now on. Who cannot is no use to anybody, and leaves."""
        try:
            self._become(frame, reply)
        except BaseException:
            self.end()
            raise

    def _become(self, frame: Frame, reply: Reply) -> None:
        settings = self.settings = Settings.from_wire(frame["settings"])
        self.mortal = bool(frame.get("mortal"))
        kernel = self.add_kernel(frame, settings, epoch=int(frame.get("epoch", 1)))
        if frame.get("lost"):
            kernel.truth.loss = Loss("lost", str(frame["lost"]))

        def ready(failure: str | None) -> None:
            if failure is None:
                reply({"record": kernel.record(), "warden": os.getpid()})
            else:
                reply(StartupFailed(f"kernel {kernel.identity.name!r}: {failure}"))
                self.end_kernel(kernel, failure)

        kernel.when_ready(ready)
        kernel.succession.start(self._first_member())

    def add_kernel(self, frame: Frame, settings: Settings, *, epoch: int) -> Kernel:
        """A kernel with all that it has from its birth; its interpreter comes next."""
        ports = self._open_ports(frame)
        identity = identity_from(frame, settings, kernel_type=self.kernel_type, notes=self.notes)
        shelf = Shelf(
            os.path.join(settings.runtime_dir, f"spool-{identity.kernel_id}"),
            limit=settings.spool_limit,
            total=settings.spool_total,
            keep=settings.spool_keep,
        )
        try:
            shelf.make_folder()
            if identity.wrote_connection_file:
                self._publish(identity.connection_file, ports)
            listener = self._listen(identity.address)
        except OSError as error:
            ports.close()
            raise BadInput(
                f"the runtime folder {settings.runtime_dir!r} cannot be written: {error.strerror}. "
                "Point KERNELBOX_RUNTIME_DIR or KERNELBOX_HOME at a folder you own."
            ) from None
        kernel = self._make_kernel(identity, shelf=shelf, epoch=epoch)
        if settings.audit_log:
            _audit(kernel, settings)
        household = Household(kernel, listener, self._open_door(kernel, ports))
        self.households[identity.kernel_id] = household
        self.reactor.watch(listener.fileno(), lambda: self._accept(household))
        return kernel

    # -- ending -----------------------------------------------------------------------------

    def end_kernel(self, kernel: Kernel, cause: str) -> None:
        """End one kernel; the family ends with its last."""
        household = self.households.pop(kernel.identity.kernel_id, None)
        if household is None:
            return
        household.close(self.reactor, cause)
        household.leave_workspace(self.households.values())
        # That is how an owner hears of the end. A keeper may have come in by this kernel's door,
        # and keeps the whole family.
        for client in [client for client in self._clients if client.is_for(kernel)]:
            if client not in self.watchers:
                client.hang_up()
        self.watchers.ended(kernel, cause)
        if not self.households:
            self.end()

    def retire_if_idle(self, kernel: Kernel, idle: float, reply: Reply) -> None:
        """End a kernel that nobody has used for ``idle`` seconds."""

        def retire(cause: str) -> None:
            self.reactor.call_soon(lambda: self.end_kernel(kernel, cause))

        others = [household.kernel.identity for household in self.households.values()]
        is_parent = any(other.parent == kernel.identity.kernel_id for other in others)
        retirement.propose(kernel, idle, is_parent=is_parent, answer=reply, retire=retire)

    def end(self) -> None:
        """End every process of the family, then the warden itself."""
        if self._ended:
            return
        self._ended = True
        for household in list(self.households.values()):
            self.end_kernel(household.kernel, "the kernel was ended")
        self._stub.close()  # the stub takes this as its word to kill the rest and go
        # Replies that are under way go out in the meantime.
        self.reactor.call_soon(self._leave)

    def close(self) -> None:
        """Let go of everything without ending the process: for a rehearsal."""
        for client in list(self._clients):
            client.close()
        self._stub.close()
        self.reactor.forget(self._stub_death)
        os.close(self._stub_death)
        self.reactor.close()

    def _leave(self) -> None:
        deadline = time.monotonic() + _LAST_CHILD_PATIENCE
        poll = select.poll()
        poll.register(self._stub_death, select.POLLIN)
        while linux.children(os.getpid()) and time.monotonic() < deadline:
            poll.poll(20)
            linux.reap()
            if poll.poll(0):
                # Whatever outlived its stub is our child now.
                linux.kill_descendants(os.getpid())
                linux.reap()
        linux.kill_descendants(os.getpid())
        self._before_leaving()
        for client in list(self._clients):
            client.flush(0.5)
        os._exit(0)

    def _stub_died(self) -> None:
        """Killed from inside or outside: nobody parents the family any more, so it ends."""
        self.reactor.forget(self._stub_death)
        if self._ended:
            return
        linux.kill_descendants(os.getpid())
        why = self._why_all_ended() or "the process that parents the kernel was killed"
        for household in list(self.households.values()):
            self.end_kernel(household.kernel, why)
        self.end()

    # -- what becomes of kernels ------------------------------------------------------------

    def kernel_changed(self, kernel: Kernel) -> None:
        """Its namespace is another."""
        if self._has(kernel):
            if kernel.audit is not None:
                kernel.audit.changed()
            self.watchers.changed(kernel)

    def kernel_stirred(self, kernel: Kernel) -> None:
        """It has begun something, or ended it."""
        self.watchers.stirred(kernel)

    def describe(self, kernel: Kernel) -> dict[str, Any]:
        """For ``status``."""
        status = portrait.status(kernel)
        if (facts := self._wall_facts()) is not None:
            status["walls"] = facts
        status["processes"] += [
            process_facts(os.getpid(), "warden"),
            process_facts(self.stub_pid, "stub"),
        ]
        return status

    def _has(self, kernel: Kernel) -> bool:
        return kernel.identity.kernel_id in self.households

    # -- clients ----------------------------------------------------------------------------

    def _accept(self, household: Household) -> None:
        for sock in household.accept():
            self._welcome(sock, household.kernel)

    def _welcome(self, sock: socket.socket, kernel: Kernel | None) -> NativeClient:
        client = NativeClient(self, sock, kernel=kernel)
        self._clients.add(client)
        return client

    def client_left(self, client: NativeClient) -> None:
        self._clients.discard(client)
        if client in self.watchers:
            self.watchers.discard(client)
            if self.mortal and not self.watchers:
                self.end()
        if client.owns is not None:
            self.end_kernel(client.owns, "its owner ended")


def _audit(kernel: Kernel, settings: Settings) -> None:
    from kernelbox.warden import auditing

    whole = settings.audit_code == "whole"
    audit = auditing.Auditor(auditing.open_log(settings), kernel, whole_code=whole)
    kernel.audit = audit
    kernel.observers.append(audit)
    audit.created()
