"""The stub: a clean fork of the root that starts, parents and reaps the members of a family.

It is a target (user code runs as its children), so it handles no Python signals, cannot be read
by its children, and trusts nothing but its control socket. When that closes, the family ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn, Protocol

from kernelbox.inside import linux
from kernelbox.inside.channel import Channel
from kernelbox.inside.scope import enter
from kernelbox.wire import Decoder, Frame, GarbledFrame, encode

if TYPE_CHECKING:
    from kernelbox.inside.interpreter import Interpreter

NotOurs = Sequence[socket.socket | int]

_MAX_FDS = 8
FIRST = 0
"""The tag of the interpreter that is started without an order."""
_LAST_CHILD_PATIENCE = 5.0
_ROOM_PATIENCE, _PAUSE = 1.0, 0.02


class Locked(Protocol):
    """What is locked around the members of a family, where their stub stays outside."""

    def enter(self) -> None:
        """In a fork: for good, before anybody's code is run."""

    def leave(self) -> None:
        """In the stub: when all members have ended."""


class Stub:
    """Waits for the warden's word and for the end of children; nothing else."""

    def __init__(
        self, control: socket.socket, interpreter: Interpreter | None, locked: Locked | None = None
    ) -> None:
        self._control = control
        self._interpreter = interpreter
        self._locked = locked
        self._decoder = Decoder()
        self._fds: list[int] = []
        self._signals = linux.child_signal_fd()

    def run(self) -> NoReturn:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._signals, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self._signals:
                    linux.drain_signal_fd(self._signals)
                    self._report_exits()
                elif not self._read_orders():
                    self._end()

    def _read_orders(self) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self._control, 1 << 16, _MAX_FDS)
            frames = self._decoder.feed(data)
        except (OSError, GarbledFrame):
            return False
        if not data:
            return False
        self._fds += fds
        for frame in frames:
            count = frame.get("fds", 0)
            given, self._fds = self._fds[:count], self._fds[count:]
            self._obey(frame, given)
            for fd in given:
                os.close(fd)
        return True

    def _obey(self, frame: Frame, fds: list[int]) -> None:
        match frame["op"]:
            case "interpreter":
                self._start(frame, lambda: self._become_interpreter(frame, fds))
            case "spawn":
                self._start(frame, lambda: _become_command(frame, fds))
            case "kill":
                linux.kill_descendants(frame["pid"])
                linux.send_signal([frame["pid"]], signal.SIGKILL)

    def _start(self, frame: Frame, become: object) -> None:
        try:
            pid = self._fork()
        except OSError as error:
            self._say({"op": "failed", "tag": frame["tag"], "error": str(error)})
            return
        if pid == 0:
            try:
                self._control.close()
                os.close(self._signals)
                _leave_stub()
                self._lock_in()
                if scope := frame.get("scope"):
                    enter(scope)
                if self._locked is not None:
                    _make_killable_first()
                    self._locked.enter()
                become()  # type: ignore[operator]
            except BaseException as error:
                _tell(error)
            finally:
                os._exit(70)
        self._say({"op": "started", "tag": frame["tag"], "pid": pid})

    def _fork(self) -> int:
        """Whoever was killed a moment ago counts as a process until it is reaped: where there is no
        room for another, there may be some soon."""
        deadline = time.monotonic() + _ROOM_PATIENCE
        while True:
            try:
                return os.fork()
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
            select.select([self._signals], [], [], _PAUSE)
            linux.drain_signal_fd(self._signals)
            self._report_exits()

    def _lock_in(self) -> None:
        """In a new member: it stands behind the walls that its stub stands behind."""

    def _become_interpreter(self, frame: Frame, fds: list[int]) -> None:
        assert self._interpreter is not None  # a foreign kernel's stub only starts commands
        self._interpreter.pages.claim()
        _serve(self._interpreter, fds, frame["token"])

    def _report_exits(self) -> None:
        for pid, status in linux.reap():
            self._say({"op": "exit", "pid": pid, "status": status})

    def _say(self, frame: Frame) -> None:
        with contextlib.suppress(OSError):
            self._control.sendall(encode(frame))

    def _end(self) -> NoReturn:
        deadline = time.monotonic() + _LAST_CHILD_PATIENCE
        while linux.children(os.getpid()) and time.monotonic() < deadline:
            linux.kill_descendants(os.getpid())
            select.select([self._signals], [], [], 0.05)
            linux.drain_signal_fd(self._signals)
            linux.reap()
        if self._locked is not None:
            self._locked.leave()
        os._exit(0)


def _become_command(frame: Frame, fds: list[int]) -> None:
    """Exec a command whose descriptors are ``fds``, put at the numbers ``frame`` names."""
    _make_killable_first()
    linux.default_signals()
    null = os.open(os.devnull, os.O_RDWR)
    # Out of the way first: a target number may be one of the sources.
    lifted = [os.dup(fd) for fd in fds]
    high = [os.dup2(fd, 600 + i) for i, fd in enumerate(lifted)]
    os.dup2(null, 0)
    for source, target in zip(high, frame["targets"], strict=True):
        os.dup2(source, target, inheritable=True)
    keep = {0, 1, 2, *frame["targets"]}
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd not in keep:
            with contextlib.suppress(OSError):
                os.close(fd)
    with contextlib.suppress(OSError):
        os.chdir(frame["cwd"])
    os.execvpe(frame["argv"][0], frame["argv"], frame["environ"])


def _make_killable_first() -> None:
    """The OOM killer takes user code before it takes the stub that would report it."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")


def _leave_stub() -> None:
    """The first steps of a member: no process of its session is one of ours."""
    linux.unblock_signals()
    os.setsid()
    linux.die_with_parent()
    linux.set_dumpable(True)


def _serve(interpreter: Interpreter, fds: list[int], token: str) -> None:
    """Be an interpreter until the lifeline closes."""
    linux.set_name("kb-python")
    _make_killable_first()
    linux.default_signals()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)  # as in any Python
    interpreter.attach(fds, token)
    interpreter.run()


def _tell(error: BaseException) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"kernelbox: {error!r}\n".encode())


def _start_first(
    control: socket.socket,
    interpreter: Interpreter,
    channel: Channel,
    not_ours: NotOurs,
    locked: Locked | None,
) -> Frame:
    """The one interpreter that every family needs: forked before anything else is done, and before
    anybody has ordered it. What there is to say of it."""
    try:
        # No thread has come along, and no module but ours and IPython's has hooks.
        pid = os.fork() if interpreter.hooks_matter else linux.bare_fork(alone=True)
    except OSError as error:
        return {"op": "failed", "tag": FIRST, "error": str(error)}
    if pid:
        os.sched_yield()
        return {"op": "started", "tag": FIRST, "pid": pid}
    try:
        interpreter.pages.claim()
        close(*not_ours, control)
        channel.close_near()
        _leave_stub()
        threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
        if locked is not None:
            _make_killable_first()
            locked.enter()
        _serve(interpreter, channel.far, channel.token)
    except BaseException as error:
        _tell(error)
    finally:
        os._exit(70)


def close(*descriptors: socket.socket | int) -> None:
    """In a fork: what is for others."""
    for one in descriptors:
        if isinstance(one, int):
            os.close(one)
        else:
            one.close()


def main(
    control: socket.socket,
    interpreter: Interpreter | None,
    first: Channel | None = None,
    *,
    not_ours: NotOurs = (),
) -> NoReturn:
    """Be a stub until the control socket closes; an interpreter for ``first`` starts at once.
    ``not_ours`` was open when we were forked, and is for others."""
    linux.set_dumpable(False)  # before there is anybody who might look
    serve(control, interpreter, first, not_ours=not_ours)


def serve(
    control: socket.socket,
    interpreter: Interpreter | None,
    first: Channel | None,
    *,
    not_ours: NotOurs = (),
    locked: Locked | None = None,
) -> NoReturn:
    """What :func:`main` does when it cannot be looked into any more."""
    if interpreter is not None and first is not None:
        word = _start_first(control, interpreter, first, not_ours, locked)
        with contextlib.suppress(OSError):
            control.sendall(encode(word))
        first.close_near()
        first.close_far()
    close(*not_ours)
    linux.set_name("kb-stub")
    linux.adopt_orphans()
    Stub(control, interpreter, locked).run()
