"""How the gate gets to a server: names are looked up here, once, and each address is decided."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable

from kernelbox.walls import domains
from kernelbox.walls.domains import Host, Policy, Refusal
from kernelbox.walls.streams import Stream
from kernelbox.walls.targets import Answer, refuse, refused

Resolve = Callable[[str, int], Awaitable[list[str]]]


async def system_resolve(name: str, port: int) -> list[str]:
    """The addresses of a name, as this machine sees it."""
    # In bytes, because text would be put through Python's own idea of Unicode names once more.
    found = await asyncio.get_running_loop().getaddrinfo(
        name.encode("ascii"), port, type=socket.SOCK_STREAM
    )
    return [str(where[0]) for *_, where in found]


def _is_this_machine(address: str) -> bool:
    """Whether the kernel would deliver to ourselves: a public address of this machine is a way to
    services that no firewall in front of it guards. Asked of the routing table."""
    packed = ipaddress.ip_address(address).packed
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    getroute, newroute, request, local, destination = 26, 24, 1, 2, 1
    question = struct.pack("=8BI", family, 8 * len(packed), *[0] * 6, 0)
    question += struct.pack("=HH", 4 + len(packed), destination) + packed
    header = struct.pack("=IHHII", 16 + len(question), getroute, request, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as kernel:
        kernel.send(header + question)
        answer = kernel.recv(4096)  # always at hand when send returns
    (kind,) = struct.unpack_from("=H", answer, 4)
    return kind == newroute and answer[16 + 7] == local


class Reach:
    """Connections to where the policy lets them go."""

    def __init__(self, policy: Policy, resolve: Resolve, *, patience: float) -> None:
        self._policy, self._resolve, self._patience = policy, resolve, patience

    def decide(self, host: Host, port: int) -> None:
        """Nothing, if the policy has nothing against it."""
        refuse(domains.decide(self._policy, host, port), host, port)

    async def to(self, host: Host, port: int, tls: ssl.SSLContext | None = None) -> Stream:
        """A connection to the target, if the policy has nothing against it."""
        self.decide(host, port)
        where = host.with_port(port)
        try:
            async with asyncio.timeout(self._patience):
                return await self._connect(host, port, tls)
        except TimeoutError:
            seconds = self._patience
            raise Answer(504, f"{where} did not answer within {seconds:g} s") from None
        except ssl.SSLCertVerificationError as error:
            words = f"{where} could not prove who it is: {error.verify_message}"
            raise Answer(
                502, words, reason="certificate-not-trusted", host=host.text, port=port
            ) from None
        except (OSError, UnicodeError) as error:
            raise Answer(502, f"no connection to {where}: {error}") from None

    async def _connect(self, host: Host, port: int, tls: ssl.SSLContext | None) -> Stream:
        addresses = [host.text] if host.literal else await self._resolve(host.text, port)
        if not addresses:
            raise OSError("the name has no address")
        good = domains.vet(self._policy, host, addresses)
        if isinstance(good, list) and not self._policy.private:
            good = [address for address in good if not _is_this_machine(address)] or Refusal(
                "address-not-public",
                f"{host.text} is this machine, whose services are closed to sandboxes",
            )
        if isinstance(good, Refusal):
            raise refused(good, host, port)
        failure = OSError("no address could be reached")
        for position, address in enumerate(good):
            # A dead address must not take the time of those after it.
            patience = self._patience / (len(good) - position + 1)
            try:
                async with asyncio.timeout(patience if position + 1 < len(good) else None):
                    return await Stream.connect(address, port, tls, name=host.text)
            except OSError as error:
                failure = error
        raise failure
