"""Frames: a length, then JSON. Every socket of ours speaks this and nothing else.

Sans I/O: :func:`encode` makes bytes, :class:`Decoder` takes bytes apart. JSON is written in ASCII,
so that lone surrogates in code or output survive the trip.
"""

from __future__ import annotations

import functools
import json
import os
import struct
from typing import Any

Frame = dict[str, Any]

PROTOCOL = 1
"""Counts up when a peer of the last version could no longer understand us."""

OPEN_FAMILY, WALLED_FAMILY, SITED_FAMILY = b"f", b"w", b"s"
"""What a keeper orders of a root: a family whose interpreter starts at once, one that waits for its
walls, or one that cannot even begin with them before it knows where they are to stand."""

MAX_FRAME = 256 * 1024 * 1024
"""Past this a length is taken for garbage (or an attack), and the connection is given up."""

READ_SIZE = 1 << 16
"""What to receive at most at a time. From 128 KiB on malloc maps every buffer anew, and a read of a
few hundred bytes takes 25 µs instead of 2."""

_LENGTH = struct.Struct("!I")
_to_json = json.JSONEncoder(separators=(",", ":"), default=str).encode
_from_json = json.JSONDecoder().decode


class GarbledFrame(ValueError):
    """What arrived is no frame; the connection it came over cannot be trusted any more."""


def encode(frame: Frame) -> bytes:
    """One frame as bytes."""
    body = _to_json(frame).encode("ascii")
    if len(body) > MAX_FRAME:
        raise GarbledFrame(f"a frame of {len(body)} bytes is over the limit of {MAX_FRAME}")
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Turns a stream of bytes back into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Bytes held that do not make a whole frame yet."""
        return len(self._buffer)

    @property
    def missing(self) -> int:
        """How many bytes to read next for a whole frame, and nothing of another."""
        if len(self._buffer) < _LENGTH.size:
            return _LENGTH.size - len(self._buffer)
        (length,) = _LENGTH.unpack_from(self._buffer)
        return int(length) + _LENGTH.size - len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete now."""
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        start = 0
        while len(buffer) - start >= 4:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > MAX_FRAME:
                raise GarbledFrame(f"a frame of {length} bytes is over the limit of {MAX_FRAME}")
            end = start + 4 + length
            if len(buffer) < end:
                break
            try:
                frame = _from_json(buffer[start + 4 : end].decode("ascii"))
            except (ValueError, RecursionError) as error:
                raise GarbledFrame(f"not JSON: {error}") from None
            if not isinstance(frame, dict):
                raise GarbledFrame(f"a frame is an object, not {type(frame).__name__}")
            frames.append(frame)
            start = end
        if start:
            del buffer[:start]
        return frames


@functools.cache
def build_id() -> list[Any]:
    """``[version, newest mtime of our files]``, comparable: of two builds the newer is known.

    An editable install changes without its version changing; the mtime sees that. Looked up once:
    it stands for the code that this process has loaded, whatever the files say later.
    """
    from kernelbox import __version__

    newest = 0
    for folder, subfolders, files in os.walk(os.path.dirname(os.path.abspath(__file__))):
        if "__pycache__" in subfolders:
            subfolders.remove("__pycache__")
        for name in files:
            if name.endswith(".py"):
                try:
                    newest = max(newest, os.stat(os.path.join(folder, name)).st_mtime_ns)
                except OSError:
                    continue  # replaced under our eyes by an upgrade: the others still count
    numbers = [int(part) for part in __version__.split(".") if part.isdigit()]
    return [numbers, newest]
