"""Jupyter messages on a WebSocket, in both of its forms, and back. No I/O.

A message is a channel, four JSON parts (header, parent header, metadata, content) as bytes, and
buffers. In the default form all of it is one JSON text, or a binary frame if there are buffers; in
the newer one (:data:`V1`) the parts travel as they are, and are not parsed on their way out.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

V1 = "v1.kernel.websocket.jupyter.org"
PARTS = ("header", "parent_header", "metadata", "content")
_MOST_OFFSETS = 10_000


class BadFrame(ValueError):
    """What came over the WebSocket is no message."""


@dataclass(slots=True)
class Packet:
    """One message on its way."""

    channel: str
    parts: list[bytes]
    buffers: list[bytes] = field(default_factory=list)
    size: int = field(init=False)
    _header: dict[str, Any] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.size = sum(map(len, self.parts)) + sum(map(len, self.buffers))

    @property
    def header(self) -> dict[str, Any]:
        """The header; empty if there is none to be read. Parsed when it is first asked for."""
        if self._header is None:
            self._header = read_object(self.parts[0])
        return self._header

    @property
    def msg_type(self) -> str:
        return str(self.header.get("msg_type", ""))

    @property
    def msg_id(self) -> str:
        return str(self.header.get("msg_id", ""))

    @property
    def parent_id(self) -> str:
        return str(read_object(self.parts[1]).get("msg_id", ""))


def decode(data: str | bytes, *, v1: bool) -> Packet:
    """The message in a frame that a client sent."""
    try:
        if v1:
            channel, parts, buffers = _split_v1(data.encode() if isinstance(data, str) else data)
        else:
            channel, parts, buffers = _split_default(data)
        packet = Packet(channel, parts, buffers)
    except BadFrame:
        raise
    except (ValueError, TypeError, struct.error, RecursionError) as error:
        raise BadFrame(f"this is no Jupyter message: {error}") from None
    # The kernel would drop it without a word, and the client would wait for ever.
    if not (packet.msg_id and packet.msg_type):
        raise BadFrame("this is no Jupyter message: its header has no msg_id or no msg_type")
    return packet


def encode(packet: Packet, *, v1: bool) -> str | bytes:
    """A message as a frame for a client."""
    if v1:
        return _encode_v1(packet)
    fields = ",".join(
        f'"{name}":{part.decode("utf-8", "replace")}'
        for name, part in zip(PARTS, packet.parts, strict=True)
    )
    # Both are in the header too, but there are clients that look for them here only.
    known = f'"msg_id":{json.dumps(packet.msg_id)},"msg_type":{json.dumps(packet.msg_type)}'
    said = f'"channel":"{packet.channel}",{known},{fields}'
    if not packet.buffers:
        return f'{{{said},"buffers":[]}}'
    pieces = [f"{{{said}}}".encode(), *packet.buffers]
    offsets = _offsets(4 * (len(pieces) + 1), pieces)[:-1]
    return struct.pack(f"!{len(pieces) + 1}I", len(pieces), *offsets) + b"".join(pieces)


def read_object(part: bytes) -> dict[str, Any]:
    """The JSON object in a part of a message; empty if there is none."""
    try:
        value = json.loads(part)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _split_default(data: str | bytes) -> tuple[str, list[bytes], list[bytes]]:
    buffers: list[bytes] = []
    if isinstance(data, bytes):
        (count,) = struct.unpack_from("!I", data)
        _check_count(count)
        offsets = [*struct.unpack_from(f"!{count}I", data, 4), len(data)]
        pieces = _pieces(data, offsets)
        data, buffers = pieces[0].decode("utf-8"), pieces[1:]
    message = json.loads(data)
    if not isinstance(message, dict):
        raise BadFrame("a message is a JSON object")
    parts = [json.dumps(_checked(message.get(name))).encode("ascii") for name in PARTS]
    return str(message.get("channel") or "shell"), parts, buffers


def _split_v1(data: bytes) -> tuple[str, list[bytes], list[bytes]]:
    (count,) = struct.unpack_from("<Q", data)
    _check_count(count)
    offsets = struct.unpack_from(f"<{count}Q", data, 8)
    pieces = _pieces(data, offsets)
    if len(pieces) < 1 + len(PARTS):
        raise BadFrame("a message has a channel and four parts")
    channel, parts = pieces[0], pieces[1 : 1 + len(PARTS)]
    for number, part in enumerate(parts):
        if not _checked(json.loads(part)):
            parts[number] = b"{}"
    return channel.decode("ascii"), parts, pieces[1 + len(PARTS) :]


def _encode_v1(packet: Packet) -> bytes:
    pieces = [packet.channel.encode("ascii"), *packet.parts, *packet.buffers]
    offsets = _offsets(8 * (len(pieces) + 2), pieces)
    return struct.pack(f"<{len(offsets) + 1}Q", len(offsets), *offsets) + b"".join(pieces)


def _checked(part: Any) -> dict[str, Any]:
    if part is None:
        return {}
    if not isinstance(part, dict):
        raise BadFrame("each part of a message is a JSON object")
    return part


def _offsets(start: int, pieces: Sequence[bytes]) -> list[int]:
    """Where each piece begins, and where the last one ends."""
    found = [start]
    for piece in pieces:
        found.append(found[-1] + len(piece))
    return found


def _pieces(data: bytes, offsets: Sequence[int]) -> list[bytes]:
    if list(offsets) != sorted(offsets) or offsets[-1] > len(data):
        raise BadFrame("offsets that lead nowhere")
    return [data[start:end] for start, end in pairwise(offsets)]


def _check_count(count: int) -> None:
    if not 1 <= count <= _MOST_OFFSETS:
        raise BadFrame(f"a message does not have {count} parts")
