"""Which domains a profile may name: names and wildcards, and no addresses."""

from __future__ import annotations

import re
from typing import Final

from kernelbox.errors import BadInput
from kernelbox.walls.wording import shown

EVERYWHERE: Final = ("*",)


def check_domain(pattern: object) -> str:
    """``pypi.org``, ``*.example.com``, either with a port, or ``*``; else :class:`BadInput`."""
    if pattern == "*":
        return "*"
    takes = "a domain in allow is written like pypi.org, *.example.com or example.com:8443"
    if not isinstance(pattern, str):
        raise BadInput(f"{takes}; not {shown(pattern)}", field="allow")
    host, colon, port = pattern.partition(":")
    # For the rest of the checks, every host is like any host.
    labels = ["any"] if host == "*" else host.removeprefix("*.").split(".")
    if _ADDRESS.fullmatch(labels[-1]) or ":" in port or pattern.startswith("["):
        # What a name leads to is decided by us when it is resolved; an address goes around that.
        raise BadInput(
            f"{takes}; {shown(pattern)} is an address, and only names are let through",
            field="allow",
        )
    if labels[-1] == "localhost":
        raise BadInput(
            f"{shown(pattern)} cannot be allowed: a sandbox has a loopback of its own, and the "
            f"host's is out of reach. Offer the service as a host tool, or under a domain",
            field="allow",
        )
    if not all(_LABEL.fullmatch(label) for label in labels) or len(host) > 253:
        raise BadInput(
            f"{takes} (without https:// and without a path; other letters than a-z as xn--…); "
            f"not {shown(pattern)}",
            field="allow",
        )
    if colon and not (_PORT.fullmatch(port) and int(port) <= 65535):
        raise BadInput(f"{takes}, with a port from 1 to 65535; not {shown(pattern)}", field="allow")
    return pattern


_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_ADDRESS = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
