"""The copy of a live interpreter: what must happen before, during and after the fork."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import threading
from typing import TYPE_CHECKING

from kernelbox.inside import linux
from kernelbox.wire import Frame

if TYPE_CHECKING:
    from kernelbox.inside.interpreter import Interpreter


def fork_copy(interpreter: Interpreter, frame: Frame, fds: list[int]) -> None:
    """Fork; in the copy, move over to ``fds`` and carry on as an interpreter of its own.

    The copy forks once more and its parent ends, so that the stub becomes the parent of the
    second: the stub, not this interpreter, then reports its death.
    """
    notes = _what_is_not_carried()
    sys.stdout.flush()
    sys.stderr.flush()
    linux.flush_c_buffers()
    random_state = random.getstate()  # the module reseeds itself in every child
    gc_was_on = gc.isenabled()
    gc.disable()  # a collection right after the fork would un-share the pages it walks over
    interpreter._forking = True
    try:
        child = os.fork()
    except OSError as error:
        interpreter._forking = False
        _close(fds)
        interpreter.lifeline.send({"op": "forked", "ok": False, "error": str(error)})
        return
    finally:
        if gc_was_on:
            gc.enable()
    if child:
        interpreter._forking = False
        _close(fds)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            words = f"the process that was to fork the copy ended with {status}"
            interpreter.lifeline.send({"op": "forked", "ok": False, "error": words})
        else:
            interpreter.lifeline.send({"op": "forked", "ok": True, "notes": notes})
        return
    try:
        between = os.getpid()
        if os.fork():
            os._exit(0)
        interpreter._forking = False
        os.setsid()
        # Only once the stub is the parent: the one between is about to end, and must not take
        # us along.
        while os.getppid() == between:
            os.sched_yield()
        linux.die_with_parent()
        interpreter.lifeline.detach()
        random.setstate(random_state)
        interpreter.user_loop.renew_after_fork()
        _reopen_regular_files()
        interpreter.attach(fds, frame["token"])
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(2, f"kernelbox: the copy could not be set up: {error!r}\n".encode())
        os._exit(70)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _what_is_not_carried() -> list[str]:
    """What a fork leaves behind, in words for the record of the branch."""
    threads = [
        thread.name
        for thread in threading.enumerate()
        if thread is not threading.main_thread() and thread.is_alive()
    ]
    return [f"threads were not carried: {', '.join(threads)}"] if threads else []


def _reopen_regular_files() -> None:
    """A fork shares file offsets: what one side reads, the other would miss. Open them anew."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd < 3:
            continue
        with contextlib.suppress(OSError):
            if not os.path.isfile(path := os.readlink(f"/proc/self/fd/{fd}")):
                continue
            with open(f"/proc/self/fdinfo/{fd}") as file:
                info = dict(
                    line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line
                )
            flags = int(info["flags"], 8) & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC)
            same = os.stat(path)
            mine = os.fstat(fd)
            if (same.st_dev, same.st_ino) != (mine.st_dev, mine.st_ino):
                continue
            fresh = os.open(path, flags)
            os.lseek(fresh, int(info["pos"]), os.SEEK_SET)
            os.dup2(fresh, fd, inheritable=os.get_inheritable(fd))
            os.close(fresh)
