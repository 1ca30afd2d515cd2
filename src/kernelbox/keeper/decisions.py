"""The keeper's decisions, as functions of plain data."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelbox.config import LONGEST_NAME, nearest
from kernelbox.wire import SITED_FAMILY, WALLED_FAMILY

if TYPE_CHECKING:
    from kernelbox.keeper.registry import Grave, Record
    from kernelbox.keeper.roots import RootKey
    from kernelbox.wire import Frame

_PLACES_BY_NAME = ("HOME", "XDG_CACHE_HOME")
_PLACES_BY_SETTING = ("install", "install_cache", "audit_log")
"""Of those who ask, by which the host's side of a sandbox is told from another's: where packages
are kept for it, and what must be out of its reach."""


def warden_cause(status: int | None) -> str:
    """Why a whole family ended without saying so itself."""
    if status is None:
        return "its processes ended or were killed"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        return f"its warden was killed by {name}"
    return f"its warden ended with exit code {os.waitstatus_to_exitcode(status)}"


def loss_words(grave: Grave) -> str:
    """When and why a kernel ended that nobody had destroyed."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(grave.ended_at))
    return f"ended at {when}: {grave.cause}"


def not_found_words(wanted: str, names: Sequence[str]) -> str:
    """What exists, what may have been meant, and what to do."""
    if names:
        shown = ", ".join(repr(name) for name in sorted(names)[:20])
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        here = f"kernels here: {shown}{more}"
    else:
        here = "there are no kernels here"
    near = nearest(wanted, names) if names and len(wanted) <= LONGEST_NAME else []
    guess = f"did you mean {near[0]!r}? " if near else ""
    here = here[0].upper() + here[1:] if guess else here
    return f"no kernel named {wanted!r}; {guess}{here}. Create it with get_or_create({wanted!r})."


def fresh_start_notes(key: RootKey, roots: Iterable[RootKey]) -> list[str]:
    """Why a kernel could not be forked from the root that most kernels of its Python share."""
    others = [other for other in roots if other.executable == key.executable]
    if not others or others[0] == key:
        return []
    usual = dict(others[0].start_environ)
    mine = dict(key.start_environ)
    names = sorted(name for name in {*usual, *mine} if usual.get(name) != mine.get(name))
    if not names:
        return []
    return [f"started from an interpreter of its own: {', '.join(names)} cannot change in a fork"]


def maybe_idle(
    kernels: Mapping[str, Mapping[str, Any]], limits: Mapping[str, float], now: float
) -> list[str]:
    """Kernels to ask about: unused for their limit as far as we know. The warden decides."""
    return [
        kernel_id
        for kernel_id, record in kernels.items()
        if (limit := limits.get(kernel_id, 0)) > 0 and now - record["last_used_at"] >= limit
    ]


def next_idle_check(
    kernels: Mapping[str, Mapping[str, Any]], limits: Mapping[str, float], now: float
) -> float | None:
    """Seconds until a kernel may have become idle; None if none ever does."""
    due = [
        record["last_used_at"] + limits[kernel_id] - now
        for kernel_id, record in kernels.items()
        if limits.get(kernel_id, 0) > 0
    ]
    return max(0.05, min(due)) if due else None


def idle_period(limits: Mapping[str, float]) -> float:
    """How often to look again: a quarter of the shortest limit, within reason."""
    wanted = [limit for limit in limits.values() if limit > 0]
    return min(max(min(wanted) / 4, 0.1), 60.0) if wanted else 60.0


def become_order(
    frame: Frame, grave: Grave | None, *, now: float, runtime_dir: str, mortal: bool
) -> Frame:
    """What a family is told to become. If the last kernel of that name was lost, this one goes on
    counting, and says so."""
    return {
        **frame,
        "op": "become",
        "settings": settings_in(frame, runtime_dir),
        "created_at": now,
        "walls": digest(frame["profile"]) if frame.get("profile") else None,
        "mortal": mortal,
        "epoch": grave.epoch if grave else 1,
        "lost": loss_words(grave) if grave else None,
    }


def branch_order(
    frame: Frame,
    source: Record,
    *,
    grave: Grave | None,
    name: str,
    kernel_id: str,
    address: str,
    workspace: str,
    runtime_dir: str,
) -> Frame:
    """What a live kernel's family is told to make of it; ``workspace`` is for files of its own,
    ``grave`` the last kernel of that name, if it was lost and the caller may not know."""
    carried = ("session_name", "tags", "method", "reseed", "cwd", "environ", "template")
    return {
        **{field: frame.get(field) for field in carried},
        "op": "branch",
        "source": source["kernel_id"],
        "kernel_id": kernel_id,
        "name": name,
        "address": address,
        "workspace": workspace if frame.get("files") == "copy" else None,
        "epoch": grave.epoch if grave else 1,
        "lost": loss_words(grave) if grave else None,
        "settings": settings_in(frame, runtime_dir),
    }


def settings_in(frame: Frame, runtime_dir: str) -> Frame:
    """The caller's settings; files of the memory store are where they go with the process."""
    return {**frame["settings"], "runtime_dir": runtime_dir}


def has_walls(record: Record, profile: Frame) -> bool:
    """Whether a kernel that is there has the walls that are asked for."""
    return bool(record.get("walls") == digest(profile))


def nothing_can_fail(request: Frame) -> bool:
    """Whether a warm spare is sure to become this kernel, with nothing to say about it: no code of
    the caller's to run first, no ports or files of theirs, no loss to tell of."""
    settings = request["settings"]
    special = settings.get("startup_code") or request.get("connection") or request["lost"]
    return not special and not request.get("connection_file")


def first_record(request: Frame, connection_file: str, notes: Iterable[str]) -> Record:
    """What the warden will say of a kernel that has just become the caller's."""
    now = request["created_at"]
    return {
        "kernel_id": request["kernel_id"],
        "connection_file": connection_file,
        "name": request["name"],
        "created_at": now,
        "last_used_at": now,
        "status": "idle",
        "session_name": request.get("session_name"),
        "attempt_count": 0,
        "tags": request.get("tags") or {},
        "kernel_type": "python3",
        "epoch": request["epoch"],
        "state": "kept",
        "cause": None,
        "parent": None,
        "notes": [*notes, *request["notes"]],
        "address": request["address"],
    }


def can_be_ready(profile: Frame) -> bool:
    """Whether a sandbox is the same for whoever asks for it next: it can be made ahead."""
    own = profile["cwd"] == "none" and profile["home"] == "none" and not profile["mounts"]
    return bool(own and not profile.get("secrets"))


def sandbox_like(request: Frame) -> Frame:
    """What is known of the next sandbox of this kind: its walls, and where the host keeps what
    belongs to it. Nothing else of whoever asked for this one."""
    environ = request["environ"]
    return {
        "profile": request["profile"],
        "settings": request["settings"],
        "environ": {name: environ[name] for name in _PLACES_BY_NAME if name in environ},
        "cwd": "/",
    }


def spare_for(request: Frame) -> str:
    """By which a sandbox is known that can become this one."""
    like = sandbox_like(request)
    places = {name: like["settings"].get(name) for name in _PLACES_BY_SETTING}
    return json.dumps([digest(like["profile"]), places, like["environ"]], sort_keys=True)


def kind_of_family(profile: Frame) -> bytes:
    """What to order of a root for it: gVisor is no namespace of ours, and a line to the network is
    laid before one is made."""
    ahead = profile["driver"] == "process" and profile["network"] != "raw"
    return WALLED_FAMILY if ahead else SITED_FAMILY


def digest(profile: Frame) -> str:
    """By which two profiles are known to be the same, whatever they are called."""
    return json.dumps({**profile, "name": None}, sort_keys=True)
