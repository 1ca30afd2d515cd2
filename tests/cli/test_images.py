"""Pictures on terminals: who speaks what, and what is written."""

from __future__ import annotations

import base64
import struct
import zlib

import pytest

from kernelbox.cli import images


def png(width: int, height: int) -> bytes:
    """A red picture."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = (b"\0" + b"\xff\0\0" * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("environ", "protocol"),
    [
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM": "xterm-ghostty"}, "kitty"),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1"}, "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, "iterm2"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "WezTerm"}, "iterm2"),
        ({"TERM": "foot"}, "sixel"),
        ({"TERM": "mlterm"}, "sixel"),
        ({"TERM": "xterm-256color"}, None),
        ({"TERM": "screen-256color", "KITTY_WINDOW_ID": "1"}, None),
        ({"TERM": "xterm-kitty", "TMUX": "/tmp/x"}, None),
        ({}, None),
    ],
)
def test_a_terminal_is_known_by_its_words(environ: dict[str, str], protocol: str | None) -> None:
    assert images.protocol_of(environ) == protocol


def test_kitty_gets_the_whole_picture_in_pieces() -> None:
    data = bytes(range(256)) * 40
    text = images.kitty(data).rstrip("\n")
    pieces = [piece.removeprefix("\x1b_G") for piece in text.split("\x1b\\")[:-1]]
    keys, contents = zip(*(piece.split(";") for piece in pieces), strict=True)
    assert keys[0] == "a=T,f=100,m=1"
    assert keys[-1] == "m=0"
    assert base64.b64decode("".join(contents)) == data
    assert all(len(content) <= 4096 for content in contents)


def test_iterm2_gets_the_whole_picture() -> None:
    text = images.iterm2(b"picture")
    assert text.startswith("\x1b]1337;File=inline=1;size=7:")
    assert base64.b64decode(text.partition(":")[2].rstrip("\n\x07")) == b"picture"


def test_sixels_are_drawn_in_bands_of_six_rows() -> None:
    pytest.importorskip("PIL")
    text = images.sixel(png(3, 8))
    assert text is not None
    assert text.startswith('\x1bPq"1;1;3;8#0;2;')
    assert "2;100;0;0" in text
    first, second = text.split("-")
    assert first.endswith("~~~"), "six rows, all red"
    assert second.removesuffix("\x1b\\\n").endswith("BBB"), "two rows"


def test_what_is_no_picture_is_not_drawn() -> None:
    assert images.sixel(b"nothing") is None
    assert images.drawn(b"<svg/>", "image/svg+xml", "iterm2") is None
    assert images.drawn(b"\xff\xd8", "image/jpeg", "kitty") is None


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (png(640, 480), (640, 480)),
        (b"GIF89a" + struct.pack("<HH", 3, 4), (3, 4)),
        (b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x0b\x08\x00\x05\x00\x07\x01", (7, 5)),
        (b"\xff\xd8\xff", None),
        (b"\x89PNG\r\n\x1a\n", None),
        (b"", None),
    ],
)
def test_the_size_of_a_picture(data: bytes, size: tuple[int, int] | None) -> None:
    assert images.size_of(data) == size
