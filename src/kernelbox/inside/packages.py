"""Packages that the host has installed for this kernel: importable at once, here and in whatever
the session starts. And how code asks for them."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import threading

from kernelbox.inside.shell import outbox

_numbers = itertools.count(1)
_taken: str | None = None


class InstallFailed(Exception):
    """The host did not install it; the words say why."""

    def _render_traceback_(self) -> list[str]:
        """For IPython: where in our code it was raised is nothing to who reads it."""
        return [f"{type(self).__name__}: {self}"]


def take(folder: str) -> None:
    """Have this folder on the path, in place of the one before."""
    global _taken
    before, _taken = _taken, folder
    sys.path[:] = [entry for entry in sys.path if entry not in (before, folder)]
    sys.path.insert(_place(), folder)
    _lead("PYTHONPATH", folder, before)
    binaries = before and os.path.join(before, "bin")
    _lead("PATH", os.path.join(folder, "bin"), binaries)
    importlib.invalidate_caches()


def _place() -> int:
    """Before the packages of the environment, and after Python's own modules, which no package may
    stand in for."""
    for index, entry in enumerate(sys.path):
        if os.path.basename(str(entry).rstrip("/")) in ("site-packages", "dist-packages"):
            return index
    return len(sys.path)


def _lead(variable: str, folder: str, before: str | None) -> None:
    entries = os.environ.get(variable, "").split(os.pathsep)
    kept = [entry for entry in entries if entry and entry not in (before, folder)]
    os.environ[variable] = os.pathsep.join([folder, *kept])


def ask(requirements: list[str], *, upgrade: bool) -> str:
    """Have the host install something, and wait for it; what it says of it."""
    lifeline = outbox.lifeline
    if lifeline is None or not lifeline.open or not lifeline.in_cell:
        raise InstallFailed("packages can be installed by a running cell only, not by a copy of it")
    if threading.current_thread() is not threading.main_thread():
        raise InstallFailed("packages can be installed by the cell itself only, not by a thread")
    sys.stdout.flush()
    number = next(_numbers)
    lifeline.send({"op": "install", "id": number, "requirements": requirements, "upgrade": upgrade})
    while True:
        lifeline.wait()
        frame, _ = lifeline.receive()
        if frame.get("op") in ("installed", "packages") and frame.get("folder"):
            take(str(frame["folder"]))
        if frame.get("op") == "installed" and frame.get("id") == number:
            words = str(frame.get("words"))
            if not frame.get("ok"):
                raise InstallFailed(words)
            return words
