"""Kernels that are not ours: any other installed kernelspec, in a warden of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from typing import TYPE_CHECKING

from kernelbox.errors import StartupFailed
from kernelbox.places import importable
from kernelbox.wire import Frame

if TYPE_CHECKING:
    from kernelbox.keeper.families import Families, FamilyLink


def start_foreign(request: Frame, families: Families, *, rundir: str) -> FamilyLink:
    """Start the warden of a foreign kernel; it takes the same requests as one of ours.

    Its environment is the caller's, because that is where kernelspecs are looked for.
    """
    mine, theirs = socket.socketpair()
    try:
        with open(os.path.join(rundir, "foreign.log"), "ab", opener=_private) as log:
            process = subprocess.Popen(
                [
                    str(request["executable"]),
                    "-P",
                    "-m",
                    "kernelbox.warden.foreign",
                    str(theirs.fileno()),
                    rundir,  # tells whose it is
                    str(time.monotonic()),  # the caller's patience counts from here
                ],
                cwd="/",
                env=importable({**os.environ, **request["environ"]}, request["package_parent"]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
    except (OSError, ValueError) as error:
        mine.close()
        raise StartupFailed(f"{request['executable']!r} cannot be started: {error}") from None
    finally:
        theirs.close()
    process.returncode = 0  # the keeper reaps all its children itself
    link = families.connect(mine)
    link.pid = process.pid
    return link


def _private(path: str, flags: int) -> int:
    """An opener for files that are nobody else's business."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
