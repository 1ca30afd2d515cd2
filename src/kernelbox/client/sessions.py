"""Saving a session to a file, and making a kernel of one."""

from __future__ import annotations

import os

from kernelbox.client import creating, kernels, sessionfile
from kernelbox.client.calls import Calls
from kernelbox.client.effects import Call, Work
from kernelbox.client.meaning import KernelLike, ProfileLike
from kernelbox.config.checks import check_flag, check_name
from kernelbox.errors import BadInput, in_short
from kernelbox.result import KernelRecord, SaveReport


def save(calls: Calls, kernel: KernelLike, path: str) -> Call[SaveReport]:
    whole = os.path.abspath(os.path.expanduser(_check_path(path)))
    folder = _key_folder(calls)
    key = yield Work(lambda: sessionfile.key_of(folder))
    draft = yield Work(lambda: sessionfile.begin(whole))
    try:
        request = {"op": "save", "path": draft, "start": sessionfile.START}
        facts = yield from calls.kernel(kernel, request, patience=None)
        report: SaveReport = yield Work(lambda: sessionfile.finish(draft, whole, facts, key))
        return report
    finally:
        sessionfile.discard(draft)


def load(
    calls: Calls,
    name: str,
    path: str,
    *,
    trust: bool,
    profile: ProfileLike | None = None,
    cwd: str | None = None,
) -> Call[KernelRecord]:
    """``profile`` and ``cwd`` are those that the file names, unless they are given."""
    check_name(name)
    check_flag("trust", trust)
    whole = os.path.abspath(os.path.expanduser(_check_path(path)))
    folder, runtime = _key_folder(calls), calls.home.runtime_dir
    key = yield Work(lambda: sessionfile.key_of(folder))
    opened: sessionfile.Opened = yield Work(
        lambda: sessionfile.open_checked(whole, runtime, key, trust=trust)
    )
    try:
        return (yield from _load(calls, name, opened, profile=profile, cwd=cwd))
    finally:
        sessionfile.discard(opened.payload)


def _load(
    calls: Calls,
    name: str,
    opened: sessionfile.Opened,
    *,
    profile: ProfileLike | None,
    cwd: str | None,
) -> Call[KernelRecord]:
    folder = opened.manifest["cwd"]
    if cwd is None and isinstance(folder, str) and os.path.isdir(folder):
        cwd = folder
    # What is in it runs as it is read: behind the walls that it was saved behind.
    profile = profile or opened.manifest.get("profile") or "open"
    record = yield from creating.get_or_create(calls, name, cwd=cwd, profile=profile, fresh=True)
    request = {
        "op": "load",
        "path": opened.payload,
        "pieces": opened.pieces,
        "manifest": opened.size - opened.pieces,
        "failures": opened.manifest["failures"],
    }
    try:
        reply = yield from calls.kernel(record, request, patience=None)
    except GeneratorExit:
        raise  # nobody is there any more to do as we say
    except BaseException:
        yield from kernels.destroy(calls, record)
        raise
    return calls.remember(reply["record"])


def _key_folder(calls: Calls) -> str:
    return os.path.dirname(calls.settings.registry_path)


def _check_path(path: object) -> str:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise BadInput(f"path is the path of a file, not {in_short(path)}")
    return text
