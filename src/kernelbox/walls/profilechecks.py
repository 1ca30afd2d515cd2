"""Whether a profile makes sense: what each field takes, and which of them fit together."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Final

from kernelbox.errors import BadInput
from kernelbox.walls.bindings import Secret, check_all
from kernelbox.walls.mounts import Mount
from kernelbox.walls.patterns import check_domain
from kernelbox.walls.profiles import (
    CHOICES,
    COUNTS,
    LONGEST_NAME,
    SIZES,
    Profile,
    are_texts,
    is_name,
    is_whole,
)
from kernelbox.walls.wording import did_you_mean, shown, size_in_words

_MOST = 2**62
_MOST_CPUS = 4096

# What stands for "no wall here"; these and the driver `none` go together or not at all.
_UNWALLED: Final = MappingProxyType(
    {"network": "host", "cwd": "host", "home": "host", "root": "host", "scratch": "host"}
)
_INSTEAD: Final = MappingProxyType(
    {
        "network": "'on', 'raw' or 'off'",
        "cwd": "'rw', 'ro' or 'none'",
        "home": "'ro' or 'none'",
        "root": "'overlay' or 'readonly'",
        "scratch": "'private' or 'tmpfs'",
    }
)


def check(profile: Profile) -> None:
    """Raises :class:`BadInput` that says which field takes what."""
    if not is_name(profile.name):
        raise BadInput(
            f"the name of a profile takes up to {LONGEST_NAME} printable characters, "
            f"not {shown(profile.name)}",
            field="name",
        )
    for field, options in CHOICES.items():
        value = getattr(profile, field)
        if not isinstance(value, str) or value not in options:
            raise BadInput(
                f"{field} of a profile takes one of {', '.join(options)}; not {shown(value)}"
                f"{did_you_mean(value, options)}",
                field=field,
            )
    for field, least in (*SIZES.items(), *COUNTS.items()):
        value = getattr(profile, field)
        if value is not None and not (is_whole(value) and least <= value <= _MOST):
            of = " of bytes" if field in SIZES else ""
            words = f" ({size_in_words(least)})" if field in SIZES else ""
            raise BadInput(
                f"{field} of a profile takes a whole number{of} from {least}{words} on, or "
                f"None for no limit; not {shown(value)}",
                field=field,
            )
    if profile.cpus is not None and not _is_share(profile.cpus):
        raise BadInput(
            f"cpus of a profile takes a number from 0.01 to {_MOST_CPUS}, or None for no "
            f"limit; not {shown(profile.cpus)}",
            field="cpus",
        )
    if not are_texts(profile.allow):
        raise BadInput(
            f"allow of a profile takes a list of domains, not {shown(profile.allow)}",
            field="allow",
        )
    for pattern in profile.allow:
        check_domain(pattern)
    if not _are_mounts(profile.mounts):
        raise BadInput(
            f"mounts of a profile takes a list of Mount(source, target, mode), "
            f"not {shown(profile.mounts)}",
            field="mounts",
        )
    for mount in profile.mounts:
        mount.check()
    if not _are_secrets(profile.secrets):
        raise BadInput(
            "secrets of a profile takes a list of Secret(name, domain, file)", field="secrets"
        )
    _check_whole(profile)
    check_all(profile.secrets, network=profile.network, allow=profile.allow)


def _check_whole(profile: Profile) -> None:
    """What is right field by field and still makes no sense together."""
    for field, value in _UNWALLED.items():
        mine = getattr(profile, field)
        if profile.walled and mine == value:
            raise BadInput(
                f"{field}={value!r} is for driver='none' only, and this profile has the driver "
                f"{profile.driver!r}: say {_INSTEAD[field]}",
                field=field,
            )
        if not profile.walled and mine != value:
            raise BadInput(
                f"{field}={mine!r} needs walls, and driver='none' has none: say driver='process', "
                f"or {field}={value!r}",
                field=field,
            )
    if not profile.walled and (profile.mounts or profile.syscalls != "all"):
        field = "mounts" if profile.mounts else "syscalls"
        raise BadInput(
            f"{field} need walls, and driver='none' has none: say driver='process'", field=field
        )
    if profile.allow and profile.network == "raw":
        raise BadInput(
            "allow names domains, and with network='raw' code connects to addresses by itself: "
            "which domain it means cannot be seen. Leave allow out, or say network='on'",
            field="allow",
        )
    if profile.allow and profile.network != "on":
        raise BadInput(
            f"allow names domains, and the network is {profile.network!r}: say network='on' too",
            field="allow",
        )
    if profile.network == "on" and not profile.allow:
        raise BadInput(
            "the network is 'on' and allow names no domain: name some, say allow=('*',) for all, "
            "or network='off'",
            field="allow",
        )
    # Another port is more than "*" says, which is 80 and 443.
    idle = [each for each in profile.allow if ":" not in each and each != "*"]
    if "*" in profile.allow and idle:
        raise BadInput(
            f"allow has '*', which is every domain, beside {shown(idle[0])}, which then limits "
            f"nothing: leave out one or the other",
            field="allow",
        )
    soft, hard = profile.soft_memory, profile.memory
    if soft is not None and hard is not None and soft >= hard:
        raise BadInput(
            f"soft_memory ({size_in_words(soft)}) has to be below memory ({size_in_words(hard)}): "
            f"at the first a cell gets a MemoryError, at the second it is killed",
            field="soft_memory",
        )
    if profile.scratch == "tmpfs" and profile.disk is None:
        raise BadInput(
            "scratch='tmpfs' is memory, and has to be bounded: say how much by disk", field="disk"
        )
    targets = [mount.target for mount in profile.mounts]
    for target in targets:
        if targets.count(target) > 1:
            raise BadInput(
                f"two mounts have the target {target}: leave out one of them", field="mounts"
            )


def _is_share(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value) and 0.01 <= value <= _MOST_CPUS


def _are_mounts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, Mount) for each in value)


def _are_secrets(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, Secret) for each in value)
