"""Starting the keeper: under a lock, detached, ready when this returns."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from kernelbox.errors import KeeperUnavailable
from kernelbox.keeper.home import Home, prepare
from kernelbox.keeper.rootprocess import announce
from kernelbox.places import importable, package_parent

_START_PATIENCE = 60.0
_PROGRAM = "from kernelbox.keeper.program import main; main()"
"""Not -m, for which Python would import some modules more."""


def ensure_keeper(home: Home, first_root: Mapping[str, Any] | None = None) -> None:
    """Return when a keeper listens; a hundred callers at once start one. ``first_root``: what the
    caller will ask it for next, so that it need not wait to be asked."""
    deadline = time.monotonic() + _START_PATIENCE
    while not is_listening(home.keeper_address):
        prepare(home)
        try:
            lock = os.open(home.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # a keeper that has just left took the folder along
        try:
            if _locked(lock, home.lock_path, deadline):
                if not is_listening(home.keeper_address):
                    _start(home, first_root)
                return
        finally:
            os.close(lock)


def _locked(lock: int, path: str, deadline: float) -> bool:
    """Wait for our turn; False if a keeper that left has removed the file that we waited for."""
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise KeeperUnavailable(
                    f"another process has been starting the keeper for {_START_PATIENCE:g} s and "
                    f"holds {path!r} locked; end that process, then call again"
                ) from None
            time.sleep(0.01)
    try:
        return os.path.samestat(os.fstat(lock), os.stat(path))
    except FileNotFoundError:
        return False


def is_listening(address: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(5)
        try:
            sock.connect(address)
        except BlockingIOError:
            return True  # more callers wait there than it can hold
        except OSError:
            return False
        return True


def _start(home: Home, first_root: Mapping[str, Any] | None) -> None:
    import subprocess

    # It needs no package but ours, and so no look through the folder of the others.
    command = [sys.executable, "-P", "-S", "-c", _PROGRAM, "kernelbox.keeper"]
    command += [home.rundir, home.registry_path, home.runtime_dir, str(home.owner or 0)]
    environ = {
        name: value
        for name, value in os.environ.items()
        if name in ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "USER")
        or name.startswith(("PYTHON", "LD_"))
    }
    if first_root is not None:
        environ |= announce(first_root)
    # The process that is started forks the keeper and ends when it is ready, so that the keeper
    # is nobody's child here and leaves no zombie behind.
    try:
        ended = subprocess.run(
            command,
            cwd="/",
            env=importable(environ, package_parent()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=60,
            start_new_session=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KeeperUnavailable(f"the keeper could not be started: {error}") from None
    if ended.returncode != 0:
        words = ended.stderr.decode("utf-8", "replace").strip()[-2000:]
        raise KeeperUnavailable(f"the keeper could not be started: {words}")
