"""The stub of a family that is locked in where user namespaces are closed: it stays outside, like
that of a family without walls, and each member locks itself in before it runs anybody's code."""

from __future__ import annotations

import functools
import os
import socket
from typing import TYPE_CHECKING, NoReturn

from kernelbox.inside import linux, stub, walled
from kernelbox.inside.channel import Channel
from kernelbox.walls import locks as locking, ownfolder
from kernelbox.wire import Frame, encode

if TYPE_CHECKING:
    from kernelbox.inside.interpreter import Interpreter


@functools.cache
def prepare() -> None:
    """In the root, for all that are forked from it."""
    ownfolder.sweep()
    if not locking.obstacle():
        locking.program()


class _Locked:
    """One set of locks, around each member."""

    def __init__(self, locks: locking.Locks, order: Frame) -> None:
        self._locks = locks
        self._order = order
        self._pins = locking.pin()

    def enter(self) -> None:
        for pin in self._pins:
            os.close(pin)
        # Each by itself: the stub, which has to end them, is not to be starved by them.
        walled.join_group(self._order)
        locking.enter(self._locks)

    def leave(self) -> None:
        """The warden does that, too; but it may have been killed."""
        ownfolder.remove(self._locks.folder)


def main(
    control: socket.socket, interpreter: Interpreter, first: Channel, order: Frame
) -> NoReturn:
    """Be the stub of a locked family until the control socket closes."""
    try:
        locks = locking.Locks.from_wire(order["plan"])
        # Here, where there are words for it: a member that cannot lock itself in only dies.
        words = locking.proved(locks)
        locked = _Locked(locks, order)
    except BaseException as error:
        words = str(error) or repr(error)
    if words:
        walled.refuse(control, words)
    linux.set_dumpable(False)  # before there is anybody who might look
    control.sendall(encode({"op": "walled"}))
    stub.serve(control, interpreter, first, locked=locked)
