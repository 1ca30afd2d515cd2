"""Which way leads into walls on this machine: through namespaces or, where these are closed, by
locks alone. Found out by trying."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Literal

from kernelbox.walls import entry, kernelcalls
from kernelbox.walls.profiles import Profile, named

Kind = Literal["namespaces", "locks"]

# With these a machine says "never", to whoever asks. Others (no memory, too many processes) pass.
_CLOSED = frozenset({errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL, errno.EUSERS})
_MOST_NAMESPACES = "/proc/sys/user/max_user_namespaces"

# What a profile may say where there are locks alone. The rest is as in `restrictive`.
_LIMITS = frozenset({"memory", "cpus", "processes", "open_files", "file_size", "disk"})


@dataclass(frozen=True, slots=True)
class Way:
    """``why``: what is in the way of namespaces, in words."""

    kind: Kind
    why: str = ""
    settled: bool = True
    """Whether it is worth while to look again."""


_found: Way | None = None


def look() -> Way:
    """Try it out, once: for the root, whose forks then know it, and for who asks from outside."""
    global _found
    if _found is None or not _found.settled:
        _found = _look()
    return _found


def known() -> Way:
    """What the root had found when we were forked from it: all of a family go the same way."""
    return _found or Way("namespaces", settled=False)


def cannot_offer(profile: Profile, way: Way) -> str:
    """What of a profile cannot be had by this way, in words; empty if all of it can."""
    if way.kind == "namespaces":
        return ""
    model = named("restrictive")
    more = [field for field in profile.differences(model) if field not in _LIMITS]
    if not more:
        return ""
    return (
        f"user namespaces are closed here ({way.why}), and without them only 'restrictive' can be "
        f"had, with other limits if you like; this profile has another {', '.join(more)}. Use "
        "'restrictive', or open user namespaces: see kernelbox doctor"
    )


def _look() -> Way:
    if not kernelcalls.supported():
        return Way("namespaces")  # and that is refused, in words of its own
    number, words = entry.attempt()
    if not words:
        return Way("namespaces")
    if number in _CLOSED or (number == errno.ENOSPC and _none_allowed()):
        return Way("locks", words)
    return Way("namespaces", words, settled=False)


def _none_allowed() -> bool:
    """Whether there can be no user namespace at all, and not only none more."""
    try:
        with open(_MOST_NAMESPACES) as file:
            return int(file.read()) == 0
    except (OSError, ValueError):
        return False
