"""The process that a Jupyter client starts and takes for the kernel: it stands for one of ours.

It asks the keeper for a kernel on the ports of the given connection file and holds a connection
to its warden. Each of the two ends with the other; so does the kernel with the client's process.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import selectors
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kernelbox.client.blocking import BlockingDriver
from kernelbox.client.calls import Calls
from kernelbox.client.creating import get_or_create
from kernelbox.config import Settings
from kernelbox.errors import BadInput, BoxError
from kernelbox.result import KernelRecord
from kernelbox.wire import Frame, encode

LAUNCHED = "kernelbox_launcher"
"""Read by ``warden/lanes/jupyter.py``: the pid that the kernel ends with."""

_END_PATIENCE = 8.0
_LONGEST_STEM = 80
_OWN_PATHS = ("KERNELBOX_HOME", "KERNELBOX_REGISTRY_PATH", "KERNELBOX_RUNTIME_DIR")


def launch_settings(environ: Mapping[str, str]) -> Settings:
    """The user's settings, but for what only fits kernels that nobody stands for."""
    environ = dict(environ)
    if not any(environ.get(name) for name in _OWN_PATHS):
        state = environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        environ["KERNELBOX_HOME"] = os.path.join(state, "kernelbox")
    settings = Settings.from_environment(environ)
    # A notebook's kernel lives as long as its server wants, however long it is idle.
    return replace(settings, kernel_type="python3", kernel_idle_timeout=0.0, store_backend="file")


def read_connection(path: str) -> dict[str, Any]:
    """The content of a connection file, if we can serve it."""
    try:
        with open(path, encoding="utf-8") as file:
            info = json.load(file)
    except (OSError, ValueError) as error:
        raise BadInput(f"the connection file {path!r} cannot be read: {error}") from None
    if not isinstance(info, dict):
        raise BadInput(f"the connection file {path!r} does not hold a JSON object")
    if info.get("transport", "tcp") != "tcp":
        raise BadInput(
            f"the connection file {path!r} asks for {info['transport']!r}; KernelBox listens on tcp"
        )
    return info


def kernel_name(path: str, pid: int) -> str:
    """A name that no other launched kernel has, and that shows which file it belongs to."""
    stem = os.path.splitext(os.path.basename(path))[0]
    stem = re.sub(r"[^\w.-]", "_", stem)[-_LONGEST_STEM:] or "kernel"
    return f"{stem}-{pid}"


def start(path: str, settings: Settings) -> KernelRecord:
    """Ask the keeper for a kernel that listens where the connection file says."""
    path = os.path.abspath(path)
    calls, driver = Calls(settings), BlockingDriver()
    try:
        return driver.run(
            get_or_create(
                calls,
                kernel_name(path, os.getpid()),
                session_name=os.environ.get("JPY_SESSION_NAME"),
                tags={"launched_by": "jupyter"},
                connection={**read_connection(path), LAUNCHED: os.getpid()},
                connection_file=path,
            )
        )
    finally:
        driver.lines.close()


class Stand:
    """Holds the connection that the kernel lives by, and waits for either side's end."""

    def __init__(self, record: KernelRecord) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.connect(record.address)
        self._requests = 0
        self._deadline: float | None = None
        self._send({"op": "own"})

    def wait(self, signals: socket.socket, parent: int | None) -> None:
        """Return when the kernel has ended; ``parent`` is a pidfd of the client's process."""
        with self._sock, selectors.DefaultSelector() as selector:
            selector.register(self._sock, selectors.EVENT_READ, self._kernel_said)
            selector.register(signals, selectors.EVENT_READ, lambda: self._signalled(signals))
            if parent is not None:
                selector.register(parent, selectors.EVENT_READ, lambda: False)
            while self._deadline is None or time.monotonic() < self._deadline:
                for key, _ in selector.select(self._patience()):
                    if not key.data():
                        return

    def _kernel_said(self) -> bool:
        try:
            return bool(self._sock.recv(1 << 16))
        except OSError:
            return False

    def _signalled(self, signals: socket.socket) -> bool:
        for number in signals.recv(64):
            if number == signal.SIGINT:
                self._send({"op": "interrupt"})
            else:
                self._send(
                    {"op": "end", "cause": f"its launcher got {signal.Signals(number).name}"}
                )
                self._deadline = time.monotonic() + _END_PATIENCE
        return True

    def _patience(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _send(self, frame: Frame) -> None:
        self._requests += 1
        try:
            self._sock.sendall(encode({"id": self._requests, **frame}))
        except OSError:
            pass  # it has ended; reading tells


def catch_signals() -> socket.socket:
    """A socket on which the numbers of arriving signals can be read."""
    far, near = socket.socketpair()
    far.setblocking(False)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(far.detach(), warn_on_full_buffer=False)
    return near


def client_process(environ: Mapping[str, str]) -> int | None:
    """A pidfd of the process that wants this kernel, where Jupyter names it."""
    try:
        pid = int(environ.get("JPY_PARENT_PID", "0"))
        return os.pidfd_open(pid) if pid > 1 else None
    except ProcessLookupError:
        raise BadInput("the client that started this kernel has already ended") from None
    except (ValueError, OSError):
        return None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernelbox.launcher")
    parser.add_argument("-f", "--connection-file", required=True)
    options, _ = parser.parse_known_args(argv)  # clients may add options meant for ipykernel
    signals = catch_signals()
    try:
        parent = client_process(os.environ)
        record = start(options.connection_file, launch_settings(os.environ))
        Stand(record).wait(signals, parent)
    except (BoxError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
