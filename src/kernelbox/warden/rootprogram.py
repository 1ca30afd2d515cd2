"""The program of the root: warm up, then fork a family for each request of the keeper.

All code that a warden will need is imported here, before any fork: it is shared by all of them, and
an upgrade of the files on disk cannot pull the rug from under a running kernel.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import socket
import sys
from collections.abc import Sequence

from kernelbox.inside import linux, root
from kernelbox.inside.channel import Channel
from kernelbox.inside.workingset import WorkingSet
from kernelbox.warden.family import Family
from kernelbox.warden.lanes import jupyter
from kernelbox.warden.settling import Settling

_COLLECTION = (1000, 3, 3)
"""A warden has few objects of its own (those of the root are frozen), so that looking through all
of them is cheap; the default would let ten megabytes of rings gather first."""


class _BecomeWarden:
    """Turns a fork of the root into the warden of a family."""

    def __init__(self, notes: Sequence[str]) -> None:
        self.pages = WorkingSet()
        self._notes = notes

    def __call__(
        self, request: socket.socket, control: socket.socket, stub_pid: int, first: Channel
    ) -> None:
        gc.set_threshold(*_COLLECTION)
        family = Family(request, control, stub_pid, first, notes=self._notes)
        family.spare_time = self.pages.claim
        family.run()


def main() -> None:
    """With the arguments that ``keeper/rootprocess.py`` gives: a name for people to see, the
    keeper's socket, a folder for IPython, modules to preload."""
    descriptor, folder, *preload = sys.argv[2:]
    control = socket.socket(fileno=int(descriptor))
    linux.set_name("kb-root")
    faulthandler.enable()  # a root that is stuck is aborted by the keeper
    linux.die_with_parent()  # a module that hangs while it is preloaded must not keep us for ever
    try:
        os.mkdir(folder, mode=0o700)
    except FileExistsError:
        pass  # of a root before us
    except FileNotFoundError:
        os._exit(0)  # the keeper has left, and its folder with it
    root.tell(control, {"op": "imported"})
    interpreter, failures = root.build(folder, preload)
    jupyter.furnish()  # later, the first warden would have to import it for itself alone: 3 MB
    root.freeze()
    gc.enable()
    become_warden = _BecomeWarden(failures)

    def learn_of_wardens(pages: WorkingSet) -> None:
        become_warden.pages = pages

    def learn_of_interpreters(pages: WorkingSet) -> None:
        interpreter.pages = pages

    settling = Settling(
        interpreter, folder, on_wardens=learn_of_wardens, on_interpreters=learn_of_interpreters
    )
    try:
        root.serve(control, interpreter, become_warden, settling)
    except ConnectionError:
        os._exit(0)  # the keeper is gone, and with it everyone we could work for
