"""What the gate knows of secrets: which placeholder means what, towards whom, and how TLS is ended.

It comes to the gate over a socket that nobody else has an end of, after the gate was forked: no
memory that code of a sandbox inherits has ever held it.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernelbox.walls.domains import Host
from kernelbox.walls.heads import Fields

_MOST = 1 << 20
_ALPN = ["http/1.1"]
# Written by us, whatever the client says.
_NEVER = frozenset({"host", "content-length", "transfer-encoding", "connection", "upgrade"})


@dataclass(frozen=True, slots=True)
class Binding:
    """A placeholder, and what it means to one server."""

    placeholder: str
    value: str
    host: str
    port: int

    def __repr__(self) -> str:  # in a traceback, say
        return f"<Binding for {self.host}:{self.port}>"


@dataclass(frozen=True, slots=True, repr=False)
class Vault:
    """``ending`` ends the TLS of clients, ``beginning`` begins it with servers."""

    bindings: tuple[Binding, ...]
    ending: ssl.SSLContext
    beginning: ssl.SSLContext

    def towards(self, host: Host, port: int) -> tuple[Binding, ...]:
        """What is bound to this server; nothing: its TLS is none of our business."""
        if host.literal:
            return ()
        return tuple(b for b in self.bindings if (b.host, b.port) == (host.text, port))


def write(bindings: Sequence[Binding], *, chain: str, key: str, bundle: str) -> bytes:
    """As it travels."""
    bound = [[b.placeholder, b.value, b.host, b.port] for b in bindings]
    said = {"bindings": bound, "chain": chain, "key": key, "bundle": bundle}
    return json.dumps(said).encode()


def receive(fd: int) -> Vault:
    """All that comes over a socket until it ends; the descriptor is closed."""
    with socket.socket(fileno=fd) as sock:
        data = bytearray()
        while piece := sock.recv(1 << 16):
            data += piece
            if len(data) > _MOST:
                raise ValueError("the vault is too large")
    return _open(json.loads(bytes(data)))


def _open(said: dict[str, Any]) -> Vault:
    bindings = tuple(Binding(*each) for each in said["bindings"])
    ending = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ending.minimum_version = ssl.TLSVersion.TLSv1_2
    ending.set_alpn_protocols(_ALPN)
    _load(ending, said["chain"] + said["key"])
    beginning = ssl.create_default_context(cafile=said["bundle"])
    beginning.minimum_version = ssl.TLSVersion.TLSv1_2
    beginning.set_alpn_protocols(_ALPN)
    return Vault(bindings, ending, beginning)


def _load(context: ssl.SSLContext, pem: str) -> None:
    """OpenSSL reads keys from files only; this one is on no disk."""
    fd = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(fd, pem.encode())
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def swap(fields: Fields, bindings: Sequence[Binding]) -> Fields:
    """The headers as the server gets them: with values where placeholders were."""
    return [
        (name, value if name.lower() in _NEVER else _swap_value(name.lower(), value, bindings))
        for name, value in fields
    ]


def _swap_value(name: str, value: str, bindings: Sequence[Binding]) -> str:
    if name == "authorization" and value[:6].lower() == "basic ":
        return _swap_basic(value, bindings)
    return _swap_text(value, bindings)


def _swap_text(text: str, bindings: Sequence[Binding]) -> str:
    for binding in bindings:
        text = text.replace(binding.placeholder, binding.value)
    return text


def _swap_basic(value: str, bindings: Sequence[Binding]) -> str:
    """``Basic`` hides user and password in base64, and the placeholder with them."""
    try:
        plain = base64.b64decode(value[6:].strip(), validate=True).decode("latin-1")
    except (binascii.Error, ValueError):
        return value
    swapped = _swap_text(plain, bindings)
    if swapped == plain:
        return value
    return value[:6] + base64.b64encode(swapped.encode("latin-1")).decode("ascii")
