"""Jupyter messages on a WebSocket, in both of its forms, and back. No I/O.

A message is a channel, four JSON parts (header, parent header, metadata, content) as bytes, and
buffers. In the default form all of it is one JSON text, or a binary frame if there are buffers; in
the newer one (:data:`V1`) the parts travel as they are, so nothing has to be parsed on the way.
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

    @property
    def size(self) -> int:
        return sum(map(len, self.parts)) + sum(map(len, self.buffers))


def decode(data: str | bytes, *, v1: bool) -> Packet:
    """The message in a frame that a client sent."""
    try:
        if v1:
            return _decode_v1(data.encode() if isinstance(data, str) else data)
        return _decode_default(data)
    except (ValueError, KeyError, TypeError, struct.error, RecursionError) as error:
        raise BadFrame(f"this is no Jupyter message: {error}") from None


def encode(packet: Packet, *, v1: bool) -> str | bytes:
    """A message as a frame for a client."""
    if v1:
        return _encode_v1(packet)
    fields = ",".join(
        f'"{name}":{part.decode("utf-8", "replace")}'
        for name, part in zip(PARTS, packet.parts, strict=True)
    )
    if not packet.buffers:
        return f'{{"channel":"{packet.channel}",{fields},"buffers":[]}}'
    text = f'{{"channel":"{packet.channel}",{fields}}}'.encode()
    pieces = [text, *packet.buffers]
    offsets = _offsets(4 * (len(pieces) + 1), pieces)[:-1]
    return struct.pack(f"!{len(pieces) + 1}I", len(pieces), *offsets) + b"".join(pieces)


def _decode_default(data: str | bytes) -> Packet:
    buffers: list[bytes] = []
    if isinstance(data, bytes):
        (count,) = struct.unpack_from("!I", data)
        _check_count(count)
        offsets = [*struct.unpack_from(f"!{count}I", data, 4), len(data)]
        pieces = _pieces(data, offsets)
        data, buffers = pieces[0].decode("utf-8"), pieces[1:]
    message: dict[str, Any] = json.loads(data)
    parts = [json.dumps(message.get(name) or {}).encode("ascii") for name in PARTS]
    return Packet(str(message.get("channel") or "shell"), parts, buffers)


def _decode_v1(data: bytes) -> Packet:
    (count,) = struct.unpack_from("<Q", data)
    _check_count(count)
    offsets = struct.unpack_from(f"<{count}Q", data, 8)
    channel, *parts = _pieces(data, offsets)
    if len(parts) < len(PARTS):
        raise BadFrame("too few parts")
    for part in parts[: len(PARTS)]:
        json.loads(part)  # it goes on as it is, so it has to be JSON
    return Packet(channel.decode("ascii"), parts[: len(PARTS)], parts[len(PARTS) :])


def _encode_v1(packet: Packet) -> bytes:
    pieces = [packet.channel.encode("ascii"), *packet.parts, *packet.buffers]
    offsets = _offsets(8 * (len(pieces) + 2), pieces)
    return struct.pack(f"<{len(offsets) + 1}Q", len(offsets), *offsets) + b"".join(pieces)


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
        raise BadFrame(f"{count} offsets")
