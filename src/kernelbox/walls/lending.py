"""As root: the host's files as a sandbox in gVisor is to see them, what is root's being its own.

The file server of gVisor works with root's rights, and gives files the owner that they have inside.
So it is shown mounts in which the sandbox's user and root have changed places: what is written
there belongs to root, and what root owns can be read, or changed in a copy.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from kernelbox.walls import kernelcalls as calls
from kernelbox.walls.idmaps import IdMap, put
from kernelbox.walls.plan import INSIDE_UID

_ALL = 4294967295


class Loan(NamedTuple):
    """A file or folder of the host, and the place that it is mounted on."""

    source: str
    place: str
    writable: bool


def lend(loans: Sequence[Loan]) -> None:
    """In a view of the file system that nobody else has, and that ends with us and ours."""
    ids = IdMap(INSIDE_UID, others=_others())
    calls.unshare(calls.CLONE_NEWNS)
    calls.mount("none", "/", flags=calls.MS_REC | calls.MS_PRIVATE)
    # All are taken before one is put: a place may be below a source, as our own folder is often
    # below the caller's, and what is mapped once cannot be mapped again.
    taken = [ids.take(loan.source) for loan in loans]
    ids.close()
    for (source, place, writable), tree in zip(loans, taken, strict=True):
        if tree is None and writable:
            words = f"mounting {source} so that it can be written: its file system has no idmaps"
            raise calls.StepFailed(0, words)
        if tree is None:
            calls.bind(source, place)
        elif not put(tree, place):
            raise calls.StepFailed(0, f"mounting {source} for the sandbox")
        calls.restrict(place, read_only=not writable)


def make_place(source: str, place: str) -> None:
    """A folder for a folder, an empty file for a file."""
    if os.path.isdir(source):
        os.makedirs(place, exist_ok=True)
        return
    os.makedirs(os.path.dirname(place), exist_ok=True)
    with open(place, "a"):
        pass


def _others() -> str:
    """Everybody is who they were, but for root, who is where the sandbox's user would be."""
    after = INSIDE_UID + 1
    return f"1 1 {INSIDE_UID - 1}\n{INSIDE_UID} 0 1\n{after} {after} {_ALL - after}\n"
