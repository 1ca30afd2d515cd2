"""Where a home is, and where we are ourselves, from paths alone.

Imports next to nothing: the command line starts here.
"""

from __future__ import annotations

import contextlib
import os

PATHS = {
    "registry_path": (".kernelbox/registry.json", "registry.json"),
    "runtime_dir": (".kernelbox/runtime", "runtime"),
}
"""Each path of a home: its default, and its name in the folder of ``KERNELBOX_HOME``."""

_SIGNS = ("registry", "runtime")
HIDDEN = ".hidden"
"""What is in a folder that is hidden from a kernel: no keeper must take it for an empty home."""


def whole_path(path: str) -> str:
    """A path that means the same in every folder."""
    return os.path.abspath(os.path.expanduser(path))


def home_path(field: str, path: str, home: str | None) -> str:
    """Explicit paths beat the home, which beats the defaults."""
    default, in_home = PATHS[field]
    if home and path == default:
        path = os.path.join(home, in_home)
    return whole_path(path)


def package_parent() -> str:
    """The folder that ``kernelbox`` is imported from, wherever this process found it."""
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def importable(environ: dict[str, str], parent: str) -> dict[str, str]:
    """``environ`` with ``parent`` at the end of PYTHONPATH: a test or a script may have put us on
    ``sys.path`` by hand."""
    path = environ.get("PYTHONPATH")
    return {**environ, "PYTHONPATH": f"{path}{os.pathsep}{parent}" if path else parent}


def socket_folder(registry: str, runtime: str, owner: int | None = None) -> str:
    """The short private folder for the sockets of the home that has these files (and, with the
    memory store, this process)."""
    from hashlib import sha256

    key = f"{registry}\0{runtime}" + (f"\0{owner}" if owner else "")
    digest = sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return os.path.join(_base(), digest)


def sign(rundir: str, registry: str, runtime: str) -> None:
    """Note in the folder of its sockets where a home is, so that no sandbox is shown it: links
    are made, and read, by one call each."""
    for name, path in zip(_SIGNS, (registry, runtime), strict=True):
        # A path that no link can have is no home's either: whoever makes its folder says so.
        with contextlib.suppress(OSError, ValueError):
            if path:
                os.symlink(path, os.path.join(rundir, name))


def served_homes() -> list[tuple[str, str]]:
    """The registry (empty: it has none) and the runtime folder of each home of this user's that a
    keeper may be serving."""
    found = []
    with contextlib.suppress(OSError):
        for entry in os.listdir(_base()):
            paths = [_read_link(os.path.join(_base(), entry, name)) for name in _SIGNS]
            if any(paths):
                found.append((paths[0], paths[1]))
    return found


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _base() -> str:
    """A short folder that every process of this user agrees on, whatever its environment says."""
    uid = os.getuid()
    run = f"/run/user/{uid}"
    if os.path.isdir(run) and os.access(run, os.W_OK | os.X_OK):
        return os.path.join(run, "kernelbox")
    return f"/tmp/kernelbox-{uid}"
