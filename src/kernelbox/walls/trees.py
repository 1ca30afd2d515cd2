"""What a sandbox sees of the host: an interpreter, its packages, the system's programs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin")

SETTINGS = (
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "fonts",
    "gai.conf",
    "host.conf",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "magic",
    "mime.types",
    "pki",
    "profile",
    "protocols",
    "services",
    "ssl",
    "terminfo",
    "timezone",
)
"""Of /etc: what programs need to run, and nobody minds. Keys are in none of it but ``ssl``, see
:data:`PRIVATE`."""

PRIVATE = ("/etc/ssl/private", "/etc/pki/tls/private", "/usr/local/etc/ssl/private")
"""Below what is shown, and hidden all the same."""

NEVER = frozenset({"/", "/home", "/root", "/etc", "/var", "/run", "/tmp", "/proc", "/sys", "/dev"})
"""On nobody's behalf: too much would come along."""


def of_interpreter(
    prefixes: Iterable[str], paths: Iterable[str], parent: str
) -> tuple[list[str], list[str]]:
    """The trees that a Python and its packages live in, none inside another; and what of them is
    not shown, in words: a folder on ``sys.path`` may be one that holds far more than packages."""
    wanted = {os.path.abspath(path) for path in (*prefixes, *paths, parent) if path}
    wanted |= {os.path.realpath(path) for path in wanted}
    home = os.path.realpath(os.path.expanduser("~"))
    notes: list[str] = []
    shown: list[str] = []
    for path in sorted(wanted):
        if not os.path.exists(path) or inside(path, SYSTEM) or inside(path, shown):
            continue
        if path in NEVER or path == home or inside(home, [path]):
            notes.append(f"{path} is on sys.path and is not shown in the sandbox: it holds a home")
            continue
        shown.append(path)
    return shown, notes


def inside(path: str, trees: Sequence[str]) -> bool:
    """Whether a path is one of the trees, or in one."""
    return any(path == tree or path.startswith(f"{tree}/") for tree in trees)
