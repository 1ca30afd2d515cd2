"""The machine's first file system: programs, and the modules that lead to the host's files."""

from __future__ import annotations

import lzma
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

_NEEDED = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")


def write(path: Path, files: Iterable[tuple[str, int, bytes]]) -> None:
    """A cpio archive, as the kernel unpacks it (newc): names, modes and contents, in this order."""
    with path.open("wb") as archive:
        number = 0
        for number, (name, mode, content) in enumerate(files, 1):
            archive.write(_entry(number, name, mode, content))
        archive.write(_entry(number + 1, "TRAILER!!!", 0, b""))


def files(
    *, busybox: Path, kernel: Path, others: Mapping[str, bytes]
) -> Iterator[tuple[str, int, bytes]]:
    """``kernel`` is the folder that its package was unpacked into; ``others``: ``init``, and what
    that one reads."""
    for folder in ("bin", "modules"):
        yield folder, stat.S_IFDIR | 0o755, b""
    yield "bin/busybox", stat.S_IFREG | 0o755, busybox.read_bytes()
    for name, content in others.items():
        yield name, stat.S_IFREG | (0o755 if name == "init" else 0o644), content
    loaded = list(_modules(kernel))
    for name, content in loaded:
        yield f"modules/{name}", stat.S_IFREG | 0o644, content
    names = "".join(f"{name}\n" for name, _ in loaded)
    yield "modules/order", stat.S_IFREG | 0o644, names.encode()


def _modules(kernel: Path) -> Iterator[tuple[str, bytes]]:
    """Each after those that it depends on. What is no file is built in."""
    there = {path.name.partition(".")[0].replace("-", "_"): path for path in kernel.rglob("*.ko*")}
    seen: set[str] = set()

    def load(name: str) -> Iterator[tuple[str, bytes]]:
        if name in seen or name not in there:
            return
        seen.add(name)
        content = there[name].read_bytes()
        if there[name].suffix == ".xz":
            content = lzma.decompress(content)
        found = _DEPENDS.search(content)
        for other in (found[1].decode() if found else "").split(","):
            yield from load(other.replace("-", "_"))
        yield f"{name}.ko", content

    for name in _NEEDED:
        yield from load(name)


def _entry(number: int, name: str, mode: int, content: bytes) -> bytes:
    links = 2 if stat.S_ISDIR(mode) else 1
    fields = (number, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return _padded(head) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
