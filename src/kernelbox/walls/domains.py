"""Where a sandbox may connect to: the one spelling of a host, allow patterns, decisions; all pure.

A host has many spellings (case, a trailing dot, Unicode, numbers in every base), and whoever
compares two of them without making them one first can be talked round. So text becomes a `Host`
here, or is refused, and everything else compares hosts.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DEFAULT_PORTS = frozenset({80, 443})

_LONGEST_NAME = 253
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
_PORT = re.compile(r"[0-9]{1,5}")
# The older rules for names in Unicode (Python's) map these to something else, the newer ones (what
# browsers and requests follow) keep them: one spelling, two sites.
_TWO_MEANINGS = frozenset("ßς\u200c\u200d")
_SHOWN = 8

# https://www.iana.org/assignments/iana-ipv4-special-registry, and what clouds put elsewhere. A
# table of our own, because what `is_global` says differs between releases of Python, and counts
# multicast, NAT64 and 6to4 as global.
_NOT_PUBLIC_4 = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network, unspecified
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared by a carrier's customers; 100.100.100.200 is Alibaba's metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's metadata and agent, at an address that looks public
        "169.254.0.0/16",  # link-local, and most clouds' metadata
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments; 192.0.0.192 is Oracle's metadata
        "192.0.2.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
# Of version 6 only 2000::/3 is handed out at all: loopback, unspecified, v4-mapped (::ffff:0:0/96),
# NAT64 (64:ff9b::/96), unique local, link-local and multicast are all outside it.
_PUBLIC_6 = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID
        "2001:db8::/32",
        "2002::/16",  # 6to4: any v4 address in disguise
        "3fff::/20",
    )
)


class BadHost(ValueError):
    """The text names no host that could be compared with a list; says why."""


@dataclass(frozen=True, slots=True)
class Host:
    """A name in lower case ASCII without a trailing dot, or an address in its shortest form."""

    text: str
    literal: bool = False

    def with_port(self, port: int) -> str:
        return f"[{self.text}]:{port}" if ":" in self.text else f"{self.text}:{port}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not: a word for programs, and a sentence for whoever has to act on it."""

    reason: str
    words: str


@dataclass(frozen=True)
class Policy:
    """What may be reached.

    ``allow``: ``example.com``, ``*.example.com`` (any depth, not example.com itself), ``*``
    (everything public); each may end in ``:port``, and then means that port and no other.
    ``ports``: what a pattern without a port means. ``private``: addresses that are not public are
    reached too; for tests.
    """

    allow: tuple[str, ...]
    ports: frozenset[int] = DEFAULT_PORTS
    private: bool = False

    def __post_init__(self) -> None:
        for port in self.ports:
            if not 0 < port < 65536:
                raise ValueError(f"{port!r} is no port; write one from 1 to 65535")
        patterns = tuple(str(_pattern(text)) for text in self.allow)
        object.__setattr__(self, "allow", patterns)
        object.__setattr__(self, "ports", frozenset(self.ports))

    @property
    def everything(self) -> bool:
        """All names, and so no reason to look at what name a client tells the other side."""
        return self.allow == ("*",)

    def to_wire(self) -> dict[str, Any]:
        return {"allow": list(self.allow), "ports": sorted(self.ports), "private": self.private}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Policy:
        if unknown := sorted(set(wire) - {"allow", "ports", "private"}):
            raise ValueError(f"a network policy has no {unknown}; it has allow, ports and private")
        allow = wire["allow"]
        if isinstance(allow, str):
            raise ValueError(f"allow is a list of patterns; write [{allow!r}]")
        ports = frozenset(int(port) for port in wire.get("ports", DEFAULT_PORTS))
        return cls(tuple(allow), ports, wire.get("private", False) is True)


@dataclass(frozen=True, slots=True)
class _Pattern:
    name: str  # empty: every name
    below: bool  # what is below the name, not the name
    port: int | None

    def __str__(self) -> str:
        star = "*." if self.below else "" if self.name else "*"
        return f"{star}{self.name}" + ("" if self.port is None else f":{self.port}")

    def names(self, host: str) -> bool:
        if not self.name:
            return True
        return host.endswith(f".{self.name}") if self.below else host == self.name


@functools.cache
def _pattern(text: str) -> _Pattern:
    name, colon, digits = text.partition(":")
    port = None
    if colon:
        port = _port(digits)
        if port is None:
            raise ValueError(f"{text!r}: what follows the colon is no port (1 to 65535)")
    if name == "*":
        return _Pattern("", below=False, port=port)
    below = name.startswith("*.")
    try:
        host = parse_host(name[2:] if below else name)
    except BadHost as error:
        raise ValueError(
            f"{text!r} is no pattern: {error}. Write 'example.com', '*.example.com' or '*', "
            "with ':8443' after it for another port"
        ) from None
    if host.literal:
        raise ValueError(f"{text!r} is an address; only names can be allowed, write the name")
    return _Pattern(host.text, below=below, port=port)


def parse_host(text: str) -> Host:
    """The host that ``text`` spells, in whatever way; addresses of version 6 in brackets."""
    if not text:
        raise BadHost("there is no host")
    if len(text) > _LONGEST_NAME + 2:
        raise BadHost("the host is longer than 253 characters")
    if text.startswith("["):
        return _literal_6(text)
    if not text.isascii():
        text = _in_ascii(text)
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > _LONGEST_NAME or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadHost(f"{text!a} is no host name")
    # A last label that is a number makes the whole an address for everybody's resolver.
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return Host(str(ipaddress.IPv4Address(socket.inet_aton(name))), literal=True)
        except OSError:
            raise BadHost(f"{text!a} is neither a name nor an address") from None
    return Host(name)


def parse_authority(text: str, *, default_port: int | None) -> tuple[Host, int]:
    """``host:port`` as requests have it; without user names, which could only mislead."""
    if "@" in text:
        raise BadHost("user names have no place before a host; send them in a header")
    bracket = text.rfind("]")
    host, colon, digits = text[bracket + 1 :].rpartition(":")
    if not colon:
        host, digits = digits, ""
    port = _port(digits) if colon else default_port
    if port is None:
        raise BadHost(f"{text[:300]!a} names no port (1 to 65535)")
    return parse_host(text[: bracket + 1] + host), port


def decide(policy: Policy, host: Host, port: int) -> Refusal | None:
    """Whether a connection may be tried; before anything is looked up."""
    target = host.with_port(port)
    if host.literal:
        if not policy.everything:
            return Refusal(
                "ip-literal",
                f"the sandbox's profile allows names, and {target} is an address; "
                f"connect to a name; {_allowed(policy)}",
            )
        if not (policy.private or is_public(host.text)):
            return _not_public(target)
    matching = [pattern for pattern in map(_pattern, policy.allow) if pattern.names(host.text)]
    if not matching:
        return Refusal(
            "domain-not-allowed",
            f"the sandbox's profile does not allow {target}; {_allowed(policy)}",
        )
    ports = {port for pattern in matching for port in _ports(policy, pattern)}
    if port not in ports:
        listed = ", ".join(str(port) for port in sorted(ports)) or "none"
        return Refusal(
            "port-not-allowed",
            f"the sandbox's profile does not allow {target}; ports allowed there: {listed}",
        )
    return None


def vet(policy: Policy, host: Host, addresses: Sequence[str]) -> Refusal | list[str]:
    """Those of a name's addresses that may be connected to; in their order, each once."""
    good = [address for address in addresses if policy.private or is_public(address)]
    return list(dict.fromkeys(good)) or _not_public(host.text)


def is_public(address: str) -> bool:
    """Whether it leads to the Internet, and to nothing nearer."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv4Address):
        return not any(parsed in network for network in _NOT_PUBLIC_4)
    if parsed.scope_id is not None or parsed not in _PUBLIC_6:
        return False
    return not any(parsed in network for network in _NOT_PUBLIC_6)


def not_public_networks() -> tuple[ipaddress.IPv4Network, ...]:
    """All of version 4 that is not the Internet."""
    return _NOT_PUBLIC_4


def _not_public(what: str) -> Refusal:
    return Refusal(
        "address-not-public",
        f"{what} leads to an address that is not public (this machine, its network, or a cloud's "
        "metadata), and those are closed to sandboxes",
    )


def _allowed(policy: Policy) -> str:
    shown = ", ".join(policy.allow[:_SHOWN]) or "nothing"
    more = len(policy.allow) - _SHOWN
    return f"allowed: {shown}" + (f" and {more} more" if more > 0 else "")


def _ports(policy: Policy, pattern: _Pattern) -> frozenset[int]:
    return policy.ports if pattern.port is None else frozenset({pattern.port})


def _port(digits: str) -> int | None:
    if not _PORT.fullmatch(digits):
        return None
    return port if 0 < (port := int(digits)) < 65536 else None


def _literal_6(text: str) -> Host:
    # Zone ids (fe80::1%eth0) name an interface of this machine, and hide text from comparisons.
    if not text.endswith("]") or "%" in text:
        raise BadHost(f"{text!a} is no address")
    try:
        return Host(str(ipaddress.IPv6Address(text[1:-1])), literal=True)
    except ValueError:
        raise BadHost(f"{text!a} is no address") from None


def _in_ascii(text: str) -> str:
    if _TWO_MEANINGS & set(text.lower()):
        raise BadHost(f"{text!a} could mean two names; write the one that starts with xn--")
    try:
        return text.encode("idna").decode("ascii")
    except UnicodeError:
        raise BadHost(f"{text!a} is no host name, in Unicode either") from None
