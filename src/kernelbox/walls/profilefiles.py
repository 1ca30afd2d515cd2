"""Profiles that somebody wrote down: ``kernelbox.toml``, the same as JSON or as a mapping, or in
the words of Anthropic's sandbox-runtime.

Whatever is written down is enforced or refused in words; nothing is passed over.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from kernelbox.errors import BadInput
from kernelbox.walls import sandboxruntime
from kernelbox.walls.bindings import secrets_from
from kernelbox.walls.mounts import Mount, mounts_from
from kernelbox.walls.profiles import CHOICES, COUNTS, PROFILES, SIZES, Profile, named
from kernelbox.walls.wording import did_you_mean, shown

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
    if sandboxruntime.recognises(values):
        return sandboxruntime.profile_of(values)
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
