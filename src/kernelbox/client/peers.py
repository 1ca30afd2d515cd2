"""Who listens at an address, and how long to wait for them."""

from __future__ import annotations

import os
import socket
import struct

from kernelbox.errors import KeeperUnavailable

LONGEST_PATIENCE = 1_000_000.0
"""Seconds. A socket cannot count much further; nobody waits that long."""

_PEER_CREDENTIALS = struct.Struct("3i")


def check_peer(sock: socket.socket, address: str) -> None:
    """Nothing of ours is told to a socket of somebody else: a request holds the environment."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    uid = _PEER_CREDENTIALS.unpack(raw)[1]
    if uid not in (os.getuid(), 0):
        raise KeeperUnavailable(
            f"{address!r} belongs to another user (uid {uid}); somebody may be trying to listen "
            f"in. Remove {os.path.dirname(address)!r}."
        )
