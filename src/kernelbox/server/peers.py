"""Whose process is at the other end of a connection on loopback, as Linux tells.

Loopback is open to every user of a machine, and without a token whoever reaches the service runs
code as its user.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import struct

GONE = -1
"""Stands for the owner of a connection that its client has closed already."""

Address = tuple[str, int]

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENS = 10
# From linux/netlink.h and linux/sock_diag.h.
_SOCK_DIAG, _BY_FAMILY, _REQUEST, _ANY = 4, 20, 1, 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBBxI")
_COOKIE = struct.Struct("=III")
_ENDS = 4 + 48  # what a reply has before the owner: its state, and the two addresses


def owner_of(client: Address | None, server: Address) -> int | None:
    """The user whose process made a connection to this machine's ``server``; None: this system does
    not tell."""
    if client is None:
        return GONE
    owner = _ask(client, server)
    if owner is not None:
        return owner
    return find_owner("".join(map(_read, _TABLES)), client, server)


def _ask(client: Address, server: Address) -> int | None:
    """Ask for one connection, which takes no time; all of them in /proc take milliseconds."""
    ends = [_plain(client), _plain(server)]
    family = socket.AF_INET if ends[0].version == 4 else socket.AF_INET6
    question = (
        _QUESTION.pack(family, socket.IPPROTO_TCP, 0, _ANY)
        + struct.pack("!HH", client[1], server[1])
        + b"".join(end.packed.ljust(16, b"\0") for end in ends)
        + _COOKIE.pack(0, _ANY, _ANY)
    )
    head = _HEADER.pack(_HEADER.size + len(question), _BY_FAMILY, _REQUEST, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as line:
            line.setblocking(False)
            line.send(head + question)
            reply = line.recv(8192)
    except (AttributeError, OSError):
        return None
    if _HEADER.unpack_from(reply)[1] != _BY_FAMILY:
        return None  # there is no such connection, or this kernel cannot look
    state = reply[_HEADER.size + 1]
    *_, owner, inode = struct.unpack_from("=5I", reply, _HEADER.size + _ENDS)
    # Nobody's any more: without an inode the owner reads as root.
    return int(owner) if inode and state != _LISTENS else GONE


def find_owner(tables: str, client: Address, server: Address) -> int | None:
    """The same from the text of the tables in /proc. Each connection has a row for each of its
    ends, and that of the client has the client's user."""
    if not re.search(rf"^ *\d+: \S+:{server[1]:04X} \S+:0000 0A ", tables, re.MULTILINE):
        return None  # it does not even tell that we listen
    for here, there in zip(_written(client), _written(server), strict=True):
        row = re.search(rf"^ *\d+: {here} {there} (.*)$", tables, re.MULTILINE)
        if row is not None:
            fields = row[1].split()
            return int(fields[4]) if fields[6] != "0" else GONE
    return GONE


def _plain(address: Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    found = ipaddress.ip_address(address[0].partition("%")[0])
    return getattr(found, "ipv4_mapped", None) or found


def _written(address: Address) -> tuple[str, str]:
    """An address as the tables have it: as IPv4, if it is one, and as IPv6."""
    found, port = _plain(address), f"{address[1]:04X}"
    if found.version == 6:
        return "-", f"{_words(found.packed)}:{port}"
    as_six = b"\0" * 10 + b"\xff\xff" + found.packed
    return f"{_words(found.packed)}:{port}", f"{_words(as_six)}:{port}"


def _words(packed: bytes) -> str:
    """Words of four bytes, each in the order of this machine."""
    return "".join(f"{word:08X}" for word in struct.unpack(f"={len(packed) // 4}I", packed))


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except OSError:
        return ""
