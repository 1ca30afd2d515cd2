"""Making a kernel, or finding the one of that name: what is asked for is checked, then sent."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping
from typing import Any

from kernelbox.client.calls import START_MARGIN, Calls
from kernelbox.client.effects import Call
from kernelbox.client.meaning import KernelLike, ProfileLike, wanted_kernel
from kernelbox.config.checks import check_name
from kernelbox.errors import BadInput, in_short
from kernelbox.places import package_parent
from kernelbox.result import KernelRecord
from kernelbox.wire import Frame, build_id


def get_or_create(
    calls: Calls,
    name: str,
    *,
    session_name: str | None = None,
    tags: Any = None,
    cwd: str | None = None,
    environ: Mapping[str, str] | None = None,
    connection: Mapping[str, Any] | None = None,
    connection_file: str | None = None,
    template: KernelLike | None = None,
    profile: ProfileLike | None = None,
    fresh: bool = False,
) -> Call[KernelRecord]:
    """``fresh``: not if there is one of that name."""
    check_name(name)
    walls = _walls(calls, profile, template)
    # Of a template's copy, only what the caller gives is other than the template's.
    own: Frame = {"cwd": None, "environ": None}
    if cwd not in (None, ""):
        own["cwd"] = _check_folder(cwd)
    if environ is not None:
        own["environ"] = _check_environ(environ)
    given = _own_environ() if own["environ"] is None else own["environ"]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reply = yield from calls.keeper(
        {
            "op": "get_or_create",
            "name": name,
            "session_name": session_name,
            "tags": _check_tags(tags),
            "cwd": own["cwd"] or _working_directory(),
            "environ": given,
            "executable": sys.executable,
            "package_parent": package_parent(),
            "build": build_id(),
            "open_files": [soft, hard],
            "connection": dict(connection) if connection else None,
            "connection_file": connection_file,
            "template": None if template is None else wanted_kernel(template),
            "given": own,
            "profile": walls,
            # Behind walls, only what somebody has named comes along for sure.
            "given_environ": _differences(given) if walls else None,
            "secrets": _secrets(walls, given) if walls else None,
            "fresh": fresh,
        },
        patience=calls.settings.start_timeout + START_MARGIN,
    )
    return calls.remember(reply["record"])


def _walls(calls: Calls, profile: ProfileLike | None, template: KernelLike | None) -> Frame | None:
    """The profile as it travels; None for one without walls, which need no module of theirs."""
    settings = calls.settings
    wanted = settings.profile if profile is None else profile
    if wanted in (None, "", "open"):
        return None
    from kernelbox.walls.profiles import resolve

    found = resolve(wanted)
    if not found.walled:
        return None
    if template is not None:
        raise BadInput("a template's copy has the walls of its template; leave profile out")
    if settings.kernel_type != "python3":
        raise BadInput(
            f"a kernel of type {settings.kernel_type!r} cannot be walled; only python3 can"
        )
    return found.to_wire()


def _own_environ() -> dict[str, str]:
    """``dict(os.environ)``, which takes six calls of Python for each variable, by one."""
    raw = getattr(os.environ, "_data", None)
    if not isinstance(raw, dict) or os.name != "posix":
        return dict(os.environ)
    encoding = sys.getfilesystemencoding()
    return {
        name.decode(encoding, "surrogateescape"): value.decode(encoding, "surrogateescape")
        for name, value in raw.copy().items()
    }


def _check_environ(environ: Mapping[Any, Any]) -> dict[str, str]:
    """Variables that a process can have; others would only fail in the new kernel."""
    for name, value in environ.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadInput(
                f"environ maps strings to strings, not {in_short(name)} to {in_short(value)}"
            )
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise BadInput(
                "no process can have this variable, which environ has: "
                f"{in_short(name)}={in_short(value)}"
            )
    return dict(environ)


def _differences(environ: Mapping[str, str]) -> dict[str, str]:
    """What a caller has added to the environment of this process, or changed."""
    return {name: value for name, value in environ.items() if os.environ.get(name) != value}


def _secrets(walls: Frame, environ: Mapping[str, str]) -> dict[str, str] | None:
    """The values of what a profile binds to domains. They are found here, by the caller's rights,
    and go to the warden, which hands them on; nobody stores them."""
    if not walls["secrets"]:
        return None
    from kernelbox.walls.bindings import secrets_from, values_of

    return values_of(secrets_from(walls["secrets"]), environ)


def _check_tags(tags: object) -> dict[str, Any] | list[str]:
    if tags is None:
        return {}
    if isinstance(tags, Mapping) and all(isinstance(key, str) for key in tags):
        return dict(tags)
    if isinstance(tags, list) and all(isinstance(tag, str) for tag in tags):
        return tags
    raise BadInput(f"tags map strings to values or are a list of strings, not {in_short(tags)}")


def _check_folder(cwd: object) -> str:
    """A folder that the caller chose: a kernel that starts elsewhere would be a bad surprise."""
    path = os.fspath(cwd) if isinstance(cwd, str | os.PathLike) else None
    if not isinstance(path, str) or "\0" in path:
        raise BadInput(f"cwd is the path of a folder, not {in_short(cwd)}")
    path = os.path.abspath(path)
    try:
        os.stat(os.path.join(path, "."))  # as entering it would
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadInput(
            f"cwd={in_short(path)} is not a folder that a kernel can start in: {why}. "
            "Make it first, or give another."
        ) from None
    return path


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"
