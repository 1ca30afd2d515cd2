"""The keeper's program: bind, detach, start the first root, serve. Started by ``keeper/launch.py``.

What it imports at the top is what it needs until the first root is on its way; the rest is imported
while that one, which takes five times as long, does the same.
"""

from __future__ import annotations

# Not signal and socket, which take longer to import than all that is done with them here.
import _signal  # type: ignore[import-not-found]
import _socket
import os
import resource
import select
import sys

from kernelbox.keeper.rootprocess import RootProcess, announced

_BACKLOG = 4096
_LONGEST_COURTESY = 2000
"""Milliseconds: an owner who is gone by then is noticed no later than that."""


def main() -> None:
    """With the arguments that ``keeper/launch.py`` gives: a name for people to see, then ours."""
    rundir, registry_path, runtime_dir, owner = sys.argv[2:]
    # Bound before the fork: when the process that was started ends, the keeper can be reached.
    listener = _listen(os.path.join(rundir, "keeper.sock"))
    if os.fork():
        os._exit(0)
    _detach(os.path.join(rundir, "keeper.log"))
    first_root = _start_first_root(rundir)
    if first_root is not None:
        _let_it_warm_up(first_root, listener)

    import socket

    from kernelbox.inside import linux
    from kernelbox.keeper.home import Home
    from kernelbox.keeper.keeper import Keeper
    from kernelbox.keeper.registry import load

    linux.set_name("kb-keeper")
    linux.adopt_orphans()
    home = Home(registry_path, runtime_dir, rundir, int(owner) or None)
    reception = socket.socket(fileno=listener.detach())
    Keeper(home, reception, load(registry_path), first_root).run()


def _listen(address: str) -> _socket.socket:
    try:
        os.unlink(address)
    except FileNotFoundError:
        pass
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    listener.bind(address)
    os.chmod(address, 0o600)
    listener.listen(_BACKLOG)
    return listener


def _detach(log_path: str) -> None:
    """Own session, no terminal, no standard streams of the caller: ``$(…)`` must return."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(log, 2)
    for number in (_signal.SIGINT, _signal.SIGHUP, _signal.SIGPIPE):
        _signal.signal(number, _signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        pass


def _start_first_root(rundir: str) -> RootProcess | None:
    wanted = announced()
    try:
        return RootProcess(wanted, rundir) if wanted is not None else None
    except OSError:
        return None  # who asks for a kernel tries again, and is told


def _let_it_warm_up(root: RootProcess, listener: _socket.socket) -> None:
    """Wait for somebody to come in, or for the root's word that it has imported all it needs, which
    leaves us the time to do the same. A gateway has its keeper started ahead, when nobody can ask
    it for anything yet: to go on at once would take the processor from those who are waited for."""
    poll = select.poll()
    poll.register(root.control, select.POLLIN)
    poll.register(listener.fileno(), select.POLLIN)
    poll.poll(_LONGEST_COURTESY)
