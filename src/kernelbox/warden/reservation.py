"""What a spare has ready before it is anybody's: ports, a socket, a folder, a connection file."""

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
    spool: str
    ports: Ports
    listener: socket.socket
    ports_taken: bool = False
    listener_taken: bool = False
    published: bool = False

    def take_ports(self) -> Ports:
        self.ports_taken = True
        return self.ports

    def take_listener(self, address: str) -> socket.socket | None:
        """The socket, if this is where it listens."""
        if address != self.address:
            return None
        self.listener_taken = True
        return self.listener

    def publish(self, path: str, ports: Ports) -> bool:
        """Give the file its real name; False if the kernel has another, or other ports."""
        if path != self.connection_file or ports is not self.ports:
            return False
        with contextlib.suppress(FileNotFoundError):  # the keeper was first
            os.rename(self.draft, path)
        self.published = True
        return True

    def discard(self) -> None:
        """Leave nothing of what was not taken."""
        if not self.published:
            with contextlib.suppress(OSError):
                os.unlink(self.draft)
        if not self.listener_taken:
            self.listener.close()
            with contextlib.suppress(OSError):
                os.unlink(self.address)
            with contextlib.suppress(OSError):
                os.rmdir(self.spool)
        if not self.ports_taken:
            self.ports.close()


def reserve(frame: Frame) -> Reservation:
    """As the keeper asks for it; all of it or nothing."""
    ports = open_ports()
    try:
        listener = listen(frame["address"])
    except OSError:  # the keeper has left, and taken the folder along
        ports.close()
        raise
    made = Reservation(
        frame["address"],
        frame["draft"],
        frame["connection_file"],
        frame["spool"],
        ports,
        listener,
    )
    try:
        # On a full disk it must come to light now that there was no room for it.
        os.mkdir(made.spool, 0o700)  # not the folders above: a home that is gone stays gone
        write_private(made.draft, ports.info)
    except OSError:
        made.discard()
        raise
    return made


def listen(address: str) -> socket.socket:
    """A Unix socket for us alone; nobody is let in yet."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address)
        listener.bind(address)
        os.chmod(address, 0o600)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
