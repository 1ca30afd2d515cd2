"""What keeps a kernel away from the template that it was made of, and from everybody else's."""

from __future__ import annotations

import os

from kernelbox.inside import hiding, landlock
from kernelbox.places import HIDDEN
from kernelbox.wire import Frame


def obstacle() -> str:
    """Why no scope can be entered on this machine; empty if one can."""
    if not landlock.can_scope():
        return f"this Linux has no Landlock that scopes signals (ABI {landlock.abi()}, wanted 6)"
    if words := hiding.obstacle():
        return f"our folders cannot be hidden from it ({words}); it takes root or user namespaces"
    return ""


def around(runtime_dir: str, address: str) -> Frame:
    """The scope of a kernel that has its files and its socket there."""
    sockets = os.path.dirname(os.path.dirname(address))  # of every home of this user
    return {"hidden": [runtime_dir, sockets]}


def enter(scope: Frame) -> None:
    """From now on, and for all we start: no signal, no look and no connection leads out."""
    hiding.hide(scope["hidden"])
    for folder in scope["hidden"]:
        open(os.path.join(folder, HIDDEN), "w").close()
    landlock.enter_scope()
