"""TCP connections that need none of asyncio's threads: those may all be taken."""

from __future__ import annotations

import asyncio
import socket

from kernelbox.gateway.apart import in_thread

_PATIENCE = 10.0


async def dial(host: str, port: int) -> socket.socket:
    """Connect to the first address of a host that answers."""
    found = await in_thread(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    failure: OSError = ConnectionRefusedError(f"{host} has no address")
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(_PATIENCE):
                await asyncio.get_running_loop().sock_connect(sock, address)
        except OSError as error:  # TimeoutError is one
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure
