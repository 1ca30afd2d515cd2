"""The keeper's program: bind, detach, serve. Started by ``keeper/launch.py``."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys

from kernelbox.inside import linux
from kernelbox.keeper.home import Home
from kernelbox.keeper.keeper import Keeper
from kernelbox.keeper.registry import load

_BACKLOG = 4096


def main(argv: list[str]) -> None:
    rundir, registry_path, runtime_dir, owner = argv[1:5]
    home = Home(registry_path, runtime_dir, rundir, int(owner) or None)
    # Bound before the fork: when the process that was started ends, the keeper can be reached.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(home.keeper_address)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(home.keeper_address)
    os.chmod(home.keeper_address, 0o600)
    listener.listen(_BACKLOG)
    if os.fork():
        os._exit(0)
    _detach(home.log_path)
    Keeper(home, listener, load(registry_path)).run()


def _detach(log_path: str) -> None:
    """Own session, no terminal, no standard streams of the caller: ``$(…)`` must return."""
    os.setsid()
    linux.set_name("kb-keeper")
    linux.adopt_orphans()
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(log, 2)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    main(sys.argv)
