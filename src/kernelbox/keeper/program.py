"""The keeper's program: bind, detach, start the first root, serve. Started by ``keeper/launch.py``.

What it imports at the top is what it needs until the first root is on its way; the rest is imported
while that one, which takes five times as long, does the same.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys

from kernelbox.keeper.rootprocess import RootProcess, announced

_BACKLOG = 4096


def main() -> None:
    """With the arguments that ``keeper/launch.py`` gives: a name for people to see, then ours."""
    rundir, registry_path, runtime_dir, owner = sys.argv[2:]
    # Bound before the fork: when the process that was started ends, the keeper can be reached.
    listener = _listen(os.path.join(rundir, "keeper.sock"))
    if os.fork():
        os._exit(0)
    _detach(os.path.join(rundir, "keeper.log"))
    first_root = _start_first_root(rundir)

    from kernelbox.inside import linux
    from kernelbox.keeper.home import Home
    from kernelbox.keeper.keeper import Keeper
    from kernelbox.keeper.registry import load

    linux.set_name("kb-keeper")
    linux.adopt_orphans()
    home = Home(registry_path, runtime_dir, rundir, int(owner) or None)
    Keeper(home, listener, load(registry_path), first_root).run()


def _listen(address: str) -> socket.socket:
    try:
        os.unlink(address)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
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
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
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
