"""What the kernel's Python has already, and what of it carries us."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import sysconfig

import kernelbox
from kernelbox.installs.policy import plain_name

_FOLDER = re.compile(r"(?P<name>[A-Za-z0-9._-]+?)-(?P<version>[^-]+)\.(dist-info|egg-info)")
_ENOUGH = 500


def installed() -> dict[str, str]:
    """Names and versions, by the names of folders: the metadata of hundreds takes long to read."""
    from packaging.version import InvalidVersion, Version

    found = {"kernelbox": kernelbox.__version__}  # also where it is imported from a checkout
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if (match := _FOLDER.fullmatch(name)) is not None:
                with contextlib.suppress(InvalidVersion):
                    Version(match["version"])
                    # The first on the path is the one that is imported.
                    found.setdefault(plain_name(match["name"]), match["version"])
    return found


def carrying() -> set[str]:
    """Packages that the interpreters run on: they are loaded before anybody's code, so that another
    version of them could not take effect, or only in parts."""
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import Requirement

    found: set[str] = set()
    waiting = ["kernelbox", "ipython", "comm", "traitlets", "matplotlib-inline", "cloudpickle"]
    while waiting and len(found) < _ENOUGH:
        name = plain_name(waiting.pop())
        if name in found:
            continue
        found.add(name)
        if name == "kernelbox":
            continue  # its own are named above: pyzmq, rich and the like are not in an interpreter
        try:
            needed = [Requirement(text) for text in requires(name) or ()]
        except PackageNotFoundError:
            continue
        waiting += [
            each.name
            for each in needed
            if each.marker is None or each.marker.evaluate({"extra": ""})
        ]
    return found


def satisfies(version: str, specifier: str) -> bool:
    """Whether a version that is there is one of those that are wanted."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion

    try:
        return SpecifierSet(specifier).contains(version, prereleases=True)
    except InvalidVersion:
        return False


def fingerprint() -> str:
    """Layers fit this Python and no other."""
    version = ".".join(map(str, sys.version_info[:3]))
    return f"{sys.implementation.cache_tag} {version} {sysconfig.get_platform()} {sys.executable}"
