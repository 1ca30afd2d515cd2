"""What a spare has ready before it is anybody's: ports, a listening socket, a connection file."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass

from kernelbox.warden.connection import Ports, open_ports, write_private
from kernelbox.wire import Frame

_BACKLOG = 1024


@dataclass(slots=True)
class Reservation:
    """Taken piece by piece by the kernel that the spare becomes.

    The connection file has a name that nobody looks for until the keeper, in the moment it hands
    out the kernel, renames it.
    """

    address: str
    draft: str
    connection_file: str
    ports: Ports
    listener: socket.socket | None

    def take_listener(self, address: str) -> socket.socket | None:
        """The socket, if this is where it listens."""
        if address != self.address:
            return None
        listener, self.listener = self.listener, None
        return listener

    def publish(self, path: str, ports: Ports) -> bool:
        """Give the file its real name; False if the kernel has another, or other ports."""
        if path != self.connection_file or ports is not self.ports:
            return False
        with contextlib.suppress(FileNotFoundError):  # the keeper was first
            os.rename(self.draft, path)
        return True

    def discard(self) -> None:
        """Leave nothing of what was not taken."""
        unused = [self.draft] if self.listener is None else [self.draft, self.address]
        for path in unused:
            with contextlib.suppress(OSError):
                os.unlink(path)


def reserve(frame: Frame) -> Reservation:
    """As the keeper asks for it."""
    ports = open_ports()
    write_private(frame["draft"], ports.info)
    return Reservation(
        frame["address"],
        frame["draft"],
        frame["connection_file"],
        ports,
        listen(frame["address"]),
    )


def listen(address: str) -> socket.socket:
    """A Unix socket for us alone; nobody is let in yet."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(address)
    listener.bind(address)
    os.chmod(address, 0o600)
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener
