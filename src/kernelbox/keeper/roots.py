"""Roots: a warm interpreter per kind of kernel, that families are forked from."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kernelbox.keeper.families import FamilyLink
from kernelbox.keeper.rootprocess import RootProcess, facts_for
from kernelbox.reactor import Peer, Reactor
from kernelbox.wire import OPEN_FAMILY, Frame

_SHORTEST_PATIENCE = 10.0
"""With less, a caller in a hurry would have a root killed that only needs its time to warm up."""


Build = list[Any]
"""What :func:`kernelbox.wire.build_id` says: of two, the newer is the greater."""


class RootKey(NamedTuple):
    """What must be the same for two kernels to be forked from one root."""

    executable: str
    package_parent: str
    start_environ: tuple[tuple[str, str], ...]
    preload: tuple[str, ...]


def key_for(request: Frame) -> RootKey:
    """The root a request needs."""
    return key_of(
        facts_for(
            str(request["executable"]),
            str(request["package_parent"]),
            request["environ"],
            request["settings"].get("preload"),
        )
    )


def key_of(facts: Mapping[str, Any]) -> RootKey:
    """The same for what :func:`~kernelbox.keeper.rootprocess.facts_for` says."""
    return RootKey(
        facts["executable"],
        facts["package_parent"],
        tuple((name, value) for name, value in facts["start_environ"]),
        tuple(facts["preload"]),
    )


class Root:
    """One root process. It ends when we close its control socket; its families live on."""

    def __init__(
        self,
        reactor: Reactor,
        key: RootKey,
        *,
        build: Build,
        rundir: str,
        on_fork: Callable[[int], None],
        on_exit: Callable[[int, int], None],
        on_close: Callable[[Root], None],
        process: RootProcess | None = None,
    ) -> None:
        """``process``: one for this key that was started already."""
        self.key = key
        self.spares: list[FamilyLink] = []
        self.when_settled: Callable[[], None] | None = None
        """Called once: spares that were forked before would cost more time and memory."""
        self.settled = False
        self.used_at = time.monotonic()
        self._build = build
        self._folders = package_folders(key)
        self._fingerprint = fingerprint(self._folders)
        self._forking: list[FamilyLink] = []
        self._heard_at = time.monotonic()
        self._on_fork = on_fork
        self._on_exit = on_exit
        self._on_close = on_close
        process = process or RootProcess(key._asdict(), rundir)
        self.log_path, self._log_start = process.log_path, process.log_start
        self.pid = process.pid  # the keeper reaps all its children itself
        control = socket.socket(fileno=process.control)
        self._peer = Peer(reactor, control, on_frame=self._said, on_close=self._closed)

    @property
    def busy(self) -> bool:
        """Whether somebody waits for a family that it has not forked yet."""
        return bool(self._forking)

    def outdated(self, build: Build) -> bool:
        """Whether what it has imported is no longer what is installed. A caller of an older build
        than its own is well served: the files are the newer ones for both."""
        return build > self._build or fingerprint(self._folders) != self._fingerprint

    def stuck(self, patience: float) -> bool:
        """Whether it has had nothing to say for so long, though somebody waits for a family."""
        return self.busy and time.monotonic() - self._heard_at >= max(patience, _SHORTEST_PATIENCE)

    def abort(self) -> None:
        """End one that is stuck; the log then has what it was doing."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGABRT)
            os.kill(self.pid, signal.SIGCONT)  # should it be stopped

    def fork_family(
        self, make_link: Callable[[socket.socket], FamilyLink], kind: bytes = OPEN_FAMILY
    ) -> FamilyLink:
        """A new family, not anybody's yet. Works at once, also while the root still warms up.
        ``OSError`` if there are no descriptors left for it."""
        mine, theirs = socket.socketpair()
        try:
            # First of all: an order that cannot be sent must not be waited for, or every pid that
            # is told from then on would be taken for another family's.
            self._peer.send_bytes(kind, [theirs.fileno()])
        except OSError:
            mine.close()
            raise
        finally:
            theirs.close()
        link = make_link(mine)
        if not self._forking:
            self._heard_at = time.monotonic()
        self._forking.append(link)
        return link

    def take_spare(self, walls: str = "") -> FamilyLink | None:
        """A family that waits for somebody behind such walls, a warm one if there is."""
        for link in list(self.spares):
            link.poll()
        live = [link for link in self.spares if not link.closed]
        live.sort(key=lambda link: not link.warm)
        taken = next((link for link in live if link.walls == walls), None)
        self.spares = [link for link in live if link is not taken]
        return taken

    def last_words(self) -> str:
        """What the root wrote before it ended, for the error message."""
        with contextlib.suppress(OSError), open(self.log_path, "rb") as file:
            file.seek(self._log_start)
            return file.read().decode("utf-8", "replace").strip()[-1500:]
        return ""

    def close(self) -> None:
        self._peer.close()

    def kill(self) -> None:
        """One that is warming up does not hear that we leave, and would make its folder again."""
        self.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def poll(self) -> None:
        """Hear now what it has to say about ended wardens."""
        self._peer.poll()

    def _said(self, frame: Frame) -> None:
        self._heard_at = time.monotonic()
        match frame.get("op"):
            case "forked":
                if self._forking:
                    link = self._forking.pop(0)
                    link.pid = frame["pid"]
                    if link.pid:
                        self._on_fork(link.pid)
                    else:
                        link.give_up()
            case "settled":
                self.settled = True
                if self.when_settled is not None:
                    self.when_settled()
            case "exit":
                self._on_exit(frame["pid"], frame["status"])

    def _closed(self) -> None:
        # Families it had not forked yet hear of it by the end-of-file on their own sockets.
        self._forking = []
        self._on_close(self)


def package_folders(key: RootKey) -> list[str]:
    """Where the packages are that a root imports from."""
    folders = {key.package_parent}
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(key.executable)))
    lib = os.path.join(prefix, "lib")
    with contextlib.suppress(OSError):
        for name in os.listdir(lib):
            if name.startswith("python3"):
                folders.add(os.path.join(lib, name, "site-packages"))
    return sorted(folders)


def fingerprint(folders: Sequence[str]) -> list[int]:
    """Changes when packages are installed, upgraded or removed under a root."""
    return [_changed_at(folder) for folder in folders]


def _changed_at(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0
