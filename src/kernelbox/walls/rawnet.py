"""The network of a sandbox with raw sockets, in two namespaces::

    sandbox: kb0 ══ kb-in :between: kb-out ══ pasta ── the host's sockets

Code inside may bind its sockets to an interface, and then the kernel sends what it likes there, to
any address, routes or no routes. So what may be reached is decided next door, in a namespace where
nobody runs anything: it forwards what its routes let through, and these lead to the Internet and to
nothing nearer. It forwards no multicast, no broadcast, and nothing from or to a loopback.
"""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import os
import re
import socket
import struct
from collections.abc import Iterable

from kernelbox.walls import domains, kernelcalls as calls
from kernelbox.walls.plan import RAW_RESOLVER

INTERFACE = "kb0"
_INWARD, OUTWARD = "kb-in", "kb-out"
# Of a network that is for measuring devices with each other, and on no Internet.
ADDRESS, GATEWAY = "198.18.99.2", "198.18.99.1"
_NEXT_DOOR, _OUTSIDE = "198.18.99.6", "198.18.99.5"
EVERYWHERE = "0.0.0.0/0"

_SIOCADDRT = 0x890B
_SIOCSIFADDR, _SIOCSIFNETMASK = 0x8916, 0x891C
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_IFF_UP = 1
_RTF_UP, _RTF_GATEWAY, _RTF_HOST, _RTF_REJECT = 1, 2, 4, 0x200
_LOCAL = re.compile(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL")
_ERROR, _NEWLINK = 2, 16
_IFNAME, _LINKINFO, _NET_NS_FD, _INFO_KIND, _INFO_DATA, _PEER = 3, 18, 28, 1, 2, 1


class _Route(ctypes.Structure):
    """``struct rtentry``."""

    _fields_ = (
        ("pad1", ctypes.c_ulong),
        ("destination", ctypes.c_char * 16),
        ("gateway", ctypes.c_char * 16),
        ("mask", ctypes.c_char * 16),
        ("flags", ctypes.c_ushort),
        ("pad2", ctypes.c_short),
        ("pad3", ctypes.c_ulong),
        ("pad4", ctypes.c_void_p),
        ("metric", ctypes.c_short),
        ("device", ctypes.c_char_p),
        ("mtu", ctypes.c_ulong),
        ("window", ctypes.c_ulong),
        ("irtt", ctypes.c_ushort),
    )


def own_addresses() -> list[str]:
    """What this machine is called by itself: no sandbox gets there, by a public address either.
    Asked outside, where the host's network is."""
    with open("/proc/net/fib_trie") as file:
        return sorted(set(_LOCAL.findall(file.read())))


def open_door(sandbox: int) -> None:
    """In the namespace between: a pair of interfaces, one of them in the namespace ``sandbox``."""
    peer = struct.pack("=BxHiII", 0, 0, 0, 0, 0) + _attribute(_IFNAME, f"{INTERFACE}\0".encode())
    peer += _attribute(_NET_NS_FD, struct.pack("=I", sandbox))
    info = _attribute(_INFO_KIND, b"veth") + _attribute(_INFO_DATA, _attribute(_PEER, peer))
    content = struct.pack("=BxHiII", 0, 0, 0, 0, 0)
    content += _attribute(_IFNAME, f"{_INWARD}\0".encode()) + _attribute(_LINKINFO, info)
    request, acknowledge, create, exclusive = 1, 4, 0x400, 0x200
    flags = request | acknowledge | create | exclusive
    header = struct.pack("=IHHII", 16 + len(content), _NEWLINK, flags, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as kernel:
        kernel.send(header + content)
        answer = kernel.recv(8192)
    (kind,) = struct.unpack_from("=H", answer, 4)
    (number,) = struct.unpack_from("=i", answer, 16) if kind == _ERROR else (0,)
    if number:
        raise _failed("a pair of interfaces (veth)", OSError(-number, os.strerror(-number)))


def guard(unreachable: Iterable[str]) -> None:
    """In the namespace between, when pasta's interface is there: first what is refused, then the
    ways, and only then anything is forwarded."""
    calls.raise_loopback()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        _raise(sock, _INWARD, _NEXT_DOOR)
        _raise(sock, OUTWARD, _OUTSIDE)
        refused = [*domains.not_public_networks(), *map(ipaddress.IPv4Network, unreachable)]
        for network in refused:
            if not network.is_loopback:  # which is refused by the kernel itself
                _add(sock, str(network), flags=_RTF_REJECT)
        _add(sock, ADDRESS, device=_INWARD)
        _add(sock, GATEWAY, device=OUTWARD)
        for wanted in (RAW_RESOLVER, EVERYWHERE):
            _add(sock, wanted, flags=_RTF_GATEWAY, gateway=GATEWAY)
    try:
        with open("/proc/sys/net/ipv4/ip_forward", "w") as file:
            file.write("1")
    except OSError as error:
        raise _failed("forwarding", error) from None


def furnish() -> None:
    """In the sandbox: one interface, and all that is not its own is next door."""
    calls.raise_loopback()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        _raise(sock, INTERFACE, ADDRESS)
        _add(sock, _NEXT_DOOR, device=INTERFACE)
        _add(sock, EVERYWHERE, flags=_RTF_GATEWAY, gateway=_NEXT_DOOR)


def _raise(sock: socket.socket, interface: str, address: str) -> None:
    """Up, with an address and no network around it: nobody is a neighbour."""
    name = interface.encode()
    try:
        for what, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.255")):
            fcntl.ioctl(sock, what, struct.pack("16s24s", name, _sockaddr(value)))
        request = struct.pack("16s24x", name)
        flags = struct.unpack("16sH22x", fcntl.ioctl(sock, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH22x", name, flags | _IFF_UP))
    except OSError as error:
        raise _failed(f"the interface {interface}", error) from None


def _add(
    sock: socket.socket, to: str, *, flags: int = 0, gateway: str = "0.0.0.0", device: str = ""
) -> None:
    network = ipaddress.IPv4Network(to)
    route = _Route()
    # A char array drops what follows a zero if it is set as a whole.
    for offset, address in (
        (_Route.destination.offset, str(network.network_address)),
        (_Route.gateway.offset, gateway),
        (_Route.mask.offset, str(network.netmask)),
    ):
        ctypes.memmove(ctypes.addressof(route) + offset, _sockaddr(address), 16)
    route.flags = _RTF_UP | flags | (_RTF_HOST if network.prefixlen == 32 else 0)
    if device:
        route.device = device.encode()
    libc = ctypes.CDLL(None, use_errno=True)
    request = ctypes.c_ulong(_SIOCADDRT)
    if libc.ioctl(sock.fileno(), request, ctypes.byref(route)) != 0:
        number = ctypes.get_errno()
        raise _failed(f"the route to {network}", OSError(number, os.strerror(number)))


def _attribute(kind: int, content: bytes) -> bytes:
    padding = -len(content) % 4
    return struct.pack("=HH", 4 + len(content), kind) + content + bytes(padding)


def _sockaddr(address: str) -> bytes:
    return struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))


def _failed(what: str, error: OSError) -> calls.StepFailed:
    return calls.StepFailed(
        error.errno or 0, f"setting up the network, {what}: {error.strerror or error}"
    )
