"""What a sandbox may do, as one value that every door takes, every driver enforces or refuses, and
a person can read.

A :class:`Profile` has no behaviour of its own. :data:`PROFILES` is the one table of the four that
have names; the code, the documentation and the tests read it. What a profile does not say is as in
``moderate``.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from kernelbox.errors import BadInput
from kernelbox.walls.bindings import Secret, check_all, secrets_from

Driver = Literal["none", "process", "gvisor"]
Network = Literal["host", "on", "raw", "off"]
Cwd = Literal["host", "rw", "ro", "none"]
Home = Literal["host", "ro", "none"]
Environment = Literal["caller", "filtered", "minimal"]
Root = Literal["host", "overlay", "readonly"]
Scratch = Literal["host", "private", "tmpfs"]
Syscalls = Literal["all", "deny-list", "allow-list"]
Mode = Literal["ro", "rw"]

MB: Final = 1000**2
MIB: Final = 1024**2
GIB: Final = 1024**3

EVERYWHERE: Final = ("*",)

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
_MOST = 2**62
_MOST_CPUS = 4096
_LONGEST_NAME = 128

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


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_share(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value) and 0.01 <= value <= _MOST_CPUS


def _are_texts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, str) for each in value)


def _are_mounts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, Mount) for each in value)


def _are_secrets(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, Secret) for each in value)


def _as_float(number: Any) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf  # for check() to refuse


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the host that a sandbox sees at ``target``."""

    source: str
    target: str
    mode: Mode = "ro"

    def check(self) -> Mount:
        for field in ("source", "target"):
            path = getattr(self, field)
            if not isinstance(path, str) or not _is_whole_path(path):
                raise BadInput(
                    f"the {field} of a mount takes a path from / on, without .. and without a "
                    f"slash at its end, not {shown(path)}",
                    field="mounts",
                )
            # A view of the host's processes or devices is a way out, and so is its whole tree.
            if path == "/" or path.startswith(("/proc/", "/sys/", "/dev/")) or path in _NEVER:
                raise BadInput(
                    f"{path} cannot be the {field} of a mount: a sandbox has a root, /proc, /sys "
                    f"and /dev of its own. Mount the folder that the code needs",
                    field="mounts",
                )
        if self.mode not in get_args(Mode):
            raise BadInput(
                f"the mode of a mount takes one of ro, rw; not {shown(self.mode)}", field="mounts"
            )
        return self

    def __str__(self) -> str:
        at = "" if self.source == self.target else f" at {self.target}"
        return f"{self.source}{at} ({self.mode})"


_NEVER = ("/proc", "/sys", "/dev")


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
        if _are_texts(self.allow):
            allow = tuple(dict.fromkeys(each.lower() for each in self.allow))
            # Every domain of no network is none.
            allow = () if self.network != "on" and allow == EVERYWHERE else allow
            object.__setattr__(self, "allow", allow)
        if is_whole(self.cpus):
            object.__setattr__(self, "cpus", _as_float(self.cpus))

    @property
    def walled(self) -> bool:
        return self.driver != "none"

    def check(self) -> Profile:
        """Itself, or :class:`BadInput` that says which field takes what."""
        if not _is_name(self.name):
            raise BadInput(
                f"the name of a profile takes up to {_LONGEST_NAME} printable characters, "
                f"not {shown(self.name)}",
                field="name",
            )
        for field, options in CHOICES.items():
            value = getattr(self, field)
            if not isinstance(value, str) or value not in options:
                raise BadInput(
                    f"{field} of a profile takes one of {', '.join(options)}; not {shown(value)}"
                    f"{did_you_mean(value, options)}",
                    field=field,
                )
        for field, least in (*SIZES.items(), *COUNTS.items()):
            value = getattr(self, field)
            if value is not None and not (is_whole(value) and least <= value <= _MOST):
                of = " of bytes" if field in SIZES else ""
                words = f" ({size_in_words(least)})" if field in SIZES else ""
                raise BadInput(
                    f"{field} of a profile takes a whole number{of} from {least}{words} on, or "
                    f"None for no limit; not {shown(value)}",
                    field=field,
                )
        if self.cpus is not None and not _is_share(self.cpus):
            raise BadInput(
                f"cpus of a profile takes a number from 0.01 to {_MOST_CPUS}, or None for no "
                f"limit; not {shown(self.cpus)}",
                field="cpus",
            )
        if not _are_texts(self.allow):
            raise BadInput(
                f"allow of a profile takes a list of domains, not {shown(self.allow)}",
                field="allow",
            )
        for pattern in self.allow:
            check_domain(pattern)
        if not _are_mounts(self.mounts):
            raise BadInput(
                f"mounts of a profile takes a list of Mount(source, target, mode), "
                f"not {shown(self.mounts)}",
                field="mounts",
            )
        for mount in self.mounts:
            mount.check()
        if not _are_secrets(self.secrets):
            raise BadInput(
                "secrets of a profile takes a list of Secret(name, domain, file)", field="secrets"
            )
        _check_whole(self)
        check_all(self.secrets, network=self.network, allow=self.allow)
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
        return replace(made, name=changed[-_LONGEST_NAME:])

    def differences(self, other: Profile) -> dict[str, tuple[Any, Any]]:
        """Every field, other than the name, in which the two differ: mine and the other's."""
        return {
            field: (getattr(self, field), getattr(other, field))
            for field in self.__slots__
            if field != "name" and getattr(self, field) != getattr(other, field)
        }

    def explain(self) -> str:
        """What code may do and what it may not, in sentences that a person reads."""
        may, may_not = _permissions(self)
        if self.walled:
            head = f"{self.name}: a sandbox, enforced by the driver {self.driver!r}."
        else:
            head = f"{self.name}: no walls. Code has the rights of whoever started it."
        parts = [head, "", "Code may", *(f"- {each}" for each in may)]
        if may_not:
            parts += ["", "Code may not", *(f"- {each}" for each in may_not)]
        return "\n".join(parts)

    def __str__(self) -> str:
        parts = [f"driver {self.driver}"]
        parts.append(f"network {self.network}{_to_where(self.allow)}")
        parts += [f"{field} {getattr(self, field)}" for field in _IN_ONE_WORD]
        parts += [f"{words} {say(self)}" for words, field, say in _LIMITS if _has(self, field)]
        parts += [f"mount {mount}" for mount in self.mounts]
        parts += [f"secret {secret}" for secret in self.secrets]
        return f"{self.name}: {', '.join(parts)}"


_CHANGED = ", changed"
_IN_ONE_WORD = ("cwd", "home", "environment", "root", "scratch", "syscalls")


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
    profile = PROFILES.get(name) if _is_name(name) else None
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


# --- what fits -----------------------------------------------------------------------------------


def check_domain(pattern: object) -> str:
    """``pypi.org``, ``*.example.com``, either with a port, or ``*``; else :class:`BadInput`."""
    if pattern == "*":
        return "*"
    takes = "a domain in allow is written like pypi.org, *.example.com or example.com:8443"
    if not isinstance(pattern, str):
        raise BadInput(f"{takes}; not {shown(pattern)}", field="allow")
    host, colon, port = pattern.partition(":")
    # For the rest of the checks, every host is like any host.
    labels = ["any"] if host == "*" else host.removeprefix("*.").split(".")
    if _ADDRESS.fullmatch(labels[-1]) or ":" in port or pattern.startswith("["):
        # What a name leads to is decided by us when it is resolved; an address goes around that.
        raise BadInput(
            f"{takes}; {shown(pattern)} is an address, and only names are let through",
            field="allow",
        )
    if labels[-1] == "localhost":
        raise BadInput(
            f"{shown(pattern)} cannot be allowed: a sandbox has a loopback of its own, and the "
            f"host's is out of reach. Offer the service as a host tool, or under a domain",
            field="allow",
        )
    if not all(_LABEL.fullmatch(label) for label in labels) or len(host) > 253:
        raise BadInput(
            f"{takes} (without https:// and without a path; other letters than a-z as xn--…); "
            f"not {shown(pattern)}",
            field="allow",
        )
    if colon and not (_PORT.fullmatch(port) and int(port) <= 65535):
        raise BadInput(f"{takes}, with a port from 1 to 65535; not {shown(pattern)}", field="allow")
    return pattern


_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_ADDRESS = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")


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


def mounts_from(values: object) -> tuple[Mount, ...]:
    """Mounts as they travel: a list of ``{"source": …, "target": …, "mode": …}``."""
    if not isinstance(values, list | tuple):
        raise BadInput(f"mounts takes a list, not {shown(values)}", field="mounts")
    known = ("source", "target", "mode")
    made = []
    for value in values:
        if isinstance(value, Mount):
            made.append(value)
            continue
        if not isinstance(value, Mapping):
            raise BadInput(
                f"a mount takes source, target and mode, not {shown(value)}", field="mounts"
            )
        for key in value:
            if key not in known:
                raise BadInput(
                    f"a mount has no {shown(key)}; it has {', '.join(known)}"
                    f"{did_you_mean(key, known)}",
                    field="mounts",
                )
        if "source" not in value:
            raise BadInput("a mount has to name its source", field="mounts")
        made.append(Mount(**{"target": value["source"], **value}))
    return tuple(made)


def _is_whole_path(path: str) -> bool:
    # normpath leaves two slashes at the beginning as they are.
    if not path.startswith("/") or path.startswith("//"):
        return False
    return os.path.normpath(path) == path and path.isprintable()


def _is_name(value: object) -> bool:
    if not isinstance(value, str) or not value.strip():
        return False
    return len(value) <= _LONGEST_NAME and value.isprintable()


def shown(value: object) -> str:
    """A value as an error shows it: never a page of it."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """``; did you mean 'memory'?`` where a name is a near miss; else nothing."""
    from difflib import get_close_matches  # only who mistyped waits for it

    folded = {each.casefold(): each for each in known}
    near = get_close_matches(str(name).casefold(), folded, n=1, cutoff=0.6)
    return f"; did you mean {folded[near[0]]!r}?" if near else ""


# --- in words ------------------------------------------------------------------------------------

_UNITS = (
    ("GiB", GIB), ("GB", 1000**3), ("MiB", MIB), ("MB", MB), ("KiB", 1024), ("kB", 1000),
)  # fmt: skip


def size_in_words(size: int) -> str:
    """``512 MB``, ``1 GiB``: in the largest unit that says it exactly."""
    for unit, factor in _UNITS:
        if size and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size:,} bytes"


def _size(field: str) -> Callable[[Profile], str]:
    return lambda profile: size_in_words(getattr(profile, field))


def _number(field: str) -> Callable[[Profile], str]:
    return lambda profile: f"{getattr(profile, field):g}"


def _has(profile: Profile, field: str) -> bool:
    return getattr(profile, field) is not None


# What a limit is called, its field, and how its value is said.
_LIMITS: tuple[tuple[str, str, Callable[[Profile], str]], ...] = (
    ("memory", "memory", _size("memory")),
    ("soft memory", "soft_memory", _size("soft_memory")),
    ("CPUs", "cpus", _number("cpus")),
    ("processes", "processes", _number("processes")),
    ("open files", "open_files", _number("open_files")),
    ("file size", "file_size", _size("file_size")),
    ("disk", "disk", _size("disk")),
)


def _to_where(allow: tuple[str, ...]) -> str:
    if not allow:
        return ""
    return " (every domain)" if allow == EVERYWHERE else f" ({', '.join(allow)})"


def _permissions(profile: Profile) -> tuple[list[str], list[str]]:
    """What code may do, and what it may not."""
    may: list[str] = []
    may_not: list[str] = []
    for say in (_of_network, _of_secrets, _of_files, _of_environment, _of_limits, _of_system_calls):
        yes, no = say(profile)
        may += yes
        may_not += no
    return may, may_not


_Said = tuple[list[str], list[str]]


def _of_network(profile: Profile) -> _Said:
    if profile.network == "host":
        return ["use the network as the host does, its loopback services included"], []
    out_of_reach = "reach the host's loopback services or Unix sockets"
    if profile.network == "off":
        return (
            ["open connections within the sandbox, on a loopback of its own"],
            ["reach any network", out_of_reach],
        )
    if profile.network == "raw":
        return (
            ["reach every public address by TCP and UDP, version 4, through pasta"],
            ["reach private networks or this machine", out_of_reach],
        )
    proxy = "by HTTP and HTTPS, through KernelBox's proxy"
    if profile.allow == EVERYWHERE:
        return [f"reach every domain, {proxy}"], [out_of_reach]
    return (
        [f"reach {', '.join(profile.allow)}, {proxy}"],
        ["reach any other domain, or an address without a name", out_of_reach],
    )


def _of_secrets(profile: Profile) -> _Said:
    names = list(dict.fromkeys(secret.name for secret in profile.secrets))
    return (
        [f"have the secret {s.name} sent to {s.domain} in headers" for s in profile.secrets],
        [f"see the value of {name}, or send it elsewhere" for name in names],
    )


def _of_files(profile: Profile) -> _Said:
    if not profile.walled:
        return ["read and write every file that the caller may, credentials included"], []
    may = ["read the system's programs and libraries, and the interpreter with its packages"]
    may_not: list[str] = []
    if profile.cwd == "none":
        may_not.append("see the folder that it was started in")
    else:
        verb = "read and write" if profile.cwd == "rw" else "read"
        may.append(f"{verb} the folder that it was started in")
    if profile.home == "none":
        may_not.append("see the caller's home")
    else:
        may.append("read the caller's home")
        some = ", ".join(credential_folders()[:4])
        may_not.append(f"see the keys and credentials in that home ({some}, …)")
    for mount in profile.mounts:
        verb = "read and write" if mount.mode == "rw" else "read"
        at = "" if mount.source == mount.target else f", which it sees as {mount.target}"
        may.append(f"{verb} {mount.source} of the host{at}")
    if profile.root == "overlay":
        may.append("change the system's files, in a copy of its own that is thrown away")
    else:
        may_not.append("change the system's files")
    where = "in memory, " if profile.scratch == "tmpfs" else ""
    room = "without a limit" if profile.disk is None else f"up to {size_in_words(profile.disk)}"
    may.append(f"write to a workspace and a /tmp of its own, {where}{room}")
    may_not.append("see any other file of the host")
    return may, may_not


def _of_environment(profile: Profile) -> _Said:
    if profile.environment == "caller":
        return ["read every variable of the caller's environment, secrets included"], []
    if profile.environment == "filtered":
        return (
            ["read the caller's environment"],
            ["read variables whose names look like secrets, other than those given to it"],
        )
    return [], ["read the caller's environment, other than variables given to it"]


def _of_limits(profile: Profile) -> _Said:
    said: list[str] = []
    if profile.soft_memory is not None:
        soft = size_in_words(profile.soft_memory)
        said.append(f"use more than {soft} of memory in a cell: that raises MemoryError")
    if profile.memory is not None:
        said.append(f"use more than {size_in_words(profile.memory)} of memory: that kills it")
    if profile.cpus is not None:
        share = "1 processor" if profile.cpus == 1 else f"{profile.cpus:g} processors"
        said.append(f"use more than the time of {share}")
    if profile.processes is not None:
        said.append(f"have more than {profile.processes} processes and threads")
    if profile.open_files is not None:
        said.append(f"have more than {profile.open_files} files open in one process")
    if profile.file_size is not None:
        said.append(f"write a file of more than {size_in_words(profile.file_size)}")
    if _has(profile, "memory") or _has(profile, "cpus") or _has(profile, "processes"):
        return [], said
    return ["use all of the memory, processors and processes there are"], said


def _of_system_calls(profile: Profile) -> _Said:
    if not profile.walled:
        return ["see, signal and trace the caller's other processes"], []
    unseen = "see or signal any process outside of the sandbox"
    if profile.syscalls == "all":
        return ["make every system call, without capabilities"], [unseen]
    if profile.syscalls == "deny-list":
        return [], [unseen, "mount, trace, load modules, or make other dangerous system calls"]
    return [], [unseen, "make any system call other than those that ordinary programs need"]


_CELLS: Mapping[str, Mapping[str, str]] = {
    "driver": {"none": "none", "process": "any walled; `process` unless told"},
    "network": {"host": "the host's", "on": "on", "raw": "raw", "off": "off"},
    "cwd": {"host": "the host's", "rw": "read-write", "ro": "read-only", "none": "–"},
    "home": {
        "host": "the host's",
        "ro": "read-only, without key and credential folders",
        "none": "–",
    },
    "environment": {
        "caller": "the caller's",
        "filtered": "passed, without names that look like secrets",
        "minimal": "minimal",
    },
    "root": {
        "host": "the host's",
        "overlay": "writable, as a private overlay that is thrown away",
        "readonly": "read-only",
    },
    "scratch": {
        "host": "the host's",
        "private": "private, writable",
        "tmpfs": "private tmpfs, bounded",
    },
    "syscalls": {"all": "–"},
}
_HEADS = {
    "root": "root file system",
    "scratch": "workspace, /tmp",
    "syscalls": "seccomp",
}


def table() -> str:
    """The named profiles side by side, in Markdown; docs/profiles.md has it."""
    profiles = list(PROFILES.values())
    rows = [["", *PROFILES], ["---"] * (len(profiles) + 1)]
    for field, words in _CELLS.items():
        values = [getattr(profile, field) for profile in profiles]
        rows.append([_HEADS.get(field, field), *(words.get(value, value) for value in values)])
        if field == "network":
            rows.append(["domains", *(_domains(profile) for profile in profiles)])
    for head, field, say in _LIMITS:
        if any(_has(profile, field) for profile in profiles):
            cells = [say(profile) if _has(profile, field) else "–" for profile in profiles]
            rows.append([head, *cells])
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows) + "\n"


def _domains(profile: Profile) -> str:
    if profile.network == "host" or profile.allow == EVERYWHERE:
        return "all"
    return ", ".join(profile.allow) or "–"


# --- the environment, and what a home hides ------------------------------------------------------


def secret_names(environ: Mapping[str, str]) -> set[str]:
    """The names in an environment that look like secrets, or whose values plainly are some."""
    secret = _secret_values()
    return {name for name, value in environ.items() if _sounds_secret(name) or secret.search(value)}


# Whole words of a name (a name is split at anything but letters and digits).
_SECRET_WORDS = frozenset((
    "AUTH", "BEARER", "COOKIE", "COOKIES", "CRED", "CREDS", "DSN", "HEADERS", "JWT", "KEYFILE",
    "KEYRING", "KEYTAB", "NETRC", "PASS", "PASSFILE", "PASSWDFILE", "PAT", "PEM", "PGPASS",
    "PRIVATE", "PWD", "SALT", "SIGNATURE",
))  # fmt: skip
# A word ends so: GITHUBTOKEN does; TOKENIZERS_PARALLELISM, which is harmless, does not.
_SECRET_ENDS = ("KEY", "KEYS", "PASSFILE", "TOKEN", "TOKENS")
_SECRET_PARTS = ("SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "APIKEY", "OAUTH")
_SECRET_STARTS = (
    "AWS_", "AZURE_", "ARM_CLIENT_", "GCP_", "GCLOUD_", "GOOGLE_APPLICATION_", "GPG_",
    "OP_SESSION_", "SSH_", "VAULT_",
)  # fmt: skip
_SECRET_NAMES = frozenset(("KUBECONFIG", "XAUTHORITY", "MYSQL_PWD", "DATABASE_URL", "REDIS_URL"))
_NO_SECRETS = frozenset(("PWD", "OLDPWD"))
_WORD = re.compile(r"[A-Z0-9]+")


@functools.cache
def _secret_values() -> re.Pattern[str]:
    # Compiling this takes longer than the rest of the module does to load.
    return re.compile(
        r"""
        ://[^/\s:@]*:[^/\s@]+@                    # a password in an address
        | -----BEGIN\ [A-Z ]*PRIVATE\ KEY
        | \b(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|[sr]k_live_|sk-|hf_|pypi-|npm_)[\w-]{16}
        | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b
        | \beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.        # a JSON web token
        """,
        re.VERBOSE,
    )


def _sounds_secret(name: str) -> bool:
    name = name.upper()
    if name in _NO_SECRETS:
        return False
    if name in _SECRET_NAMES or name.startswith(_SECRET_STARTS):
        return True
    if any(part in name for part in _SECRET_PARTS):
        return True
    return any(word in _SECRET_WORDS or word.endswith(_SECRET_ENDS) for word in _WORD.findall(name))


# They lead to sockets and proxies of the host, which are out of reach behind walls.
_OF_THE_HOST = frozenset(
    ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST", "TMUX", "TMP", "TEMP")
)
_PROXIES = frozenset(("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY"))
_USER = "sandbox"


def environment_for(
    profile: Profile,
    caller: Mapping[str, str],
    *,
    home: str,
    path: str,
    given: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The variables that code in such a sandbox has; ``given`` ones it has whatever it is.

    ``home`` and ``path`` are HOME and PATH as they are behind the walls; without walls the
    caller's own are right.
    """
    made: dict[str, str] = {}
    hidden = set() if profile.environment == "caller" else secret_names(caller)
    for name, value in caller.items():
        if name in hidden or (profile.environment == "minimal" and not _is_plain(name)):
            continue
        if profile.walled and (name in _OF_THE_HOST or name.upper() in _PROXIES):
            continue
        made[name] = value
    if profile.environment == "minimal":
        made = {"LANG": "C.UTF-8", "TERM": "dumb", **made}
        made |= {"USER": _USER, "LOGNAME": _USER, "SHELL": "/bin/bash"}
    if profile.walled or profile.environment == "minimal":
        made |= {"HOME": home, "PATH": path, "TMPDIR": "/tmp"}
    return made | dict(given or {})


def _is_plain(name: str) -> bool:
    return name in ("LANG", "TZ", "TERM") or name.startswith("LC_")


def credential_folders() -> tuple[str, ...]:
    """What is masked in a home that a sandbox sees: files and folders, relative to it."""
    return _CREDENTIALS


_CREDENTIALS = (
    ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".netrc", ".git-credentials",
    ".pypirc", ".npmrc", ".yarnrc.yml", ".pgpass", ".my.cnf", ".mylogin.cnf", ".vault-token",
    ".boto", ".s3cfg", ".terraform.d", ".terraformrc", ".password-store", ".pki", ".putty",
    ".kaggle", ".databrickscfg", ".snowflake", ".snowsql", ".bitcoin", ".ethereum", ".oci",
    ".ansible", ".cargo/credentials", ".cargo/credentials.toml", ".gem/credentials",
    ".m2/settings.xml", ".gradle/gradle.properties", ".nuget", ".composer/auth.json",
    ".jupyter", ".ipython/profile_default/security", ".local/share/jupyter/runtime",
    ".local/share/keyrings", ".local/share/kwalletd", ".local/share/uv/credentials",
    ".local/share/containers", ".cache/huggingface/token", ".huggingface", ".claude",
    ".claude.json", ".codex", ".gemini", ".mozilla", ".thunderbird", ".config/gcloud",
    ".config/gh", ".config/glab-cli", ".config/hub", ".config/git/credentials",
    ".config/google-chrome", ".config/chromium", ".config/BraveSoftware",
    ".config/microsoft-edge", ".config/containers", ".config/op", ".config/Bitwarden",
    ".config/pypoetry/auth.toml", ".config/rclone", ".config/sops", ".config/age",
    ".config/doctl", ".config/heroku", ".config/wandb", ".config/anthropic",
    ".config/github-copilot", ".config/Code/User/globalStorage", ".config/kernelbox",
    ".kernelbox", ".Xauthority", ".ICEauthority",
    # What was typed and pasted stays there for a long time.
    ".bash_history", ".zsh_history", ".python_history", ".psql_history", ".mysql_history",
    ".node_repl_history", ".local/share/fish/fish_history",
    ".ipython/profile_default/history.sqlite",
)  # fmt: skip
