"""Pictures on a terminal: which protocol it speaks, and the words of each."""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Literal

Protocol = Literal["kitty", "iterm2", "sixel"]

_CHUNK = 4096
_KITTIES = ("kitty", "ghostty")
_ITERMS = ("iTerm.app", "WezTerm", "mintty", "rio")
_SIXELS = ("mlterm", "foot", "yaft", "contour", "sixel")
_MOST_COLOURS = 255
_EXTENSIONS = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/svg+xml": "svg",
    "image/webp": "webp",
}


def protocol_of(environ: Mapping[str, str]) -> Protocol | None:
    """What this terminal understands, by its own words; a multiplexer in between understands
    none of it."""
    term, program = environ.get("TERM", ""), environ.get("TERM_PROGRAM", "")
    if environ.get("TMUX") or term.startswith(("screen", "tmux")):
        return None
    if environ.get("KITTY_WINDOW_ID") or any(word in term for word in _KITTIES):
        return "kitty"
    if program in _ITERMS or environ.get("LC_TERMINAL") == "iTerm2":
        return "iterm2"
    if any(word in term for word in _SIXELS):
        return "sixel"
    return None


def drawn(data: bytes, mime: str, protocol: Protocol) -> str | None:
    """The picture as what to write to the terminal; None if it cannot be drawn this way."""
    if protocol == "kitty":
        return kitty(data) if mime == "image/png" else None
    if protocol == "iterm2":
        return None if "svg" in mime else iterm2(data)
    return sixel(data)


def kitty(png: bytes) -> str:
    """https://sw.kovidgoyal.net/kitty/graphics-protocol/"""
    text = b64encode(png).decode("ascii")
    pieces = [text[at : at + _CHUNK] for at in range(0, len(text), _CHUNK)]
    words = []
    for number, piece in enumerate(pieces):
        more = int(number < len(pieces) - 1)
        keys = f"a=T,f=100,m={more}" if number == 0 else f"m={more}"
        words.append(f"\x1b_G{keys};{piece}\x1b\\")
    return "".join(words) + "\n"


def iterm2(data: bytes) -> str:
    """https://iterm2.com/documentation-images.html"""
    content = b64encode(data).decode("ascii")
    return f"\x1b]1337;File=inline=1;size={len(data)}:{content}\x07\n"


def sixel(data: bytes) -> str | None:
    """https://vt100.net/docs/vt3xx-gp/chapter14.html; Pillow takes the picture apart, if it is
    here."""
    try:
        from io import BytesIO

        from PIL import Image

        with Image.open(BytesIO(data)) as opened:
            picture = opened.convert("RGB").quantize(_MOST_COLOURS)
    except (ImportError, OSError, ValueError):
        return None
    palette = picture.getpalette() or []
    width, height = picture.size
    pixels = picture.tobytes()
    colours = "".join(
        f"#{number};2;"
        + ";".join(str(palette[3 * number + part] * 100 // 255) for part in range(3))
        for number in range(len(palette) // 3)
    )
    bands = "-".join(_bands(pixels, width, height))
    return f'\x1bPq"1;1;{width};{height}{colours}{bands}\x1b\\\n'


def _bands(pixels: bytes, width: int, height: int) -> Iterator[str]:
    """Six rows at a time; in each, one pass per colour that is in it."""
    for top in range(0, height, 6):
        rows = [pixels[row * width : (row + 1) * width] for row in range(top, min(top + 6, height))]
        passes = []
        for colour in sorted(set().union(*rows)):
            column = "".join(
                chr(63 + sum((row[x] == colour) << bit for bit, row in enumerate(rows)))
                for x in range(width)
            )
            passes.append(f"#{colour}{column}")
        yield "$".join(passes)


def extension_of(mime: str) -> str:
    return _EXTENSIONS.get(mime, "img")


def size_of(data: bytes) -> tuple[int, int] | None:
    """Width and height, if the format says so near its beginning."""
    if data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) >= 24:
        return struct.unpack(">II", data[16:24])
    if data[:6] in (b"GIF87a", b"GIF89a") and len(data) >= 10:
        return struct.unpack("<HH", data[6:10])
    if data.startswith(b"\xff\xd8"):
        return _jpeg_size(data)
    return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + length
    return None
