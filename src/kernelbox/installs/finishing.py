"""What uv has unpacked, before anybody may import it: looked through, put right, made read-only.

A wheel is somebody else's archive. uv unpacks it into its folder and nowhere else; here is made
sure that nothing in it leads elsewhere, or stands in the way of Python's own modules and ours.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, files
from typing import Any

from kernelbox.installs.failing import Failed

_NEVER = {"sitecustomize", "usercustomize", "kernelbox"}
"""Run at the start of every Python, or ours."""
_MOST_FILES = 300_000


def finish(
    folder: str, packages: dict[str, str], *, carrying: Iterable[str], largest: int
) -> dict[str, Any]:
    """Look through a draft; what comes back is the manifest of the layer."""
    notes = _leave_out(folder, _own_modules(carrying))
    found: list[tuple[str, int, int]] = []
    folders: list[str] = []
    size = 0
    waiting = [""]
    while waiting:
        inside = waiting.pop()
        with os.scandir(os.path.join(folder, inside)) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                path = os.path.join(inside, entry.name)
                facts = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(facts.st_mode):
                    os.chmod(entry.path, 0o755)
                    folders.append(path)
                    waiting.append(path)
                elif stat.S_ISREG(facts.st_mode):
                    # Nobody's to write to: its content is shared with other kernels.
                    os.chmod(entry.path, 0o555 if facts.st_mode & 0o111 else 0o444)
                    found.append((path, facts.st_size, facts.st_mtime_ns))
                    size += facts.st_blocks * 512
                else:
                    raise Failed(
                        "unsafe", f"a package has a link or a device in it ({path}); it is refused"
                    )
        if len(found) > _MOST_FILES or size > largest:
            raise Failed(
                "too_large",
                f"the packages take more than {largest >> 20:,} MiB, or too many files "
                "(KERNELBOX_INSTALL_SIZE)",
            )
    return {
        "packages": packages,
        "notes": notes,
        "size": size,
        "files": found,
        "folders": folders,
    }


def _leave_out(folder: str, ours: set[str]) -> list[str]:
    """Modules that would stand before Python's own, or before those that the kernel runs on."""
    left_out = []
    for name in sorted(os.listdir(folder)):
        module = name.partition(".")[0]
        path = os.path.join(folder, name)
        if name == ".lock":
            os.unlink(path)
        elif name.endswith((".dist-info", ".data")):
            continue
        elif module in sys.stdlib_module_names or module in ours:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
            left_out.append(module)
    cached = os.path.join(folder, "__pycache__")
    for name in os.listdir(cached) if os.path.isdir(cached) else ():
        if name.partition(".")[0] in left_out:
            os.unlink(os.path.join(cached, name))
    return [
        f"the module {name} of a package was left out: Python's own, or the kernel's, is used"
        for name in left_out
    ]


def _own_modules(carrying: Iterable[str]) -> set[str]:
    """The modules of the packages that an interpreter runs on."""
    found = set(_NEVER)
    for name in carrying:
        try:
            listed = files(name) or ()
        except PackageNotFoundError:
            continue
        for file in listed:
            top = file.parts[0]
            if top.endswith((".py", ".so")):
                found.add(top.partition(".")[0])
            elif len(file.parts) > 1 and top.isidentifier():
                found.add(top)
    return found - {"__pycache__", "bin"}
