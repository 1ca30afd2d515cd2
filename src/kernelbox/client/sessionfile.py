"""The file of a saved session: what is in it, how it is signed, and what is refused unread.

::

    KERNELBOX SESSION 1\\n | size of the pieces | of the manifest | pieces | manifest | signature

Sizes are 8 bytes; what the pieces and the manifest are, ``inside/session.py`` says. The signature
is an HMAC-SHA256 of all before it, with a key that the home keeps. Reading a session runs code
(that is what unpickling is), so a file is checked to its end before anything else, and what is then
read is a private copy of what was checked.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import struct
import tempfile
from dataclasses import dataclass
from typing import Any, BinaryIO

from kernelbox.errors import BadInput, Unsupported
from kernelbox.result import SaveReport

_MAGIC = b"KERNELBOX SESSION 1\n"
_SIZE = struct.Struct("!Q")
_BLOCK = 1 << 20
_MOST_CONTENTS = 64 << 20  # bytes: it is read whole
_TIMES_MEMORY = 4  # pickled, nothing takes much more than it took before
_SIGNATURE = 32
_KEY_SIZE = 32

START = len(_MAGIC) + 2 * _SIZE.size
"""Where the pieces begin."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A session file that was checked: what it says of itself, and the copy to read it from."""

    manifest: dict[str, Any]
    payload: str
    pieces: int
    size: int


def begin(path: str) -> str:
    """A draft beside the file that it will be, with room for what is known only later."""
    folder = os.path.dirname(path)
    if os.path.isdir(path):
        raise BadInput(f"{path!r} is a folder; a session is saved to a file")
    try:
        fd, draft = tempfile.mkstemp(prefix=".saving-", dir=folder)
    except OSError as error:
        raise BadInput(f"no session can be saved to {path!r}: {error.strerror}") from None
    with open(fd, "wb") as file:
        file.write(_MAGIC + _SIZE.pack(0) * 2)
    return draft


def finish(draft: str, path: str, facts: dict[str, Any], key: bytes) -> SaveReport:
    """Complete and sign a draft, and give it its name: the file is there whole or not at all."""
    if facts.get("profile"):
        draft = _apart(draft, path, facts)
    try:
        return _finish(draft, path, facts, key)
    except BaseException:
        discard(draft)
        raise


def _apart(draft: str, path: str, facts: dict[str, Any]) -> str:
    """A copy of a draft that code behind walls has written. It may keep the draft open, and change
    it when all is signed; and what it says of its size may be a lie, which would keep us busy."""
    sizes = facts["pieces"], facts["manifest"]
    if not all(type(each) is int and each >= 0 for each in sizes) or sizes[1] > _MOST_CONTENTS:
        raise Unsupported("what the kernel says of its session makes no sense: it is not saved")
    size = START + sum(sizes)
    memory = facts["profile"].get("memory")
    if memory is not None and size > _TIMES_MEMORY * memory + _MOST_CONTENTS:
        raise Unsupported(
            f"the kernel says that its session has {size:,} bytes, and its walls allow {memory:,} "
            "of memory: it is not saved"
        )
    fd, copied = tempfile.mkstemp(prefix=".saving-", dir=os.path.dirname(path))
    try:
        with open(draft, "rb") as source, open(fd, "wb") as copy:
            while size:
                block = source.read(min(size, _BLOCK))
                if not block:
                    raise Unsupported(
                        "the kernel has not written all that it says: it is not saved"
                    )
                copy.write(block)
                size -= len(block)
    except BaseException:
        discard(copied)
        raise
    return copied


def _finish(draft: str, path: str, facts: dict[str, Any], key: bytes) -> SaveReport:
    with open(draft, "r+b") as file:
        file.seek(START + facts["pieces"])
        manifest = json.loads(file.read(facts["manifest"]))
        # The interpreter has written it, whose code may be anybody's; the walls are the warden's
        # word.
        manifest["profile"] = facts.get("profile")
        contents = json.dumps(manifest).encode()
        file.seek(len(_MAGIC))
        file.write(_SIZE.pack(facts["pieces"]) + _SIZE.pack(len(contents)))
        file.truncate(START + facts["pieces"])
        file.seek(START + facts["pieces"])
        file.write(contents)
        file.seek(0)
        signature = hmac.new(key, digestmod="sha256")
        while block := file.read(_BLOCK):
            signature.update(block)
        file.write(signature.digest())
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    return SaveReport(
        path=path,
        size=os.path.getsize(path),
        variables=[*manifest["modules"], *manifest["variables"]],
        failures=dict(manifest["failures"]),
        cells=max(0, len(manifest["cells"]) - 1),
    )


def discard(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def open_checked(path: str, folder: str, key: bytes, *, trust: bool) -> Opened:
    """Check a session file from its first byte to its last, into a private copy in ``folder``."""
    try:
        with open(path, "rb") as file:
            return _check(path, file, folder, key, trust=trust)
    except FileNotFoundError:
        raise BadInput(f"there is no file {path!r}") from None
    except OSError as error:
        raise BadInput(f"{path!r} cannot be read: {error.strerror}") from None


def claimed_profile(path: str) -> Any:
    """The walls that a file says it was saved behind. Nothing of it is checked: who wants to know
    takes it for a wish."""
    try:
        with open(path, "rb") as file:
            pieces, contents = _sizes(path, file.read(START))
            if contents > _MOST_CONTENTS:
                raise _too_much(path, contents)
            file.seek(START + pieces)
            return _contents(path, file.read(contents)).get("profile")
    except RecursionError:
        raise BadInput(f"{path!r} is damaged: its list of contents cannot be read") from None
    except (OSError, OverflowError) as error:
        raise BadInput(f"{path!r} cannot be read: {error}") from None


def _check(path: str, file: BinaryIO, folder: str, key: bytes, *, trust: bool) -> Opened:
    total = os.fstat(file.fileno()).st_size
    head = file.read(START)
    pieces, contents = _sizes(path, head)
    size = pieces + contents
    if START + size + _SIGNATURE != total:
        raise _truncated(path)
    if contents > _MOST_CONTENTS:
        raise _too_much(path, contents)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    fd, payload = tempfile.mkstemp(prefix=".loading-", dir=folder)
    signature = hmac.new(key, head, digestmod="sha256")
    try:
        with open(fd, "w+b") as copy:
            left = size
            while left:
                block = file.read(min(left, _BLOCK))
                if not block:
                    raise _truncated(path)
                signature.update(block)
                copy.write(block)
                left -= len(block)
            if not hmac.compare_digest(signature.digest(), file.read(_SIGNATURE)) and not trust:
                raise BadInput(
                    f"{path!r} was not saved by this home, or was changed since. Loading a session "
                    "runs code that is in it: load(…, trust=True) if you know where it comes from"
                )
            copy.seek(pieces)
            manifest = _contents(path, copy.read())
    except BaseException:
        discard(payload)
        raise
    return Opened(manifest, payload, pieces, size)


def _sizes(path: str, head: bytes) -> tuple[int, int]:
    """Of the pieces, and of the manifest."""
    if not head.startswith(_MAGIC[: len(head)]) or not head:
        raise BadInput(f"{path!r} is not a saved session of KernelBox")
    if len(head) < START:
        raise _truncated(path)
    return _SIZE.unpack_from(head, len(_MAGIC))[0], _SIZE.unpack_from(head, START - _SIZE.size)[0]


def _too_much(path: str, contents: int) -> BadInput:
    return BadInput(f"{path!r} has a table of contents of {contents:,} bytes, which is too much")


def _contents(path: str, encoded: bytes) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(encoded)
        for name in ("python", "variables", "modules", "failures", "cells", "cwd", "path"):
            manifest[name]
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"{path!r} is damaged: its list of contents cannot be read") from None
    return manifest


def _truncated(path: str) -> BadInput:
    return BadInput(f"{path!r} is not whole: it was cut off, or something was added to it")


def key_of(folder: str) -> bytes:
    """The key that this home signs with; made when it is first needed."""
    path = os.path.join(folder, "session.key")
    if not os.path.exists(path):
        _make_key(folder, path)
    try:
        with open(path, "rb") as file:
            key = file.read()
    except OSError as error:
        raise BadInput(f"the key of this home, {path!r}, cannot be read: {error}") from None
    if len(key) != _KEY_SIZE:
        raise BadInput(
            f"the key of this home, {path!r}, is damaged; remove it, and a new one is made. "
            "Sessions that were saved with the old one then need load(…, trust=True)"
        )
    return key


def _make_key(folder: str, path: str) -> None:
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        fd, draft = tempfile.mkstemp(prefix=".key-", dir=folder)
    except OSError as error:
        raise BadInput(f"no key can be made in {folder!r}: {error.strerror}") from None
    try:
        with open(fd, "wb") as file:
            file.write(secrets.token_bytes(_KEY_SIZE))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # whoever is first: two would be one too many
            os.link(draft, path)
    finally:
        discard(draft)
