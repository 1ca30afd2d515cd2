"""Copies of a live interpreter: branches, which go on at once, and checkpoints, which park."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernelbox.inside import linux, reaping
from kernelbox.inside.changes import Folder
from kernelbox.inside.openfiles import OpenFiles
from kernelbox.inside.pools import Pools
from kernelbox.inside.scope import enter
from kernelbox.wire import READ_SIZE, Decoder, Frame, encode

if TYPE_CHECKING:
    from kernelbox.inside.interpreter import Interpreter

_MAX_FDS = 8
_MOST_COPIED = 20_000


class Refused(Exception):
    """A fork that would not be safe, or did not work; the words say why."""

    def __init__(self, words: str, *, danger: bool = False) -> None:
        super().__init__(words)
        self.danger = danger


def branch(interpreter: Interpreter, frame: Frame, fds: list[int]) -> None:
    """Fork; the copy moves over to ``fds`` and carries on as an interpreter of its own."""

    def carry_on() -> None:
        if scope := frame.get("scope"):
            enter(scope)
        interpreter.settle(frame)
        interpreter.attach(fds, frame["token"])

    def fork() -> dict[str, Any] | None:
        if frame.get("workspace") and not Folder(most=_MOST_COPIED, patience=10.0).whole:
            for fd in fds:
                os.close(fd)
            raise Refused(f"its folder has more than {_MOST_COPIED:,} files; use files='share'")
        return _copy(interpreter, carry_on, fds, force=bool(frame.get("force")))

    _answer(interpreter, frame, fork)


def checkpoint(interpreter: Interpreter, frame: Frame, fds: list[int]) -> None:
    """Fork; the copy parks at ``fds`` until it is told to fork a successor."""
    _answer(interpreter, frame, lambda: park(interpreter, fds))


def park(
    interpreter: Interpreter, fds: list[int], *, watch: Folder | None = None
) -> dict[str, Any] | None:
    """What there is to say of the fork; None in a successor, for whom no time has passed.

    Who asks for the successor is told what has changed since in the folder to ``watch``.
    Raises :class:`Refused`, and nothing has happened.
    """

    def announce() -> None:
        os.write(fds[0], encode({"op": "announced"}))  # that moment is safe from now on

    def stay() -> None:
        _Parked(interpreter, fds, watch).wait()

    return _copy(interpreter, stay, fds, linger=False, announce=announce)


def _answer(
    interpreter: Interpreter, frame: Frame, fork: Callable[[], dict[str, Any] | None]
) -> None:
    said = {"op": "forked", "turn": frame.get("turn")}
    try:
        facts = fork()
    except Refused as refusal:
        words, danger = str(refusal), refusal.danger
    except Exception as error:
        words, danger = repr(error), False
    else:
        words, danger = "", False
    if words:
        interpreter.lifeline.send({**said, "ok": False, "error": words, "danger": danger})
        return
    if facts is not None:
        interpreter.lifeline.send({**said, "ok": True, **facts})


def _copy(
    interpreter: Interpreter,
    become: Callable[[], None],
    fds: list[int],
    *,
    force: bool = False,
    linger: bool = True,
    announce: Callable[[], None] = lambda: None,
) -> dict[str, Any] | None:
    """Fork a copy and let it ``become`` something; None in the copy, once it has.

    The copy forks once more and its parent ends, so that the stub becomes the parent of the
    second: the stub, not this interpreter, then reports its death. Who does not ``linger`` until
    that has happened is answered at once: if there is no room for the second, the first will do.
    """
    started = time.perf_counter()
    pools = Pools.look()
    try:
        if pools.danger and not force:
            raise Refused(pools.danger, danger=True)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # whatever the user has put there
                stream.flush()
        linux.flush_c_buffers()
        # A fork shares file offsets, and this process may go on reading before the copy has looked.
        files = OpenFiles.look(besides={*fds, *interpreter.descriptors()})
        random_state = random.getstate()  # the module reseeds itself in every child
        # Who handles SIGCHLD would hear of a child that is none of his business.
        linger = linger or signal.getsignal(signal.SIGCHLD) is not signal.SIG_DFL
        with pools.paused(), _no_collection(), _no_child_signal(linger=linger):
            child = _fork(interpreter)
            if child == 0:
                with _ending_badly():
                    interpreter.hooks_are_over()
                    announce()
                    _leave_parent(stay=not linger)
                    reaping.forget()
                    interpreter.forking = False
                    interpreter.leave_channel()
                    random.setstate(random_state)
                    interpreter.user_loop.renew_after_fork()
                    files.reopen()
                    pools.revive()
                    become()
                return None
            status = 0
            if linger:
                with contextlib.suppress(ChildProcessError):  # SIGCHLD is ignored: reaped already
                    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            else:
                reaping.leave_to_end(child)
    finally:
        for fd in fds:
            with contextlib.suppress(OSError):  # the copy has taken them over
                os.close(fd)
    if status:
        raise Refused(f"the process that was to fork the copy ended with {status}")
    notes = [*pools.notes, *files.notes]
    return {"notes": notes, "seconds": round(time.perf_counter() - started, 6)}


def _fork(interpreter: Interpreter) -> int:
    interpreter.forking = True
    try:
        child = os.fork()
    except OSError as error:
        interpreter.forking = False
        raise Refused(f"the fork failed: {error.strerror}") from None
    if child:
        interpreter.forking = False
    return child


def _leave_parent(*, stay: bool) -> None:
    """In the first copy: fork the second, whose parent will be the stub, and go. If that cannot be
    and we may, ``stay``."""
    between = os.getpid()
    try:
        second = linux.bare_fork()  # hooks and locks have had their turn in the first
    except OSError:
        if not stay:
            raise
        os.setsid()
        return
    if second:
        os._exit(0)
    os.setsid()
    # Only once the stub is the parent: the one between is about to end, and must not take us along.
    with contextlib.suppress(OSError):  # it is being reaped, or has been
        linux.wait_for_end(between)
    while os.getppid() == between:
        os.sched_yield()
    linux.die_with_parent()


@contextlib.contextmanager
def _no_collection() -> Any:
    """A collection right after the fork would un-share the pages it walks over."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def _no_child_signal(*, linger: bool) -> Any:
    """Keep the end of the process between from a handler of the user's."""
    if not linger:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    had_one = signal.SIGCHLD in signal.sigpending()
    try:
        yield
    finally:
        if not had_one and signal.SIGCHLD in signal.sigpending():
            signal.sigtimedwait({signal.SIGCHLD}, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _ending_badly() -> Any:
    """A copy that cannot be set up must not carry on as a second interpreter."""
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(2, f"kernelbox: the copy could not be set up: {error!r}\n".encode())
        os._exit(70)


class _Parked:
    """A copy that waits: no cells, no CPU; end-of-file on its own socket ends it."""

    def __init__(self, interpreter: Interpreter, fds: list[int], watch: Folder | None) -> None:
        self._interpreter = interpreter
        self._watch = watch
        interpreter.be_silent()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=fds.pop())
        self._decoder = Decoder()
        linux.set_name("kb-checkpoint")
        self._say({"op": "hello", "pid": os.getpid()})

    def wait(self) -> None:
        """Returns in a successor only: a fork of this one that carries on where it was parked."""
        news = select.poll()
        news.register(self._sock, select.POLLIN)
        while True:
            reaping.collect_until(lambda: bool(news.poll(reaping.PAUSE)))
            data, fds, _, _ = socket.recv_fds(self._sock, READ_SIZE, _MAX_FDS)
            if not data:
                os._exit(0)
            for frame in self._decoder.feed(data):
                if frame["op"] == "fork" and self._fork(frame, fds):
                    return

    def _fork(self, frame: Frame, fds: list[int]) -> bool:
        interpreter = self._interpreter
        said = {"op": "forked", "turn": frame.get("turn")}

        def succeed() -> None:
            self._sock.close()
            interpreter.attach(fds, frame["token"])
            linux.set_name("kb-python")

        try:
            facts = _copy(interpreter, succeed, fds, linger=False)
        except Refused as refusal:
            self._say({**said, "ok": False, "error": str(refusal)})
            return False
        if facts is None:
            return True
        changed = self._watch.changes() if self._watch is not None else []
        self._say({**said, "ok": True, "changed": changed})
        return False

    def _say(self, frame: Frame) -> None:
        try:
            self._sock.sendall(encode(frame))
        except OSError:
            os._exit(0)  # nobody will ever ask for this moment again
