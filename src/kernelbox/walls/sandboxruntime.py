"""The settings of Anthropic's sandbox-runtime as a profile: what they say is enforced or refused
in words; nothing is passed over."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from kernelbox.errors import BadInput
from kernelbox.walls import trees
from kernelbox.walls.mounts import Mount
from kernelbox.walls.patterns import EVERYWHERE, check_domain
from kernelbox.walls.profiles import PROFILES, Profile
from kernelbox.walls.wording import did_you_mean, shown

# Keys that we accept whatever they say, and why nothing is lost by that.
SETTLED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "network.strictAllowlist": "nobody is asked: what is not allowed is denied",
        "network.allowLocalBinding": "the loopback is the sandbox's own, nobody else hears it",
        "network.deniedDomainReasons": "words for denials, not a wall",
        "network.allowMachLookup": "of macOS",
        "ignoreViolations": "about what is reported, not what is denied",
        "enableWeakerNestedSandbox": "walls are never weakened",
        "enableWeakerNetworkIsolation": "of macOS",
        "allowAppleEvents": "of macOS",
        "allowPty": "of macOS",
        "windows": "of Windows",
        "ripgrep": "a program that we do not use",
        "seccomp": "a program that we do not use",
        "bwrapPath": "a program that we do not use",
        "socatPath": "a program that we do not use",
        "javaAgentJarPath": "a program that we do not use",
    }
)

# Keys that we cannot enforce, unless they say false, null or nothing at all.
REFUSED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "network.allowUnixSockets": "the host's Unix sockets stay out of reach of a sandbox",
        "network.allowAllUnixSockets": "the host's Unix sockets stay out of reach of a sandbox",
        "network.httpProxyPort": "traffic goes through KernelBox's own proxy",
        "network.socksProxyPort": "traffic goes through KernelBox's own proxy",
        "network.mitmProxy": "traffic goes through KernelBox's own proxy",
        "network.parentProxy": "KernelBox's proxy connects directly",
        "network.tlsTerminate": "KernelBox's proxy does not open what is encrypted",
        "network.filterRequest": "a function cannot be written in a file",
        "filesystem.disabled": "that would be no walls; for this, use the profile 'open'",
        "filesystem.allowGitConfig": "a folder is writable as a whole or not at all, so .git in it "
        "is like the rest",
        "mandatoryDenySearchDepth": "a folder is writable as a whole or not at all, so no files in "
        "it are searched for and protected",
        "credentials.allowPlaintextInject": "credentials are not put in place of placeholders here",
        "credentials.awsPairs": "requests are not signed anew",
        "credentials.sigv4": "requests are not signed anew",
        "git": "git is not configured by a profile; give GIT_CONFIG_… variables to the kernel",
    }
)
_ENFORCED = (
    "network.allowedDomains",
    "network.deniedDomains",
    "filesystem.denyRead",
    "filesystem.allowRead",
    "filesystem.allowWrite",
    "filesystem.denyWrite",
    "credentials.files",
    "credentials.envVars",
)
_KNOWN = (*_ENFORCED, *SETTLED, *REFUSED)
_TABLES = ("network", "filesystem", "credentials")
_ITS_NETWORK = frozenset(key.partition(".")[2] for key in _KNOWN if key.startswith("network."))
_ITS_OWN = frozenset(key.partition(".")[0] for key in _KNOWN) - {"network"}

# The sandbox has these of its own, and they can be written to.
_OWN_FILES = (
    "/tmp", "/dev/null", "/dev/zero", "/dev/tty", "/dev/stdout", "/dev/stderr", "/dev/shm",
)  # fmt: skip


def recognises(values: Mapping[str, Any]) -> bool:
    """Whether these are settings of sandbox-runtime, by the keys that only it has."""
    if "security" in values or "resources" in values:
        return False
    network = values.get("network")
    if isinstance(network, Mapping) and not _ITS_NETWORK.isdisjoint(network):
        return True
    return not _ITS_OWN.isdisjoint(values)


def profile_of(values: Mapping[str, Any]) -> Profile:
    """``restrictive``, opened as far as such settings say; what we cannot enforce is refused.

    As there, relative paths begin where we are, now: a kernel that is started in another folder
    must not see that one instead, for which nothing here was checked.
    """
    said = _settings(values)
    allow = _domains(said)
    writable = _places(said, "filesystem.allowWrite")
    readable = _places(said, "filesystem.allowRead")
    mounts = _mounts_of(writable, readable)
    _check_variables(said)
    for path in (*_paths(said, "filesystem.denyRead"), *_hidden_files(said)):
        _check_unseen(path, mounts=mounts, readable=readable)
    for path in _paths(said, "filesystem.denyWrite"):
        _check_unwritten(path, mounts=mounts)
    return PROFILES["restrictive"].but(
        name="sandbox-runtime", network="on" if allow else "off", allow=allow, mounts=mounts
    )


def _settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Its keys with dots, each known, none that cannot be enforced."""
    said: dict[str, Any] = {}
    for key, value in values.items():
        if key in _TABLES:
            if not isinstance(value, Mapping):
                raise BadInput(f"{key} of sandbox-runtime is a table, not {shown(value)}")
            said |= {f"{key}.{inner}": content for inner, content in value.items()}
        else:
            said[key] = value
    for key, value in said.items():
        if key not in _KNOWN:
            raise BadInput(
                f"{shown(key)} is no setting of sandbox-runtime that KernelBox knows, and a wall "
                f"must not be dropped in silence{did_you_mean(key, _KNOWN)}",
                field=key,
            )
        # `not value` would let 0 and "" through, which are neither of what is meant here.
        if key in REFUSED and value is not None and value is not False and value not in ([], {}):
            raise BadInput(f"{key} cannot be enforced: {REFUSED[key]}. Leave it out", field=key)
    return said


def _texts(said: Mapping[str, Any], key: str) -> list[str]:
    value = said.get(key)
    if value is None:
        return []
    if not isinstance(value, list | tuple) or not all(isinstance(e, str) and e for e in value):
        raise BadInput(f"{key} takes a list of strings, not {shown(value)}", field=key)
    return list(value)


def _paths(said: Mapping[str, Any], key: str) -> list[str]:
    return [path.removesuffix("/**") or "/" for path in _texts(said, key)]


def _domains(said: Mapping[str, Any]) -> tuple[str, ...]:
    """What is allowed less what is denied, where that can be said by a list of what is allowed."""
    allowed = [domain.lower() for domain in _texts(said, "network.allowedDomains")]
    for domain in allowed:
        check_domain(domain)
    for denied in (domain.lower() for domain in _texts(said, "network.deniedDomains")):
        allowed = [domain for domain in allowed if not _covers(denied, domain)]
        for domain in allowed:
            if _overlap(denied, domain):
                raise BadInput(
                    f"network.deniedDomains cannot be enforced: {shown(denied)} is part of "
                    f"{shown(domain)}, which is allowed. Allow the domains that are meant one by "
                    f"one",
                    field="network.deniedDomains",
                )
    if "*" in allowed:  # the others say nothing more, except for ports
        return (*EVERYWHERE, *(domain for domain in allowed if ":" in domain))
    return tuple(allowed)


def _split(pattern: str) -> tuple[str, str]:
    host, _, port = pattern.partition(":")
    return host, port


def _covers(wide: str, narrow: str) -> bool:
    """All that ``narrow`` matches, ``wide`` matches too."""
    (host, port), (other, other_port) = _split(wide), _split(narrow)
    if port not in ("", other_port):
        return False
    return host in ("*", other) or (host.startswith("*.") and other.endswith(host[1:]))


def _overlap(one: str, other: str) -> bool:
    """There may be something that both match. In doubt, yes: is example.com in *.example.com?"""
    (a, port), (b, other_port) = _split(one), _split(other)
    if port and other_port and port != other_port:
        return False
    if "*" in (a, b):
        return True
    a_bare, b_bare = a.removeprefix("*."), b.removeprefix("*.")
    return (
        a_bare == b_bare
        or (a != a_bare and b_bare.endswith(f".{a_bare}"))
        or (b != b_bare and a_bare.endswith(f".{b_bare}"))
    )


def _places(said: Mapping[str, Any], key: str) -> list[str]:
    """Paths that are to be shown, absolute."""
    paths = _paths(said, key)
    for path in paths:
        if _WILDCARDS.search(path):
            raise BadInput(
                f"{key} cannot be enforced for {shown(path)}: files and folders are shown by name, "
                f"not by pattern. Name the folder",
                field=key,
            )
    return [_absolute(path) for path in paths]


def _mounts_of(writable: Iterable[str], readable: Iterable[str]) -> tuple[Mount, ...]:
    made = [Mount(place, place, "rw") for place in writable if place not in _OWN_FILES]
    for place in readable:
        if not _inside(place, [*_shown(), *(mount.target for mount in made)]):
            made.append(Mount(place, place, "ro"))
    return tuple(dict.fromkeys(made))


def _hidden_files(said: Mapping[str, Any]) -> list[str]:
    """Files whose reading is denied as credentials."""
    return [entry["path"] for entry in _entries(said, "credentials.files", "path")]


def _check_variables(said: Mapping[str, Any]) -> None:
    # That they are not passed is so anyway: the environment is minimal.
    _entries(said, "credentials.envVars", "name")


def _entries(said: Mapping[str, Any], key: str, of: str) -> list[Mapping[str, Any]]:
    entries = said.get(key)
    entries = [] if entries is None else entries if isinstance(entries, list) else [entries]
    for entry in entries:
        if not isinstance(entry, Mapping) or not isinstance(entry.get(of), str):
            raise BadInput(f"{key} takes a list of tables with {of} and mode", field=key)
        if entry.get("mode") != "deny":
            raise BadInput(
                f"{key} cannot be enforced for {shown(entry[of])}: only the mode 'deny' can, not "
                f"{shown(entry.get('mode'))}",
                field=key,
            )
    return entries


def _check_unseen(path: str, *, mounts: Sequence[Mount], readable: Sequence[str]) -> None:
    """Reading ``path`` is denied because a sandbox does not see it; else refuse.

    A sandbox sees the system's programs and libraries, the interpreter with its packages, and what
    is mounted; nothing else of the host.
    """
    denied = _absolute(_before_wildcards(path))
    mounted = _names_of(mounts)
    # What may be read may be read, says sandbox-runtime, in a folder that may not; but a pattern
    # is about what is in folders.
    spared = [] if _WILDCARDS.search(path) else readable
    for place in {denied, os.path.realpath(denied)}:
        if _inside(place, trees.PRIVATE):
            continue
        reason = ""
        if within := [tree for tree in (*_shown(), *mounted) if _inside(place, [tree])]:
            reason = f"it is in {within[0]}, which the sandbox sees"
        elif system := [tree for tree in _system() if _inside(tree, [place])]:
            reason = f"{system[0]} is in it, which every program needs"
        elif seen := [m for m in mounted if _inside(m, [place]) and not _inside(m, spared)]:
            reason = f"{seen[0]} is in it, which the sandbox sees; name it in allowRead too"
            if spared is not readable:
                reason = f"{seen[0]} is in its reach, which the sandbox sees as a whole"
        if reason:
            raise BadInput(
                f"filesystem.denyRead cannot be enforced for {shown(path)}: {reason}",
                field="filesystem.denyRead",
            )


def _check_unwritten(path: str, *, mounts: Sequence[Mount]) -> None:
    """Writing to ``path`` is denied because nothing there can be written to; else refuse."""
    denied = _absolute(_before_wildcards(path))
    for place in {denied, os.path.realpath(denied)}:
        for folder in _names_of(mount for mount in mounts if mount.mode == "rw"):
            if _inside(place, [folder]) or _inside(folder, [place]):
                raise BadInput(
                    f"filesystem.denyWrite cannot be enforced for {shown(path)}: {folder} is in "
                    f"allowWrite, and a folder is writable as a whole or not at all. Name the "
                    f"folders in it that are to be written to",
                    field="filesystem.denyWrite",
                )


def _names_of(mounts: Iterable[Mount]) -> list[str]:
    """Where mounts are seen, and where they really are: a link is another name for a folder."""
    names = [(mount.target, os.path.realpath(mount.source)) for mount in mounts]
    return list(dict.fromkeys(name for pair in names for name in pair))


_WILDCARDS = re.compile(r"[*?\[]")


def _before_wildcards(path: str) -> str:
    """The folder that all matches of a pattern are in; a path without wildcards is its own."""
    found = _WILDCARDS.search(path)
    if found is None:
        return path
    folder = path[: found.start()].rpartition("/")[0]
    return folder or ("/" if path.startswith("/") else ".")


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _system() -> list[str]:
    return [*trees.SYSTEM, *(f"/etc/{name}" for name in trees.SETTINGS)]


def _shown() -> list[str]:
    """What every sandbox sees of the host."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)
    interpreter, _ = trees.of_interpreter(prefixes, sys.path, package)
    return [*_system(), *interpreter]


def _inside(path: str, folders: Iterable[str]) -> bool:
    return any(path == each or path.startswith(f"{each.rstrip('/')}/") for each in folders)
