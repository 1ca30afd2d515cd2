"""Profiles in words: what code may do and what it may not, and the table of those with names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kernelbox.walls.patterns import EVERYWHERE
from kernelbox.walls.surroundings import credential_folders
from kernelbox.walls.wording import size_in_words

if TYPE_CHECKING:
    from kernelbox.walls.profiles import Profile


def _size(field: str) -> Callable[[Profile], str]:
    return lambda profile: size_in_words(getattr(profile, field))


def _number(field: str) -> Callable[[Profile], str]:
    return lambda profile: f"{getattr(profile, field):g}"


def has(profile: Profile, field: str) -> bool:
    return getattr(profile, field) is not None


# What a limit is called, its field, and how its value is said.
LIMITS: tuple[tuple[str, str, Callable[[Profile], str]], ...] = (
    ("memory", "memory", _size("memory")),
    ("soft memory", "soft_memory", _size("soft_memory")),
    ("CPUs", "cpus", _number("cpus")),
    ("processes", "processes", _number("processes")),
    ("open files", "open_files", _number("open_files")),
    ("file size", "file_size", _size("file_size")),
    ("disk", "disk", _size("disk")),
)


def to_where(allow: tuple[str, ...]) -> str:
    if not allow:
        return ""
    return " (every domain)" if allow == EVERYWHERE else f" ({', '.join(allow)})"


_IN_ONE_WORD = ("cwd", "home", "environment", "root", "scratch", "syscalls")


def in_a_line(profile: Profile) -> str:
    """All of it, for a log."""
    parts = [f"driver {profile.driver}"]
    parts.append(f"network {profile.network}{to_where(profile.allow)}")
    parts += [f"{field} {getattr(profile, field)}" for field in _IN_ONE_WORD]
    parts += [f"{words} {say(profile)}" for words, field, say in LIMITS if has(profile, field)]
    parts += [f"mount {mount}" for mount in profile.mounts]
    parts += [f"secret {secret}" for secret in profile.secrets]
    return f"{profile.name}: {', '.join(parts)}"


def in_sentences(profile: Profile) -> str:
    """What code may do and what it may not, for a person to read."""
    may, may_not = permissions(profile)
    if profile.walled:
        head = f"{profile.name}: a sandbox, enforced by the driver {profile.driver!r}."
    else:
        head = f"{profile.name}: no walls. Code has the rights of whoever started it."
    parts = [head, "", "Code may", *(f"- {each}" for each in may)]
    if may_not:
        parts += ["", "Code may not", *(f"- {each}" for each in may_not)]
    return "\n".join(parts)


def permissions(profile: Profile) -> tuple[list[str], list[str]]:
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
    if has(profile, "memory") or has(profile, "cpus") or has(profile, "processes"):
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
    from kernelbox.walls.profiles import PROFILES  # which explain themselves by this module

    profiles = list(PROFILES.values())
    rows = [["", *PROFILES], ["---"] * (len(profiles) + 1)]
    for field, words in _CELLS.items():
        values = [getattr(profile, field) for profile in profiles]
        rows.append([_HEADS.get(field, field), *(words.get(value, value) for value in values)])
        if field == "network":
            rows.append(["domains", *(_domains(profile) for profile in profiles)])
    for head, field, say in LIMITS:
        if any(has(profile, field) for profile in profiles):
            cells = [say(profile) if has(profile, field) else "–" for profile in profiles]
            rows.append([head, *cells])
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows) + "\n"


def _domains(profile: Profile) -> str:
    if profile.network == "host" or profile.allow == EVERYWHERE:
        return "all"
    return ", ".join(profile.allow) or "–"
