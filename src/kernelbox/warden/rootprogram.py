"""The program of the root: warm up, then fork a family for each request of the keeper.

All code that a warden will need is imported here, before any fork: it is shared by all of them, and
an upgrade of the files on disk cannot pull the rug from under a running kernel.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence

import zmq  # noqa: F401  (imported here so that every warden shares it)

from kernelbox.inside import imprint, linux, root
from kernelbox.inside.channel import Channel
from kernelbox.inside.workingset import WorkingSet
from kernelbox.warden import rehearsal
from kernelbox.warden.family import Family
from kernelbox.wire import encode

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
    os.makedirs(folder, mode=0o700, exist_ok=True)
    interpreter, failures = root.build(folder, preload)
    stage = tempfile.mkdtemp(dir=folder, prefix="rehearsal-")
    try:
        rehearsal.rehearse(stage)
    except Exception as error:  # noqa: BLE001 - a root that could not rehearse is a root too
        sys.stderr.write(f"kernelbox: the rehearsal failed: {error!r}\n")
    root.freeze()
    gc.enable()
    become_warden = _BecomeWarden(failures)

    def lessons() -> dict[int, Callable[[], None]]:
        with contextlib.suppress(ImportError):  # in the midst of an upgrade
            from kernelbox.warden import walling

            walling.prepare()  # before all that there is by then is frozen
        root.warm_up_further(interpreter)
        imprint.imprint()
        about_wardens, about_interpreters = rehearsal.lesson(stage), interpreter.lesson()

        def learn_of_wardens() -> None:
            become_warden.pages = about_wardens.finish()
            shutil.rmtree(stage, ignore_errors=True)

        def learn_of_interpreters() -> None:
            interpreter.pages = about_interpreters.finish()

        return {
            about_wardens.reader: learn_of_wardens,
            about_interpreters.reader: learn_of_interpreters,
        }

    try:
        control.sendall(encode({"op": "warm"}))
        root.serve(control, interpreter, become_warden, lessons)
    except ConnectionError:
        os._exit(0)  # the keeper is gone, and with it everyone we could work for
