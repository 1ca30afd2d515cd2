"""The warden of a foreign kernel: the same queue, lane and words, around somebody else's process.

Started by the keeper as ``python -m kernelbox.warden.foreign REQUEST_FD RUNDIR ASKED_AT``. The
kernel is spawned as its kernelspec says and reached over TCP with a private connection file; it
is never forked. So this is also the path for macOS and Windows, where our own kernel cannot be.
What a port has to replace is one seam, :meth:`ForeignFamily._spawn` and the stub behind it (start a
command, tell of its end, end all that it started), and below it the reactor's epoll and the lane's
Unix sockets. It is **untested** anywhere but on Linux.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import signal
import socket
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from kernelbox.config import Settings
from kernelbox.errors import Unsupported
from kernelbox.inside import linux, stub
from kernelbox.warden import kernelspecs
from kernelbox.warden.bash_member import BashMember
from kernelbox.warden.connection import CHANNELS, Ports, write_private
from kernelbox.warden.exits import oom_kills
from kernelbox.warden.foreign_channels import ForeignChannels
from kernelbox.warden.foreign_member import ForeignMember
from kernelbox.warden.household import Door
from kernelbox.warden.identity import Identity
from kernelbox.warden.kernel import Kernel
from kernelbox.warden.member import Member
from kernelbox.warden.shelf import Shelf
from kernelbox.warden.warden import Reply, Warden
from kernelbox.wire import Frame

_START_SHARE = 0.9  # of the caller's patience: the failure must reach him in time
_LEAST_PATIENCE = 1.0
_FEWEST_FILES = 1024


class ForeignKernel(Kernel):
    """A kernel whose language is its own and whose process may have other clients."""

    language = ""

    def language_for(self, wanted: str) -> str:
        """``python``, the default, means the kernel's own language; bash is no neighbour here."""
        if wanted == "bash" and self.language.lower() != "bash":
            identity = self.identity
            raise Unsupported(
                f"kernel {identity.name!r} is a foreign kernel ({identity.kernel_type}) and runs "
                f"{self.language or 'its own language'}; language='bash' needs our own python3 "
                "kernel, or a bash kernelspec"
            )
        return "python"

    def background_work(self) -> bool:
        """Processes that a cell left running; those that the kernel is made of do not count."""
        member = self.member
        if not isinstance(member, ForeignMember) or not member.pid:
            return False
        return not member.own_processes.issuperset(linux.descendants(member.pid))

    def member_said(self, member: Member, frame: Frame) -> None:
        if frame["op"] == "used":  # by a Jupyter client that is attached to it directly
            self.last_used_at = time.time()
        else:
            super().member_said(member, frame)


class ForeignFamily(Warden):
    """One kernel, one process at a time; a new one begins when the last is gone."""

    def __init__(
        self, request: socket.socket, control: socket.socket, stub_pid: int, *, asked_at: float
    ) -> None:
        super().__init__(request, control, stub_pid)
        self.can_fork = False
        import zmq

        self._asked_at = asked_at

        self._context = zmq.Context()
        self._spec: kernelspecs.Kernelspec | None = None
        self._ports: Ports | None = None
        self._starting: dict[int, ForeignMember] = {}
        self._running: dict[int, ForeignMember] = {}
        self._waiting: tuple[ForeignMember, Frame, Sequence[int]] | None = None
        self._tags = 0

    # -- what a foreign kernel cannot do ----------------------------------------------------

    def prime(self, frame: Frame, reply: Reply) -> None:
        """There are no spares: what a foreign kernel costs, it costs at its start."""

    def branch(self, kernel: Kernel, frame: Frame, reply: Reply) -> None:
        raise Unsupported(
            f"kernel {kernel.identity.name!r} is a foreign kernel ({self.kernel_type}); "
            "branching needs our own python3 kernel"
        )

    def start_bash(self, kernel: Kernel, cwd: str) -> BashMember:
        raise Unsupported("bash needs our own python3 kernel")

    # -- moving in --------------------------------------------------------------------------

    def _become(self, frame: Frame, reply: Reply) -> None:
        settings = Settings.from_wire(frame["settings"])
        self.kernel_type = settings.kernel_type
        self._spec = kernelspecs.find(settings.kernel_type)
        _limit_open_files(self.stub_pid, frame.get("open_files"))
        super()._become(frame, reply)

    def _make_kernel(self, identity: Identity, *, shelf: Shelf, epoch: int) -> Kernel:
        kernel = ForeignKernel(self, identity, shelf=shelf, epoch=epoch)
        assert self._spec is not None
        kernel.language = self._spec.language
        return kernel

    def _open_ports(self, frame: Frame) -> Ports:
        """Ports that the kernel will listen on: ours by name only, and for all its restarts.

        Bound but not listening, with SO_REUSEADDR: nobody is given them by chance, and the kernel
        (ZeroMQ sets the same option) can still bind them.
        """
        held: dict[str, socket.socket] = {}
        for channel in CHANNELS:
            sock = held[channel] = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", 0))
        numbers = {f"{channel}_port": sock.getsockname()[1] for channel, sock in held.items()}
        self._ports = Ports(
            held,
            {
                "transport": "tcp",
                "ip": "127.0.0.1",
                "key": secrets.token_hex(32),
                "signature_scheme": "hmac-sha256",
                "kernel_name": self.kernel_type,
                **numbers,
            },
        )
        return self._ports

    def _open_door(self, kernel: Kernel, ports: Ports) -> Door:
        """Jupyter clients speak to the kernel itself; we only give its ports back at the end."""
        return ports

    # -- its process ------------------------------------------------------------------------

    def start_interpreter(self, kernel: Kernel) -> ForeignMember:
        assert self._spec is not None
        assert self._ports is not None
        assert self.settings is not None
        info = self._ports.info
        member = ForeignMember(
            self.reactor,
            kernel,
            spec=self._spec,
            connection_file=kernel.identity.connection_file,
            connect=partial(ForeignChannels, self.reactor, self._context, info),
            spawn=self._spawn,
            patience=self._patience(self.settings.start_timeout),
        )
        member.oom_before = oom_kills()
        # Kernels that end by themselves take their connection file along.
        with contextlib.suppress(OSError):
            write_private(kernel.identity.connection_file, info)
        return member

    def _patience(self, start_timeout: float) -> float:
        """What is left of the caller's; a restart begins with all of it again."""
        asked_at, self._asked_at = self._asked_at, 0.0
        spent = time.monotonic() - asked_at if asked_at else 0.0
        return max(start_timeout * _START_SHARE - spent, _LEAST_PATIENCE)

    def _spawn(self, member: ForeignMember, order: Frame, fds: Sequence[int]) -> None:
        """Start the process, as soon as the one before it has let go of the ports."""
        if self._starting or self._running:
            if self._waiting is not None:  # restarted again before it could begin
                self._waiting[0].close()
                _close_all(self._waiting[2])
            self._waiting = (member, order, fds)
            return
        self._tags += 1
        self._starting[self._tags] = member
        self._stub.send({"op": "spawn", "tag": self._tags, **order}, fds)
        _close_all(fds)
        member.spawned()

    def _stub_said(self, frame: Frame) -> None:
        match frame.get("op"):
            case "started":
                member = self._starting.pop(frame["tag"], None)
                if member is not None:
                    self._running[frame["pid"]] = member
                    member.started(frame["pid"])
            case "failed":
                member = self._starting.pop(frame["tag"], None)
                if member is not None:
                    self._gone(member, 1 << 8)
            case "exit":
                member = self._running.pop(frame["pid"], None)
                if member is not None:
                    self._gone(member, frame["status"])

    def _gone(self, member: ForeignMember, status: int) -> None:
        waiting, self._waiting = self._waiting, None
        member.exited(status, oom_kills=oom_kills() - member.oom_before)
        if waiting is not None and not self._ended:
            self._spawn(*waiting)


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def _limit_open_files(pid: int, limits: list[int] | None) -> None:
    """Give the kernel the caller's limit; ours is as high as it goes."""
    if limits:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        soft = max(limits[0], _FEWEST_FILES) if limits[0] >= 0 else hard
        with contextlib.suppress(OSError, ValueError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(soft, hard), hard))


def main(argv: list[str]) -> NoReturn:
    """Fork the stub while there is nothing to inherit, then be a warden until the kernel ends."""
    request = socket.socket(fileno=int(argv[1]))
    linux.unblock_signals()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # a kernel that inherits "ignored" is deaf
    mine, theirs = socket.socketpair()
    stub_pid = os.fork()
    if stub_pid == 0:
        mine.close()
        request.close()
        stub.main(theirs, None)
    theirs.close()
    linux.set_name("kb-warden")
    linux.adopt_orphans()
    ForeignFamily(request, mine, stub_pid, asked_at=float(argv[3])).run()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv)
