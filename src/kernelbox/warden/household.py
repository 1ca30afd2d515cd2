"""What every warden has, whatever its kernels are: households, clients, a stub, and an end."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kernelbox.config import Settings
from kernelbox.errors import BadInput, BoxError, StartupFailed, Unsupported
from kernelbox.inside import linux
from kernelbox.reactor import Peer, Reactor
from kernelbox.warden.bash_member import BashMember
from kernelbox.warden.connection import Ports, write_private
from kernelbox.warden.execution import Loss
from kernelbox.warden.hands import Hands
from kernelbox.warden.identity import Identity
from kernelbox.warden.kernel import Kernel
from kernelbox.warden.lanes.native import NativeClient
from kernelbox.warden.member import Member, process_facts
from kernelbox.warden.parked import Parked
from kernelbox.warden.reservation import listen
from kernelbox.warden.shelf import Shelf
from kernelbox.wire import Frame

Reply = Callable[[dict[str, Any] | BoxError], None]

_LAST_CHILD_PATIENCE = 6.0
_PEER_CREDENTIALS = struct.Struct("3i")
_TELL_AFTER = 0.2


class CopyAnswer(Protocol):
    """Called with the word of who was to fork a copy: its failure, or None."""

    def __call__(self, error: str | None, *, quiet: bool = False) -> None: ...


class Door(Protocol):
    """Where Jupyter clients come in; it closes with the kernel."""

    def close(self) -> None: ...


class Household:
    """A kernel with the things that outlive its interpreters: sockets, ports, files."""

    def __init__(self, kernel: Kernel, listener: socket.socket, door: Door) -> None:
        self.kernel = kernel
        self.listener = listener
        self.door = door


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
        # The keeper, and whoever else asked to be told: nobody can push it aside.
        self.watchers: set[NativeClient] = {self._welcome(request, None)}
        self._stirred: set[str] = set()

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
        kernel = self._add_kernel(frame, settings, epoch=int(frame.get("epoch", 1)))
        if frame.get("lost"):
            kernel.loss = Loss("lost", str(frame["lost"]))

        def ready(failure: str | None) -> None:
            if failure is None:
                reply({"record": kernel.record(), "warden": os.getpid()})
            else:
                reply(StartupFailed(f"kernel {kernel.identity.name!r}: {failure}"))
                self.end_kernel(kernel, failure)

        kernel.when_ready(ready)
        kernel.start_interpreter(self._first_member())

    def _add_kernel(self, frame: Frame, settings: Settings, *, epoch: int) -> Kernel:
        ports = self._open_ports(frame)
        runtime = settings.runtime_dir
        kernel_id = str(frame["kernel_id"])
        identity = Identity(
            kernel_id=kernel_id,
            name=str(frame["name"]),
            connection_file=frame.get("connection_file")
            or os.path.join(runtime, f"kernel-{kernel_id}.json"),
            address=str(frame["address"]),
            cwd=str(frame["cwd"]),
            environ=dict(frame["environ"]),
            kernel_type=self.kernel_type,
            startup_code=settings.startup_code,
            start_timeout=settings.start_timeout,
            session_name=frame.get("session_name"),
            tags=frame.get("tags") or {},
            parent=frame.get("parent"),
            made_by=str(frame.get("made_by") or "start"),
            scoped=bool(frame.get("scoped")),
            profile=str(frame.get("profile_name") or "open"),
            walls=frame.get("walls"),
            soft_memory=frame.get("soft_memory"),
            workspace=frame.get("workspace"),
            created_at=frame.get("created_at") or time.time(),
            notes=[*self.notes, *(frame.get("notes") or ())],
            open_files=frame.get("open_files"),
            wrote_connection_file=not frame.get("connection"),
        )
        shelf = Shelf(
            os.path.join(runtime, f"spool-{kernel_id}"),
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
                f"the runtime folder {runtime!r} cannot be written: {error.strerror}. "
                "Point KERNELBOX_RUNTIME_DIR or KERNELBOX_HOME at a folder you own."
            ) from None
        kernel = self._make_kernel(identity, shelf=shelf, epoch=epoch)
        if settings.audit_log:
            self._audit(kernel, settings)
        household = Household(kernel, listener, self._open_door(kernel, ports))
        self.households[kernel_id] = household
        self.reactor.watch(listener.fileno(), lambda: self._accept(household))
        return kernel

    def _audit(self, kernel: Kernel, settings: Settings) -> None:
        from kernelbox.warden import auditing

        whole = settings.audit_code == "whole"
        audit = auditing.Auditor(auditing.open_log(settings), kernel, whole_code=whole)
        kernel.audit = audit
        kernel.observers.append(audit)
        audit.created()

    # -- ending -----------------------------------------------------------------------------

    def end_kernel(self, kernel: Kernel, cause: str) -> None:
        """End one kernel; the family ends with its last."""
        household = self.households.pop(kernel.identity.kernel_id, None)
        if household is None:
            return
        identity = kernel.identity
        self.reactor.forget(household.listener.fileno())
        household.listener.close()
        paths = [identity.address]
        if identity.wrote_connection_file:
            paths.append(identity.connection_file)
        for path in paths:
            with contextlib.suppress(OSError):
                os.unlink(path)
        kernel.end(cause)
        if kernel.audit is not None:
            kernel.audit.ended(cause)
        household.door.close()
        kernel.shelf.clear()
        self._leave_workspace(identity)
        # That is how an owner hears of the end. A keeper may have come in by this kernel's door,
        # and keeps the whole family.
        for client in [client for client in self._clients if client.is_for(kernel)]:
            if client not in self.watchers:
                client.hang_up()
        self._tell_watchers(
            {
                "event": "ended",
                "kernel_id": identity.kernel_id,
                "cause": cause,
                "epoch": kernel.epoch,
            }
        )
        if not self.households:
            self.end()

    def _leave_workspace(self, identity: Identity) -> None:
        """A folder goes with the last kernel that has it for its own."""
        if not identity.workspace:
            return
        for household in self.households.values():
            other = household.kernel.identity
            if other.cwd == identity.workspace and not other.workspace:
                other.workspace = identity.workspace
                return
        shutil.rmtree(identity.workspace, ignore_errors=True)

    def kernel_changed(self, kernel: Kernel) -> None:
        """Its namespace is another: who is asked for its record must know, before its caller."""
        if kernel.identity.kernel_id in self.households:
            if kernel.audit is not None:
                kernel.audit.changed()
            self._tell_watchers({"event": "changed", "record": kernel.record()})

    def kernel_stirred(self, kernel: Kernel) -> None:
        """It has begun something, or ended it. The keeper, whom others ask for a list, is told in a
        moment, once for many."""
        kernel_id = kernel.identity.kernel_id
        if kernel_id in self._stirred:
            return
        self._stirred.add(kernel_id)

        def tell() -> None:
            self._stirred.discard(kernel_id)
            if kernel_id in self.households:
                record = kernel.record()
                self._tell_watchers({"event": "changed", "record": record, "minor": True})

        self.reactor.call_later(_TELL_AFTER, tell)

    def _tell_watchers(self, event: Frame) -> None:
        for watcher in list(self.watchers):
            watcher.send(event)

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
            if self._stub_pid_gone():
                # Whatever outlived its stub is our child now.
                linux.kill_descendants(os.getpid())
                linux.reap()
        linux.kill_descendants(os.getpid())
        self._before_leaving()
        for client in list(self._clients):
            client.flush(0.5)
        os._exit(0)

    def _wall_facts(self) -> Frame | None:
        """For ``status``: its profile, its limits and what it uses of them."""
        return None

    @property
    def profile(self) -> Frame | None:
        """The walls around the family; None: it stands in the open."""
        return None

    def _why_all_ended(self) -> str | None:
        """When the stub has died: what is known of it."""
        return None

    def _before_leaving(self) -> None:  # noqa: B027 - most have nothing to do
        """All processes have ended; what they leave behind goes now."""

    def _stub_pid_gone(self) -> bool:
        poll = select.poll()
        poll.register(self._stub_death, select.POLLIN)
        return bool(poll.poll(0))

    def retire_if_idle(self, kernel: Kernel, idle: float, reply: Reply) -> None:
        """End a kernel that nobody has used for ``idle`` seconds; decided here, atomically."""

        def is_idle() -> bool:
            return (
                not kernel.busy
                and time.time() - kernel.last_used_at >= idle
                and kernel.identity.kernel_id not in self._parents()
                and not kernel.background_work()
            )

        def answered(content: dict[str, Any] | None) -> None:
            kernel.last_used_at = used_at
            if content is None or content.get("background") or not calm():
                reply({"retired": False})
                return
            reply({"retired": True})
            cause = f"idle for {idle:g} s (KERNELBOX_KERNEL_IDLE_TIMEOUT)"
            self.reactor.call_soon(lambda: self.end_kernel(kernel, cause))

        def calm() -> bool:
            # The question itself is what runs now; nothing may wait behind it.
            return not kernel._queue and time.time() - kernel.last_used_at >= idle

        if not is_idle():
            reply({"retired": False, "last_used_at": kernel.last_used_at})
            return
        used_at = kernel.last_used_at
        kernel.ask("background", {}, on_answer=answered)

    def _parents(self) -> set[str]:
        """Kernels with live branches."""
        return {
            household.kernel.identity.parent
            for household in self.households.values()
            if household.kernel.identity.parent
        }

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

    # -- clients ----------------------------------------------------------------------------

    def _accept(self, household: Household) -> None:
        for _ in range(64):
            try:
                sock, _ = household.listener.accept()
            except BlockingIOError:
                return
            except OSError:
                return
            if _peer_uid(sock) not in (os.getuid(), 0):
                sock.close()
                continue
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

    def describe(self, kernel: Kernel) -> dict[str, Any]:
        status = kernel.describe()
        if (facts := self._wall_facts()) is not None:
            status["walls"] = facts
        status["processes"] += [
            process_facts(os.getpid(), "warden"),
            process_facts(self.stub_pid, "stub"),
        ]
        return status


def _peer_uid(sock: socket.socket) -> int:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    uid: int = _PEER_CREDENTIALS.unpack(raw)[1]
    return uid
