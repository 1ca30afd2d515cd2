"""Profiles that somebody wrote down: ``kernelbox.toml``, the same as JSON or as a mapping, and the
settings file of Anthropic's sandbox-runtime.

Whatever is written down is enforced or refused in words; nothing is passed over.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from kernelbox.errors import BadInput
from kernelbox.walls import trees
from kernelbox.walls.bindings import secrets_from
from kernelbox.walls.profiles import (
    CHOICES,
    COUNTS,
    EVERYWHERE,
    PROFILES,
    SIZES,
    Mount,
    Profile,
    check_domain,
    did_you_mean,
    mounts_from,
    named,
    shown,
)

BASE: Final = "moderate"
"""What a file that names no profile begins with."""

# Section, key in it, field of a profile.
_SECTIONS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "security": {
            "profile": "profile",
            **{key: key for key in CHOICES if key != "network"},
        },
        "resources": {key: key for key in (*SIZES, "cpus", *COUNTS)},
        "network": {"mode": "network", "allow": "allow"},
    }
)
_MOUNTS, _SECRETS = "mounts", "secrets"
_FLAT: Final = (
    "name",
    *(field for keys in _SECTIONS.values() for field in keys.values()),
    _MOUNTS,
    _SECRETS,
)
_NO_LIMIT = "none"


def read(path: str | os.PathLike[str]) -> Profile:
    """The profile in a file: TOML, or JSON if its name or its first character says so."""
    place = os.path.abspath(os.path.expanduser(os.fspath(path)))
    try:
        with open(place, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadInput(
            f"the profile {shown(os.fspath(path))} cannot be read: {cause}. A profile is one of "
            f"{', '.join(PROFILES)}, or the path of a .toml or .json file",
            field="profile",
        ) from None
    try:
        return from_mapping(_parse(text, place), folder=os.path.dirname(place))
    except BadInput as error:
        raise BadInput(f"{place}: {error.message}", **error.details) from None


def _parse(text: str, place: str) -> Mapping[str, Any]:
    # Only who has a file waits for the parsers.
    if place.endswith(".json") or text.lstrip().startswith("{"):
        import json

        try:
            values = json.loads(text)
        except ValueError as error:
            raise BadInput(f"this is not JSON: {error}", field="profile") from None
    else:
        import tomllib

        try:
            values = tomllib.loads(text)
        except ValueError as error:
            raise BadInput(f"this is not TOML: {error}", field="profile") from None
    if not isinstance(values, dict):
        raise BadInput(
            f"a profile is a table of sections ({', '.join(_ALL_SECTIONS)}), not {shown(values)}",
            field="profile",
        )
    return values


def from_mapping(values: Mapping[str, Any], *, folder: str | None = None) -> Profile:
    """The profile in a mapping: in sections, as it travels, or in sandbox-runtime's words.

    Relative paths in our own forms begin at ``folder``, or where we are.
    """
    for key in values:
        if not isinstance(key, str):
            raise BadInput(f"a key of a profile is a string, not {shown(key)}", field="profile")
    if is_sandbox_runtime(values):
        return from_sandbox_runtime(values)
    fields = dict(values) if _is_flat(values) else _out_of_sections(values)
    for field in (*SIZES, *COUNTS, "cpus"):
        if field in fields:
            fields[field] = _limit(field, fields[field])
    if _MOUNTS in fields:
        fields[_MOUNTS] = _mounts(fields[_MOUNTS], folder or os.getcwd())
    if _SECRETS in fields:
        fields[_SECRETS] = secrets_from(fields[_SECRETS], folder=folder or os.getcwd())
    if _is_flat(values) and "profile" not in fields:
        return Profile.from_wire(fields)
    return named(fields.pop("profile", BASE)).but(**fields)


def _is_flat(values: Mapping[str, Any]) -> bool:
    if any(section in values for section in ("security", "resources")):
        return False
    if isinstance(values.get("network"), Mapping):
        return False
    return any(key in _FLAT for key in values if key not in (_MOUNTS, _SECRETS))


def _out_of_sections(values: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for section, content in values.items():
        if section in (_MOUNTS, _SECRETS):
            fields[section] = content
            continue
        if section not in _SECTIONS:
            home = _section_of(section)
            hint = f"; it belongs into [{home}]" if home else did_you_mean(section, _ALL_SECTIONS)
            raise BadInput(
                f"a profile has no section {shown(section)}; it has {', '.join(_ALL_SECTIONS)}"
                f"{hint}",
                field=section,
            )
        if not isinstance(content, Mapping):
            raise BadInput(f"[{section}] is a section, not {shown(content)}", field=section)
        keys = _SECTIONS[section]
        for key, value in content.items():
            if key not in keys:
                home = _section_of(key)
                hint = f"; it belongs into [{home}]" if home else did_you_mean(key, keys)
                raise BadInput(
                    f"[{section}] has no key {shown(key)}; it has {', '.join(keys)}{hint}",
                    field=f"{section}.{key}",
                )
            fields[keys[key]] = value
    return fields


_ALL_SECTIONS = (*_SECTIONS, _MOUNTS, _SECRETS)


def _section_of(key: object) -> str:
    return next((section for section, keys in _SECTIONS.items() if key in keys), "")


def _limit(field: str, value: object) -> object:
    """TOML has no null, so no limit is a word; sizes may have units."""
    if value == _NO_LIMIT:
        return None
    return size(value, field=field) if field in SIZES and isinstance(value, str) else value


_SIZE = re.compile(r"\s*([0-9]{1,15})(?:\.([0-9]{1,9}))?\s*([a-z]*)\s*", re.IGNORECASE)
_FACTORS = {
    "": 1, "b": 1,
    "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4,
    "kib": 1024, "mib": 1024**2, "gib": 1024**3, "tib": 1024**4,
}  # fmt: skip


def size(text: str, *, field: str = "a size") -> int:
    """``512MB`` is 512,000,000 bytes and ``512MiB`` 536,870,912; ``512M`` could be either."""
    found = _SIZE.fullmatch(text)
    factor = _FACTORS.get(found[3].lower()) if found else None
    if found is None or factor is None:
        raise BadInput(
            f"{field} takes a number of bytes, or a text like '512MB' (millions), '1GiB' (powers "
            f"of 1024) or '{_NO_LIMIT}'; not {shown(text)}",
            field=field,
        )
    behind = found[2] or ""
    whole: int = 10 ** len(behind)
    return int(found[1] + behind) * factor // whole


def _mounts(values: object, folder: str) -> tuple[Mount, ...]:
    return tuple(
        Mount(_place(mount.source, folder), _place(mount.target, folder), mount.mode)
        for mount in mounts_from(values)
    )


def _place(path: Any, folder: str) -> Any:
    if not isinstance(path, str) or not path:
        return path  # Mount.check() has the words
    return os.path.normpath(os.path.join(folder, os.path.expanduser(path)))


# --- the settings of sandbox-runtime -------------------------------------------------------------

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


def is_sandbox_runtime(values: Mapping[str, Any]) -> bool:
    """Whether these are settings of sandbox-runtime, by the keys that only it has."""
    if "security" in values or "resources" in values:
        return False
    network = values.get("network")
    if isinstance(network, Mapping) and not _ITS_NETWORK.isdisjoint(network):
        return True
    return not _ITS_OWN.isdisjoint(values)


def from_sandbox_runtime(values: Mapping[str, Any]) -> Profile:
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
