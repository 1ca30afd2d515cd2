"""A family: one stub, the kernels whose processes it parents, and the sockets they are reached by."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from kernelbox.config import Settings
from kernelbox.errors import BadInput, BoxError, StartupFailed, Unsupported
from kernelbox.inside import linux
from kernelbox.reactor import Peer, Reactor
from kernelbox.warden.bash_member import BashMember
from kernelbox.warden.connection import Ports, open_ports, write_private
from kernelbox.warden.execution import Loss
from kernelbox.warden.exits import Exit, oom_kills
from kernelbox.warden.kernel import ForkOrder, Identity, Kernel
from kernelbox.warden.lanes.jupyter import JupyterDoor
from kernelbox.warden.lanes.native import NativeClient
from kernelbox.warden.python_member import PythonMember, process_facts
from kernelbox.warden.shelf import Shelf
from kernelbox.wire import Frame

_LAST_CHILD_PATIENCE = 6.0
_BACKLOG = 1024
_PEER_CREDENTIALS = struct.Struct("3i")
_PORT_PATIENCE = 5.0


class Household:
    """A kernel with the things that outlive its interpreters: sockets, ports, files."""

    def __init__(self, kernel: Kernel, listener: socket.socket, door: JupyterDoor) -> None:
        self.kernel = kernel
        self.listener = listener
        self.door = door


class Family:
    """The warden's whole world. Runs until its last kernel has ended."""

    def __init__(self, request: socket.socket, control: socket.socket, stub_pid: int) -> None:
        self.reactor = Reactor()
        self.stub_pid = stub_pid
        self.households: dict[str, Household] = {}
        self.mortal = True  # until it is somebody's, it ends with the keeper
        self.settings: Settings | None = None
        self._members: dict[int, PythonMember] = {}
        self._shells: dict[int, BashMember] = {}
        self._starting: dict[int, PythonMember | BashMember] = {}
        self._clients: set[NativeClient] = set()
        self._tags = 0
        self._ended = False
        self._stub = Peer(
            self.reactor, control, on_frame=self._stub_said, on_close=self._stub_closed
        )
        self._stub_death = os.pidfd_open(stub_pid)
        self.reactor.watch(self._stub_death, self._stub_died)
        self.spare: PythonMember | None = self._new_member(_Nobody())
        self.keeper: NativeClient | None = self._welcome(request, None)

    def run(self) -> None:
        self.reactor.run()

    # -- becoming and branching -------------------------------------------------------------

    def prime(self) -> None:
        """Pay the first cell's price ahead, while nobody waits."""
        if self.spare is not None:
            self.spare.send({"op": "prime"})

    def become(self, frame: Frame, reply: Callable[[dict[str, Any] | BoxError], None]) -> None:
        """Turn the spare into the caller's kernel."""
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
        spare, self.spare = self.spare, None
        kernel.start_interpreter(spare if spare is None or spare.ended is None else None)

    def branch(
        self, kernel: Kernel, frame: Frame, reply: Callable[[dict[str, Any] | BoxError], None]
    ) -> None:
        """Fork a live interpreter; the copy becomes a kernel of its own under a new name."""
        settings = Settings.from_wire(frame["settings"])
        branched: list[Kernel] = []
        copy = self._new_member(_Nobody(), start=False)

        def fail(why: str) -> None:
            copy.close()
            reply(StartupFailed(f"branch {frame['name']!r} could not be made: {why}"))

        def forked(error: str | None, notes: list[str]) -> None:
            if error is not None:
                fail(error)
                return
            newcomer = _Newcomer(lambda: arrived(notes), lambda why: fail(why))
            copy.give_to(newcomer)

        def arrived(notes: list[str]) -> None:
            identity = {**frame, "parent": kernel.identity.kernel_id, "notes": notes}
            identity.setdefault("cwd", kernel.identity.cwd)
            identity.setdefault("environ", kernel.identity.environ)
            child = self._add_kernel(identity, settings, epoch=kernel.epoch)
            child.history._entries.extend(kernel.history._entries)
            branched.append(child)
            self._members[copy.inner_pid] = copy
            child.adopt(copy)
            reply({"record": child.record(), "warden": os.getpid()})

        order = ForkOrder(copy, forked)

        def too_late() -> None:
            if kernel.withdraw(order):
                order.copy.handed_over()
                fail(f"the running cell did not end within {settings.fork_timeout:g} s")

        order.deadline = self.reactor.call_later(settings.fork_timeout, too_late)
        kernel.submit(order)

    def _add_kernel(self, frame: Frame, settings: Settings, *, epoch: int) -> Kernel:
        ports = self._open_ports(frame.get("connection"))
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
            startup_code=settings.startup_code,
            session_name=frame.get("session_name"),
            tags=frame.get("tags") or {},
            parent=frame.get("parent"),
            notes=list(frame.get("notes") or ()),
            open_files=frame.get("open_files"),
        )
        shelf = Shelf(
            os.path.join(runtime, f"spool-{kernel_id}"),
            limit=settings.spool_limit,
            total=settings.spool_total,
            keep=settings.spool_keep,
        )
        try:
            shelf.make_folder()
            if not frame.get("connection"):
                write_private(identity.connection_file, ports.info)
            listener = _listen(identity.address)
        except OSError as error:
            ports.close()
            raise BadInput(
                f"the runtime folder {runtime!r} cannot be written: {error.strerror}. "
                "Point KERNELBOX_RUNTIME_DIR or KERNELBOX_HOME at a folder you own."
            ) from None
        kernel = Kernel(self, identity, shelf=shelf, epoch=epoch)
        door = JupyterDoor(self.reactor, kernel, ports, on_shutdown=self._jupyter_shutdown)
        household = Household(kernel, listener, door)
        self.households[kernel_id] = household
        self.reactor.watch(listener.fileno(), lambda: self._accept(household))
        return kernel

    def _open_ports(self, info: dict[str, Any] | None) -> Ports:
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

    # -- ending -----------------------------------------------------------------------------

    def end_kernel(self, kernel: Kernel, cause: str) -> None:
        """End one kernel; the family ends with its last."""
        household = self.households.pop(kernel.identity.kernel_id, None)
        if household is None:
            return
        identity = kernel.identity
        self.reactor.forget(household.listener.fileno())
        household.listener.close()
        for path in (identity.address, identity.connection_file):
            with contextlib.suppress(OSError):
                os.unlink(path)
        kernel.end(cause)
        household.door.close()
        kernel.shelf.clear()
        if self.keeper is not None:
            self.keeper.send(
                {
                    "event": "ended",
                    "kernel_id": identity.kernel_id,
                    "cause": cause,
                    "epoch": kernel.epoch,
                }
            )
        if not self.households:
            self.end()

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
        for client in list(self._clients):
            client.flush(0.5)
        os._exit(0)

    def _stub_pid_gone(self) -> bool:
        poll = select.poll()
        poll.register(self._stub_death, select.POLLIN)
        return bool(poll.poll(0))

    def retire_if_idle(
        self, kernel: Kernel, idle: float, reply: Callable[[dict[str, Any] | BoxError], None]
    ) -> None:
        """End a kernel that nobody has used for ``idle`` seconds; decided here, atomically."""

        def is_idle() -> bool:
            return (
                not kernel.busy
                and time.time() - kernel.last_used_at >= idle
                and len(self.households) == 1
                or not kernel.busy
                and time.time() - kernel.last_used_at >= idle
                and kernel.identity.kernel_id not in self._parents()
            ) and not kernel.background_work()

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

    def _jupyter_shutdown(self, kernel: Kernel) -> None:
        self.end_kernel(kernel, "a Jupyter client asked it to shut down")

    # -- members ----------------------------------------------------------------------------

    def start_interpreter(self, kernel: Kernel) -> PythonMember:
        return self._new_member(kernel)

    def start_bash(self, kernel: Kernel, cwd: str) -> BashMember:
        self._tags += 1
        member = BashMember(self.reactor, kernel)
        self._starting[self._tags] = member
        order, fds = member.order(cwd, kernel.identity.environ)
        self._stub.send({"op": "spawn", "tag": self._tags, **order}, fds)
        member.handed_over()
        return member

    def _new_member(self, owner: Any, *, start: bool = True) -> PythonMember:
        member = PythonMember(self.reactor, owner)
        member.oom_before = oom_kills()
        if start:
            self._tags += 1
            self._starting[self._tags] = member
            self._stub.send(
                {
                    "op": "interpreter",
                    "tag": self._tags,
                    "token": member.token,
                    "fds": len(member.far_fds),
                },
                member.far_fds,
            )
            member.handed_over()
        return member

    def _stub_said(self, frame: Frame) -> None:
        match frame.get("op"):
            case "started":
                member = self._starting.pop(frame["tag"], None)
                if isinstance(member, PythonMember):
                    member.inner_pid = frame["pid"]
                    self._members[frame["pid"]] = member
                elif isinstance(member, BashMember):
                    member.started(frame["pid"])
                    self._shells[frame["pid"]] = member
            case "failed":
                failed = self._starting.pop(frame["tag"], None)
                if failed is not None:
                    failed.exited(1 << 8)
            case "exit":
                pid, status = frame["pid"], frame["status"]
                if (python := self._members.pop(pid, None)) is not None:
                    python.exited(status, oom_kills=oom_kills() - python.oom_before)
                elif (shell := self._shells.pop(pid, None)) is not None:
                    shell.exited(status)

    def _stub_closed(self) -> None:
        """Its death is told by the pidfd."""

    def _stub_died(self) -> None:
        """Killed from inside or outside: nobody parents the family any more, so it ends."""
        self.reactor.forget(self._stub_death)
        if self._ended:
            return
        linux.kill_descendants(os.getpid())
        for household in list(self.households.values()):
            self.end_kernel(household.kernel, "the process that parents the kernel was killed")
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
        if client is self.keeper:
            self.keeper = None
            if self.mortal:
                self.end()
        if client.owns is not None:
            self.end_kernel(client.owns, "its owner ended")

    def describe(self, kernel: Kernel) -> dict[str, Any]:
        status = kernel.describe()
        status["processes"] += [
            process_facts(os.getpid(), "warden"),
            process_facts(self.stub_pid, "stub"),
        ]
        return status


class _Nobody:
    """Owns an interpreter that is not anybody's yet."""

    def member_said(self, member: PythonMember, frame: Frame) -> None:
        pass

    def member_printed(self, member: PythonMember, name: str, text: str) -> None:
        pass

    def member_ended(self, member: PythonMember, exit: Exit) -> None:
        pass


class _Newcomer(_Nobody):
    """Owns the copy of a fork until it has said hello."""

    def __init__(self, arrived: Callable[[], None], failed: Callable[[str], None]) -> None:
        self._arrived = arrived
        self._failed = failed

    def member_said(self, member: PythonMember, frame: Frame) -> None:
        if frame.get("op") == "hello":
            self._arrived()

    def member_ended(self, member: PythonMember, exit: Exit) -> None:
        self._failed(exit.cause)


def _listen(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(address)
    listener.bind(address)
    os.chmod(address, 0o600)
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


def _peer_uid(sock: socket.socket) -> int:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    uid: int = _PEER_CREDENTIALS.unpack(raw)[1]
    return uid


def main(request: socket.socket, control: socket.socket, stub_pid: int) -> None:
    """Be a warden until the family has ended."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    Family(request, control, stub_pid).run()
