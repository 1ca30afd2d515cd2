"""The root: a warm interpreter with nothing in it but its imports, forked for every new family."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from kernelbox.inside import linux, stub
from kernelbox.inside.channel import Channel, open_channel
from kernelbox.inside.interpreter import FIRST_CELL, LATER_CELLS, Interpreter, warm_up
from kernelbox.inside.shell import make_shell, outbox
from kernelbox.wire import OPEN_FAMILY, WALLED_FAMILY, Frame, encode


class BecomeWarden(Protocol):
    """What a fork does to be a warden."""

    def __call__(
        self, request: socket.socket, control: socket.socket, stub_pid: int, first: Channel
    ) -> None:
        """Get: the socket its request comes over, the stub's control socket and pid, and the
        channel to the first interpreter."""
        ...


class Settling(Protocol):
    """What is done when nobody waits, step by step."""

    over: bool
    """Whether there is no next step."""

    readers: dict[int, Callable[[], None]]
    """What to do when one of these descriptors can be read, once."""

    def step(self) -> None: ...


_UNUSED_AFTER = 500
"""Milliseconds: whoever had us started ahead is about to ask for the first kernel of all."""

_IDLE_AFTER = 30
"""Milliseconds: the first kernel of all, just forked, is on its way to its first result."""

_BETWEEN_STEPS = 3
"""Milliseconds, for others who want the processor."""

_REHEARSALS = 12
"""Bytecode is specialised in place, which would un-share its page in a fork: let it settle here.
The first kernel of all does not wait for that: it has two."""


@dataclass(slots=True)
class _Kit:
    """What a family is going to need: both ends of its stub's control socket, and a channel."""

    warden_end: socket.socket
    stub_end: socket.socket
    channel: Channel

    def close(self) -> None:
        """Here, where it was opened for others."""
        stub.close(self.warden_end, self.stub_end)
        self.channel.close_near()
        self.channel.close_far()


def _open_kit() -> _Kit | None:
    """None if there are no descriptors left."""
    with contextlib.ExitStack() as opened:
        try:
            ends = socket.socketpair()
            for end in ends:
                opened.enter_context(end)
            kit = _Kit(*ends, open_channel())
        except OSError:
            return None
        opened.pop_all()
        return kit


def build(ipython_dir: str, preload: Sequence[str]) -> tuple[Interpreter, list[str]]:
    """A warm interpreter, and what could not be preloaded, in words."""
    failures = []
    for name in preload:
        try:
            importlib.import_module(name)
        except Exception as error:
            failures.append(f"KERNELBOX_PRELOAD: {name} cannot be imported: {error!r}")
    interpreter = Interpreter(make_shell(ipython_dir))
    interpreter.hooks_matter = bool(preload)
    interpreter.preload = tuple(preload)
    interpreter.install()
    outbox.lifeline = None
    gc.freeze()  # IPython collects garbage when it forgets cells, and would look at all there is
    warm_up(interpreter.shell, FIRST_CELL * 2)
    return interpreter, failures


def warm_up_further(interpreter: Interpreter) -> None:
    """What a first result does not need, and a first error or a wall does: nobody waits for it."""
    # In the midst of an upgrade: who wants walls, or shows a picture, will hear of it.
    with contextlib.suppress(ImportError):
        importlib.import_module("kernelbox.inside.bundles")
        _walled_stub()
    gc.unfreeze()  # what the imports have left goes now; those who share it with us keep theirs
    warm_up(interpreter.shell, (*FIRST_CELL * _REHEARSALS, *LATER_CELLS))
    interpreter.user_loop.give_up()
    gc.collect()
    freeze()


def freeze() -> None:
    """Put all there is out of the collector's reach: walking over it would un-share its pages.

    Each time that there is more of it, and before it is shared.
    """
    gc.freeze()
    gc.collect()  # finds nothing now, and decides by that when it is worth while to look again
    linux.fill_holes()


def tell(control: socket.socket, frame: Frame) -> None:
    """Say something to the keeper; without one, a root has nothing more to do."""
    try:
        control.sendall(encode(frame))
    except OSError:
        os._exit(0)


def serve(
    control: socket.socket,
    interpreter: Interpreter,
    become_warden: BecomeWarden,
    settling: Settling,
) -> NoReturn:
    """Fork a family for each socket that arrives on ``control``; end when it closes. ``settling``
    goes on when nobody waits, and the keeper hears when it is over."""
    signals = linux.child_signal_fd()
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(signals, select.POLLIN)
    patience: int | None = _UNUSED_AFTER
    kit = _open_kit()

    def tell_if_settled() -> None:
        if settling.over and not settling.readers:
            tell(control, {"op": "settled"})

    while True:
        ready = poll.poll(patience)
        if not ready:
            settling.step()
            patience = None if settling.over else _BETWEEN_STEPS
            for reader in settling.readers:
                poll.register(reader, select.POLLIN)
            tell_if_settled()
        for fd, _ in ready:
            if fd in settling.readers:
                poll.unregister(fd)
                settling.readers.pop(fd)()
                tell_if_settled()
                continue
            if fd == signals:
                linux.drain_signal_fd(signals)
                for pid, status in linux.reap():
                    tell(control, {"op": "exit", "pid": pid, "status": status})
                continue
            try:
                data, fds, _, _ = socket.recv_fds(control, 1, 1)
            except OSError:
                data, fds = b"", []
            if not data or not fds:
                os._exit(0)
            request = socket.socket(fileno=fds[0])
            be_stub = (
                stub.main if data == OPEN_FAMILY else _walled_stub(ahead=data == WALLED_FAMILY)
            )
            pid = 0
            if kit := kit or _open_kit():
                private: stub.NotOurs = [control, signals, *settling.readers]
                pid = _fork_family(kit, request, private, interpreter, become_warden, be_stub)
                kit.close()
            request.close()
            tell(control, {"op": "forked", "pid": pid})
            kit = _open_kit()  # now, when nobody waits for it
            patience = None if settling.over else _IDLE_AFTER


def _walled_stub(*, ahead: bool = True) -> Callable[..., NoReturn]:
    """Imported when nobody waits, or by the first who wants walls: the first kernel of all, which
    has none, should not wait for it."""
    from kernelbox.inside import walled

    walled.look()
    return functools.partial(walled.main, ahead=ahead)


def _fork_family(
    kit: _Kit,
    request: socket.socket,
    private: stub.NotOurs,
    interpreter: Interpreter,
    become_warden: BecomeWarden,
    be_stub: Callable[..., NoReturn],
) -> int:
    """The pid of the new warden; 0 if there was no room for one. ``private``: descriptors that are
    for nobody but us.

    Three forks, one inside the other, and nothing between them: who waits for a kernel waits for
    the last of them, the interpreter, which has the most to do. Each gives way to its child, for
    on a small machine both are given the same processor.
    """
    try:
        # A module that was preloaded may have started a thread; of ours, none does.
        pid = linux.bare_fork(alone=not interpreter.hooks_matter)
    except OSError:
        return 0
    if pid:
        os.sched_yield()
        return pid
    try:
        # The stub is forked before the request is read: no caller's secret is ever in
        # memory that user code inherits.
        child = linux.bare_fork(alone=True)
        if child == 0:
            not_ours = [request, kit.warden_end, *private]
            be_stub(kit.stub_end, interpreter, kit.channel, not_ours=not_ours)
        os.sched_yield()
        stub.close(kit.stub_end, *private)
        kit.channel.close_far()
        os.setsid()
        linux.unblock_signals()
        linux.set_name("kb-warden")
        linux.adopt_orphans()
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        become_warden(request, kit.warden_end, child, kit.channel)
    except BaseException:
        import traceback

        traceback.print_exc(file=sys.__stderr__)
        os._exit(70)
    os._exit(0)
