"""The outer half of a family in gVisor: it starts the sandbox, hands it its sockets, and waits.

No fork leads into such a sandbox, so the interpreter in it is started fresh (``inside/fresh.py``).
But a Unix socket that ``runsc`` was given as its standard input takes descriptors along, and those
that come in may bring more: so the warden speaks with what is inside as with any other family.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from kernelbox.inside import ferry, linux
from kernelbox.inside.channel import Channel
from kernelbox.inside.stub import NotOurs, close
from kernelbox.places import importable, package_parent
from kernelbox.walls import bundle, gvisor
from kernelbox.walls.lending import Loan, lend
from kernelbox.walls.plan import HOME, Plan
from kernelbox.wire import READ_SIZE, Frame, encode

_PROGRAM = "import gc; gc.disable(); from kernelbox.inside.fresh import main; main()"
_START_ONLY = ("PYTHON", "LD_", "MALLOC_", "LC_")
_START_ONLY_NAMES = {"LANG", "TZ", "GLIBC_TUNABLES"}
_LONGEST_STORY = 1 << 16


def keep(
    control: socket.socket,
    first: Channel,
    order: Frame,
    preload: Sequence[str],
    be_gate: Callable[[socket.socket], NoReturn],
) -> NoReturn:
    """Be what the warden knows as the stub until the sandbox has ended. ``be_gate`` watches its way
    out, if it has one, in a process of its own."""
    folder = str(order["folder"])
    plan = Plan.from_wire(order["plan"])
    try:
        warden = os.pidfd_open(os.getppid())
        os.mkdir(folder, 0o700)
        command = [sys.executable, "-P", "-c", _PROGRAM, "kernelbox.inside"]
        loans = bundle.write(folder, plan, command, _environment())
        here, there = socket.socketpair()
        process, story = _start(
            gvisor.command(folder, plan, f"kb-{order['kernel_id']}"), loans, there
        )
        there.close()
        fds = [control.fileno(), *first.far]
        if plan.network == "on":
            fds.append(_open_gate(be_gate, not_ours=[here, control, *first.far, story, warden]))
        _hand_over(here, {"token": first.token, "plan": order["plan"], "preload": preload}, fds)
        here.close()
        close(*fds[1:])
        words = _wait(process, story, warden)
    except BaseException as error:
        words = str(error) or repr(error)
    bundle.remove(folder)
    with contextlib.suppress(OSError):
        # If the sandbox was never up, somebody waits for it; otherwise this tells nobody anything.
        control.sendall(encode({"op": "refused", "error": words}))
    os._exit(70)


def _environment() -> dict[str, str]:
    """What the root has been started with, as far as it matters to how Python starts."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_START_ONLY) or name in _START_ONLY_NAMES
    }
    return importable({**kept, "HOME": HOME, "PATH": os.defpath}, package_parent())


def _start(command: list[str], loans: list[Loan], stdin: socket.socket) -> tuple[int, int]:
    """Its pid, and where it tells what goes wrong."""
    story, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            linux.unblock_signals()
            linux.default_signals()
            linux.die_with_parent()
            if loans:
                lend(loans)  # here, and not before: whoever clears up must not come upon them
            os.dup2(stdin.fileno(), 0)
            os.dup2(told, 1)
            os.dup2(told, 2)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            os.execvpe(command[0], command, {"PATH": os.environ.get("PATH", os.defpath)})
        except BaseException as error:
            os.write(told, f"{error}\n".encode())
        finally:
            os._exit(70)
    os.close(told)
    return pid, story


def _hand_over(here: socket.socket, order: Frame, fds: list[int]) -> None:
    """All that the inner half needs; it answers to nobody but the warden."""
    data = encode(order)
    sent = socket.send_fds(here, [data], fds)
    here.sendall(data[sent:])


class _Doorstep(socket.socket):
    """Listens for who asks, in the sandbox, for a connection to the gate (``inside/ferry.py``).

    None can be handed out of there: a new pair is made for each, and one end handed in.
    """

    def accept(self) -> tuple[socket.socket, str]:
        if not self.recv(len(ferry.WANTED)):
            raise OSError(errno.EBADF, "the sandbox has ended")
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self, [ferry.WANTED], [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours, ""


def _open_gate(be_gate: Callable[[socket.socket], NoReturn], *, not_ours: NotOurs) -> int:
    """The end that the sandbox gets."""
    outside, inside = socket.socketpair()
    if os.fork() == 0:
        close(inside, *not_ours)
        be_gate(_Doorstep(fileno=outside.detach()))
    outside.close()
    return inside.detach()


def _wait(pid: int, story: int, warden: int) -> str:
    """Until it has ended, or has to because the warden has; the last that runsc said."""
    said = b""
    news = select.poll()
    news.register(story, select.POLLIN)
    news.register(warden, select.POLLIN)
    while True:
        ready = [fd for fd, _ in news.poll()]
        if warden in ready:
            linux.kill_descendants(os.getpid())
            break
        data = os.read(story, READ_SIZE)
        if not data:
            break
        said = (said + data)[-_LONGEST_STORY:]
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return f"runsc: {gvisor.last_words(said) or f'exit code {code}'}"
