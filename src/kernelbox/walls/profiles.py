"""What a sandbox may do, as one value that every door takes, every driver enforces or refuses, and
a person can read.

A :class:`Profile` has no behaviour of its own. :data:`PROFILES` is the one table of the four that
have names; the code, the documentation and the tests read it. What a profile does not say is as in
``moderate``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from kernelbox.errors import BadInput
from kernelbox.walls.bindings import Secret, secrets_from
from kernelbox.walls.mounts import Mode, Mount, mounts_from
from kernelbox.walls.patterns import EVERYWHERE, check_domain
from kernelbox.walls.wording import GIB, MB, MIB, did_you_mean, shown, size_in_words

if TYPE_CHECKING:
    from kernelbox.walls.explaining import table
    from kernelbox.walls.surroundings import credential_folders, environment_for, secret_names

__all__ = [
    "CHOICES",
    "COUNTS",
    "EVERYWHERE",
    "GIB",
    "MB",
    "MIB",
    "PROFILES",
    "SIZES",
    "Cwd",
    "Driver",
    "Environment",
    "Home",
    "Mode",
    "Mount",
    "Network",
    "Profile",
    "Root",
    "Scratch",
    "Syscalls",
    "check_domain",
    "credential_folders",
    "did_you_mean",
    "environment_for",
    "is_whole",
    "mounts_from",
    "named",
    "resolve",
    "secret_names",
    "shown",
    "size_in_words",
    "table",
]


def __getattr__(name: str) -> Any:
    """What few need is looked up where it is: these are on the way to the first cell."""
    from kernelbox.walls import explaining, surroundings

    if name == "table":
        return explaining.table
    if name in ("credential_folders", "environment_for", "secret_names"):
        return getattr(surroundings, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


Driver = Literal["none", "process", "gvisor"]
Network = Literal["host", "on", "raw", "off"]
Cwd = Literal["host", "rw", "ro", "none"]
Home = Literal["host", "ro", "none"]
Environment = Literal["caller", "filtered", "minimal"]
Root = Literal["host", "overlay", "readonly"]
Scratch = Literal["host", "private", "tmpfs"]
Syscalls = Literal["all", "deny-list", "allow-list"]

CHOICES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "driver": get_args(Driver),
        "network": get_args(Network),
        "cwd": get_args(Cwd),
        "home": get_args(Home),
        "environment": get_args(Environment),
        "root": get_args(Root),
        "scratch": get_args(Scratch),
        "syscalls": get_args(Syscalls),
    }
)

# The least of each is there to catch slips: `memory = 512` is hardly meant as 512 bytes.
SIZES: Final[Mapping[str, int]] = MappingProxyType(
    {"memory": 16 * MIB, "soft_memory": 16 * MIB, "file_size": 4096, "disk": MIB}
)
# Descriptors of our own have numbers up to 982, so that code that closes "all" of them misses them.
COUNTS: Final[Mapping[str, int]] = MappingProxyType({"processes": 8, "open_files": 1024})
LONGEST_NAME = 128


def is_name(value: object) -> bool:
    if not isinstance(value, str) or not value.strip():
        return False
    return len(value) <= LONGEST_NAME and value.isprintable()


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def are_texts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, str) for each in value)


def as_float(number: Any) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf  # for check() to refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a sandbox may do. Sizes are in bytes; ``None`` is no limit.

    - ``driver``: who enforces it; ``none`` is no walls at all
    - ``network``: the host's, ``on`` (through our proxy, to what ``allow`` names), ``raw`` (TCP and
      UDP to every public address, through pasta) or ``off``
    - ``allow``: domains (``pypi.org``, ``*.example.com``, ``example.com:8443``; without a port
      they are 80 and 443); ``("*",)`` is all
    - ``cwd``, ``home``: how the caller's folder and home are seen
    - ``environment``: the caller's, the caller's without names that look like secrets, or minimal
    - ``root``: the system's files; ``overlay`` can be written to, and is thrown away
    - ``scratch``: workspace and /tmp; ``disk`` is how much fits
    - ``memory`` kills, ``soft_memory`` raises MemoryError in the cell
    - ``secrets``: what the proxy puts into requests to one domain, and code never sees
    """

    name: str = "custom"
    driver: Driver = "process"
    network: Network = "on"
    allow: tuple[str, ...] = EVERYWHERE
    cwd: Cwd = "none"
    home: Home = "none"
    environment: Environment = "minimal"
    root: Root = "overlay"
    scratch: Scratch = "private"
    memory: int | None = 512 * MB
    soft_memory: int | None = None
    cpus: float | None = 1.0
    processes: int | None = 256
    open_files: int | None = 1024
    file_size: int | None = None
    disk: int | None = GIB
    syscalls: Syscalls = "deny-list"
    mounts: tuple[Mount, ...] = ()
    secrets: tuple[Secret, ...] = ()

    def __post_init__(self) -> None:
        # One form for each meaning, so that equal profiles compare equal; what cannot be brought
        # into form is left for check(), which has the words.
        for field in ("allow", "mounts", "secrets"):
            if isinstance(value := getattr(self, field), list):
                object.__setattr__(self, field, tuple(value))
        if are_texts(self.allow):
            allow = tuple(dict.fromkeys(each.lower() for each in self.allow))
            # Every domain of no network is none.
            allow = () if self.network != "on" and allow == EVERYWHERE else allow
            object.__setattr__(self, "allow", allow)
        if is_whole(self.cpus):
            object.__setattr__(self, "cpus", as_float(self.cpus))

    @property
    def walled(self) -> bool:
        return self.driver != "none"

    def check(self) -> Profile:
        """Itself, or :class:`BadInput` that says which field takes what."""
        from kernelbox.walls import profilechecks  # who says a name does not wait for it

        profilechecks.check(self)
        return self

    def to_wire(self) -> dict[str, Any]:
        """As plain JSON, to travel with a request."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        plain["allow"] = list(self.allow)
        plain["mounts"] = [
            {"source": mount.source, "target": mount.target, "mode": mount.mode}
            for mount in self.mounts
        ]
        plain["secrets"] = [secret.to_wire() for secret in self.secrets]
        return plain

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> Profile:
        """What another process sent, checked.

        A key that we do not know is refused: it may be a wall of a newer version, and a wall must
        not be dropped in silence. One that is missing is as in ``moderate``.
        """
        known = [field.name for field in fields(cls)]
        for key in values:
            if key not in known:
                raise BadInput(
                    f"{shown(key)} is nothing that a profile of this version can say, and a wall "
                    f"must not be dropped in silence{did_you_mean(key, known)}",
                    field=str(key),
                )
        kept = dict(values)
        if "mounts" in kept:
            kept["mounts"] = mounts_from(kept["mounts"])
        if "secrets" in kept:
            kept["secrets"] = secrets_from(kept["secrets"])
        return cls(**kept).check()

    def but(self, **changes: Any) -> Profile:
        """The same with ``changes``, under a name that says so, checked."""
        for field in changes:
            if field not in self.__slots__:
                raise BadInput(
                    f"a profile has no {shown(field)}; it has {', '.join(self.__slots__)}"
                    f"{did_you_mean(field, self.__slots__)}",
                    field=field,
                )
        if "network" in changes and "allow" not in changes:
            # Where the switch is thrown, the list that belonged to its old position goes too.
            if changes["network"] != "on":
                changes["allow"] = ()
            elif self.network != "on":
                changes["allow"] = EVERYWHERE
        made = replace(self, **changes).check()
        if "name" in changes:
            return made
        if not made.differences(self):
            return self
        changed = self.name if self.name.endswith(_CHANGED) else self.name + _CHANGED
        return replace(made, name=changed[-LONGEST_NAME:])

    def differences(self, other: Profile) -> dict[str, tuple[Any, Any]]:
        """Every field, other than the name, in which the two differ: mine and the other's."""
        return {
            field: (getattr(self, field), getattr(other, field))
            for field in self.__slots__
            if field != "name" and getattr(self, field) != getattr(other, field)
        }

    def explain(self) -> str:
        """What code may do and what it may not, in sentences that a person reads."""
        from kernelbox.walls import explaining  # who runs code does not wait for it

        return explaining.in_sentences(self)

    def __str__(self) -> str:
        from kernelbox.walls import explaining

        return explaining.in_a_line(self)


_CHANGED = ", changed"


PROFILES: Final[Mapping[str, Profile]] = MappingProxyType(
    {
        profile.name: profile
        for profile in (
            Profile(
                name="open",
                driver="none",
                network="host",
                allow=(),
                cwd="host",
                home="host",
                environment="caller",
                root="host",
                scratch="host",
                memory=None,
                cpus=None,
                processes=None,
                open_files=None,
                disk=None,
                syscalls="all",
            ),
            Profile(
                name="permissive",
                driver="process",
                network="on",
                allow=EVERYWHERE,
                cwd="rw",
                home="ro",
                environment="filtered",
                root="overlay",
                scratch="private",
                memory=None,
                cpus=None,
                processes=None,
                open_files=None,
                disk=None,
                syscalls="deny-list",
            ),
            Profile(
                name="moderate",
                driver="process",
                network="on",
                allow=EVERYWHERE,
                cwd="none",
                home="none",
                environment="minimal",
                root="overlay",
                scratch="private",
                memory=512 * MB,
                cpus=1.0,
                processes=256,
                open_files=1024,
                disk=GIB,
                syscalls="deny-list",
            ),
            Profile(
                name="restrictive",
                driver="process",
                network="off",
                allow=(),
                cwd="none",
                home="none",
                environment="minimal",
                root="readonly",
                scratch="tmpfs",
                memory=256 * MB,
                cpus=0.5,
                processes=64,
                open_files=1024,
                disk=64 * MIB,
                syscalls="allow-list",
            ),
        )
    }
)


def named(name: str) -> Profile:
    """The profile of that name, or :class:`BadInput` that names those that exist."""
    profile = PROFILES.get(name) if is_name(name) else None
    if profile is None:
        raise BadInput(
            f"there is no profile {shown(name)}{did_you_mean(name, PROFILES)}. There are "
            f"{', '.join(PROFILES)}; a file of your own is named by its path, with a slash in it "
            f"or .toml or .json at its end",
            field="profile",
        )
    return profile


def resolve(
    value: str | Profile | Mapping[str, Any] | os.PathLike[str] | None, *, files: bool = True
) -> Profile:
    """The profile that a caller means, checked: by name, as itself, as a mapping, or in a file.

    ``files=False`` is for a door that strangers knock at: a string is then a name only, never a
    path on this machine.
    """
    if value is None:
        return PROFILES["open"]
    if isinstance(value, Profile):
        return value.check()
    from kernelbox.walls import profilefiles  # who says a name does not wait for it

    if isinstance(value, Mapping):
        made = profilefiles.from_mapping(value)
        if made.secrets and not files:
            raise BadInput(
                "secrets cannot be bound from here: their values are those of the machine that "
                "KernelBox runs on, and would be sent where the caller says",
                field="secrets",
            )
        return made
    if files and (isinstance(value, os.PathLike) or _is_path(value)):
        return profilefiles.read(value)
    if isinstance(value, str):
        return named(value)
    raise BadInput(
        f"a profile is a name ({', '.join(PROFILES)}), a Profile, a mapping or the path of a file; "
        f"not {shown(value)}",
        field="profile",
    )


def _is_path(value: object) -> bool:
    return isinstance(value, str) and ("/" in value or value.endswith((".toml", ".json")))
