"""In gVisor: a library of one function that every program there loads first, where that is needed.

``ls`` and ``stat`` ask for a file with a flag (AT_NO_AUTOMOUNT) that runsc knew only after 2022: it
answers that the argument is invalid, and libc's other way has the same flag. A filter can refuse a
call and not change it. So ``statx`` is taken in front of libc's: the flag, which means nothing
where nothing is mounted by itself, is left out, and libc's ``syscall`` does the rest. It is written
here in machine code because nobody who installs us needs a compiler; where runsc knows the flag,
nothing is put anywhere.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from kernelbox.walls import syscalls
from kernelbox.walls.plan import PRELOADED

_LIBRARY = f"{os.path.dirname(PRELOADED)}/statx.so"

_AT_FDCWD, _AT_NO_AUTOMOUNT = -100, 0x800
_SIZE_OF_STATX = 256

_MACHINE = "x86_64"
"""The only one that this is written for."""

# statx(fd, path, flags, mask, buffer) becomes syscall(332, fd, path, flags & ~0x800, mask, buffer).
_STATX = bytes.fromhex(
    "f30f1efa"  # endbr64
    "4d89c1"  # mov r9, r8
    "4189c8"  # mov r8d, ecx
    "89d1"  # mov ecx, edx
    "80e5f7"  # and ch, 0xf7
    "4889f2"  # mov rdx, rsi
    "4863f7"  # movsxd rsi, edi
    "bf4c010000"  # mov edi, 332
    "ff25"  # jmp [rip + what follows]
)

_PAGE = 0x1000
"""The one page of the file is seen twice: first to be run, then to be written to by the linker."""
_HEADER, _SEGMENT = 64, 56
_READ, _RUN, _WRITE = 4, 1, 2
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_HASH, _STRINGS, _SYMBOLS, _RELA, _RELA_SIZE, _RELA_EACH = 4, 5, 6, 7, 8, 9
_STRINGS_SIZE, _SYMBOL_EACH = 10, 11
_GLOBAL_FUNCTION, _WEAK_FUNCTION = 0x12, 0x22
_ADDRESS_OF = 6  # R_X86_64_GLOB_DAT


def install() -> None:
    """Before anybody's code is run, by the root of the sandbox: no one else can write there."""
    if os.uname().machine != _MACHINE or _knows_flag():
        return
    for path, content in ((_LIBRARY, library()), (PRELOADED, f"{_LIBRARY}\n".encode())):
        with open(path, "wb") as file:
            file.write(content)
        os.chmod(path, 0o444)


def _knows_flag() -> bool:
    number = ctypes.c_long(syscalls.numbers(_MACHINE)["statx"])
    libc, found = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(_SIZE_OF_STATX)
    done = libc.syscall(number, _AT_FDCWD, b"/", _AT_NO_AUTOMOUNT, 0, found)
    return done == 0 or ctypes.get_errno() != errno.EINVAL


def library() -> bytes:
    """The whole file, in the order in which it is laid out: headers, code, and what the linker
    wants to know."""
    names = b"\0statx\0syscall\0"
    segments = 4
    code = _HEADER + segments * _SEGMENT
    strings = code + len(_STATX) + 4
    symbols = _aligned(strings + len(names))
    hashes = symbols + 3 * 24
    relocation = _aligned(hashes + 6 * 4)
    slot = relocation + 24
    """Where the linker puts the address of ``syscall``."""
    dynamic = slot + 8
    entries = {
        _HASH: hashes,
        _STRINGS: strings,
        _SYMBOLS: symbols,
        _RELA: relocation,
        _RELA_SIZE: 24,
        _RELA_EACH: 24,
        _STRINGS_SIZE: len(names),
        _SYMBOL_EACH: 24,
        0: 0,
    }
    end = dynamic + 16 * len(entries)
    pieces = {
        0: _header(segments),
        _HEADER: b"".join(
            (
                _segment(_LOAD, _READ | _RUN, 0, 0, end),
                _segment(_LOAD, _READ | _WRITE, 0, _PAGE, end),
                _segment(_DYNAMIC, _READ | _WRITE, dynamic, _PAGE + dynamic, end - dynamic),
                _segment(_STACK, _READ | _WRITE, 0, 0, 0),  # that it need not be run
            )
        ),
        code: _STATX + struct.pack("<i", _PAGE + slot - strings),
        strings: names,
        symbols: b"".join(
            (
                bytes(24),
                struct.pack("<IBBHQQ", names.index(b"statx"), _GLOBAL_FUNCTION, 0, 1, code, 0),
                # A program without libc has none, and does not call us either.
                struct.pack("<IBBHQQ", names.index(b"syscall"), _WEAK_FUNCTION, 0, 0, 0, 0),
            )
        ),
        # One bucket, three symbols: the first is in it, and leads to the second.
        hashes: struct.pack("<6I", 1, 3, 1, 0, 2, 0),
        relocation: struct.pack("<QQq", _PAGE + slot, 2 << 32 | _ADDRESS_OF, 0),
        dynamic: b"".join(struct.pack("<QQ", *entry) for entry in entries.items()),
    }
    file = bytearray(end)
    for place, piece in pieces.items():
        file[place : place + len(piece)] = piece
    return bytes(file)


def _header(segments: int) -> bytes:
    kind = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)  # 64 bits, low byte first
    shared, amd64 = 3, 62
    sizes = (_HEADER, _SEGMENT, segments, 0, 0, 0)
    return kind + struct.pack("<HHIQQQI6H", shared, amd64, 1, 0, _HEADER, 0, 0, *sizes)


def _segment(kind: int, rights: int, offset: int, address: int, size: int) -> bytes:
    alignment = _PAGE if kind == _LOAD else 8
    return struct.pack("<IIQQQQQQ", kind, rights, offset, address, address, size, size, alignment)


def _aligned(place: int) -> int:
    return -(-place // 8) * 8
