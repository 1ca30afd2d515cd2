"""Reads the server's name out of the first thing that a TLS client says; pure.

Strict on purpose: what two readers could understand differently (a name given twice, bytes left
over, an extension repeated) is refused, because the server behind us is the other reader.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

LIMIT = 16 * 1024
"""No client's hello is longer, with post-quantum keys and a session ticket in it."""

_LARGEST_RECORD = 1 << 14
_SERVER_NAME = 0
_HOST_NAME = 0
_ECH = 0xFE0D
_ECH_OUTER, _ECH_INNER = 0, 1
_ECH_DRAFTS = frozenset({0xFE08, 0xFE09, 0xFE0A, 0xFE0B, 0xFE0C, 0xFFCE})


class NotAClientHello(ValueError):
    """These bytes are not the start of a TLS conversation, or not one that can be read safely."""


@dataclass(frozen=True, slots=True)
class ClientHello:
    """``server_name``: as sent, in lower case; None: not sent. ``encrypted``: the real hello is
    hidden in this one (ECH), and so is the name that counts."""

    server_name: str | None
    encrypted: bool


def parse(data: bytes | bytearray) -> ClientHello | None:
    """The hello at the start of what a client sent so far; None: more must come first."""
    message = bytearray()
    at = 0
    while True:
        # Each check is made as soon as its bytes are there: who speaks another protocol is told so
        # at once, and doesn't wait for a time-out.
        if data[at : at + 1] not in (b"", b"\x16") or data[at + 1 : at + 2] not in (b"", b"\x03"):
            raise NotAClientHello("not a TLS handshake")
        if len(data) < at + 5:
            return None
        (length,) = struct.unpack_from("!H", data, at + 3)
        if not 0 < length <= _LARGEST_RECORD:
            raise NotAClientHello("a record of an impossible length")
        at += 5
        message += data[at : at + length]
        if message and message[0] != 1:
            raise NotAClientHello("a handshake that does not start with a ClientHello")
        at += length
        if len(message) >= 4:
            end = 4 + int.from_bytes(message[1:4], "big")
            if end > LIMIT:
                raise NotAClientHello("a ClientHello that is too long")
            if len(message) > end or (len(message) == end and at > len(data)):
                raise NotAClientHello("a ClientHello with something after it in its record")
            if len(message) == end:
                return _parse_message(bytes(message[4:]))
        if at > len(data):
            return None


def _parse_message(body: bytes) -> ClientHello:
    hello = _Cursor(body)
    hello.take(2 + 32)  # version, random
    if len(hello.vector(1)) > 32:  # session
        raise NotAClientHello("a session id that is too long")
    ciphers = hello.vector(2)
    if not ciphers or len(ciphers) % 2 or not hello.vector(1):
        raise NotAClientHello("no ciphers or no compression methods")
    name: str | None = None
    encrypted = False
    seen: set[int] = set()
    extensions = _Cursor(hello.vector(2) if hello.left else b"")
    hello.end()
    while extensions.left:
        kind = int.from_bytes(extensions.take(2), "big")
        content = extensions.vector(2)
        if kind in seen:
            raise NotAClientHello("an extension that is there twice")
        seen.add(kind)
        if kind == _SERVER_NAME:
            name = _parse_server_name(content)
        elif kind == _ECH:
            encrypted |= _is_outer(content)
        elif kind in _ECH_DRAFTS:
            encrypted = True
    return ClientHello(name, encrypted)


def _parse_server_name(content: bytes) -> str:
    extension = _Cursor(content)
    names = _Cursor(extension.vector(2))
    extension.end()
    kind = names.take(1)[0]
    name = names.vector(2)
    names.end()  # one name, or it is anybody's guess which of them counts
    if kind != _HOST_NAME or not name or not name.isascii():
        raise NotAClientHello("a server name that is no host name")
    return name.decode("ascii").lower()


def _is_outer(content: bytes) -> bool:
    if content[:1] == bytes([_ECH_OUTER]):
        return True
    # What is inside an encrypted hello says "inner"; sent in the open it hides nothing.
    if content == bytes([_ECH_INNER]):
        return False
    raise NotAClientHello("an encrypted hello of no known kind")


class _Cursor:
    """Takes bytes from the front; too few are the client's mistake."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise NotAClientHello("a ClientHello that is cut short")
        self._at += count
        return self._data[self._at - count : self._at]

    def vector(self, width: int) -> bytes:
        return self.take(int.from_bytes(self.take(width), "big"))

    def end(self) -> None:
        if self.left:
            raise NotAClientHello("a ClientHello with bytes left over")
