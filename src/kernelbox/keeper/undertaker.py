"""What a family leaves when its warden is gone: kernels to bury, processes and files to remove."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from kernelbox.inside import linux
from kernelbox.keeper import decisions
from kernelbox.keeper.callers import Callers
from kernelbox.keeper.endings import Endings
from kernelbox.keeper.exits import Exits
from kernelbox.keeper.families import Families, FamilyLink
from kernelbox.keeper.home import Home, remove_files, remove_workspace
from kernelbox.keeper.kernels import Kernels
from kernelbox.keeper.nursery import Nursery
from kernelbox.keeper.obituaries import Obituaries
from kernelbox.reactor import Reactor
from kernelbox.wire import Frame

_EXIT_STATUS_PATIENCE = 0.05
_SWEEP_AGAIN = 0.3
_TAKE_DOWN = 1.0


class Undertaker:
    """Called when a kernel or a whole family has ended, whoever ended it."""

    def __init__(
        self,
        reactor: Reactor,
        home: Home,
        *,
        callers: Callers,
        kernels: Kernels,
        families: Families,
        nursery: Nursery,
        exits: Exits,
        endings: Endings,
        obituaries: Obituaries,
    ) -> None:
        self._reactor = reactor
        self._home = home
        self._callers = callers
        self._kernels = kernels
        self._families = families
        self._nursery = nursery
        self._exits = exits
        self._endings = endings
        self._obituaries = obituaries

    def kernel_ended(self, link: FamilyLink, frame: Frame) -> None:
        """A warden's word of the end of one of its kernels."""
        kernel_id = str(frame["kernel_id"])
        self._kernels.ended(kernel_id, str(frame["cause"]), frame.get("epoch"))
        link.kernel_ids.discard(kernel_id)
        if link.kernel_ids:
            # The last kernel takes its family along; that one's end is the end of the warden.
            self._endings.finish(kernel_id)

    def family_ended(self, link: FamilyLink) -> None:
        """A warden is gone. Its root may be about to say how; give it a moment."""
        self._families.discard(link)
        spare = self._nursery.forget(link)
        # What was killed before it was anybody's could not clean up itself.
        unborn = link.kernel_ids - self._kernels.registry.kernels.keys()
        for kernel_id in {link.reserved} if spare else unborn:
            remove_files(self._home, kernel_id)
        if link.sandbox and (spare or link.kernel_ids):
            self._take_down(link.sandbox)
        if link.kernel_ids - unborn:
            self._bury(link)
            self._sweep()
            self._reactor.call_later(_SWEEP_AGAIN, self._sweep)
        for kernel_id in self._endings.of(link):
            self._endings.finish(kernel_id)

    def _bury(self, link: FamilyLink) -> None:
        # Nobody may be told that the kernel lives, so there is no going on until it is buried.
        # (An adopted warden's status goes to somebody else.)
        patience = 0.0 if link.adopted else _EXIT_STATUS_PATIENCE
        deadline = time.monotonic() + patience
        while self._exits.status(link.pid) is None and time.monotonic() < deadline:
            self._nursery.poll()
            self._exits.reap()
            time.sleep(0.001)
        cause = decisions.warden_cause(self._exits.status(link.pid))
        for kernel_id in list(link.kernel_ids):
            known = self._kernels.registry.kernels.get(kernel_id)
            if link.adopted and known is not None and known.get("profile", "open") != "open":
                self._take_down(kernel_id)  # if it is the first of its family
            self._obituaries.write(known, cause, latest=self._callers.settings)
            self._kernels.ended(kernel_id, cause)
            remove_workspace(self._home, kernel_id)

    def _take_down(self, sandbox: str) -> None:
        """The walls of a family whose warden was killed: its control group, what is in files."""
        from kernelbox.walls import cgroups

        hierarchy = cgroups.find()
        if not isinstance(hierarchy, str):
            group = cgroups.Group(hierarchy, sandbox)
            with contextlib.suppress(cgroups.GroupFailed, OSError):
                group.kill(patience=_TAKE_DOWN)
                group.remove(patience=_TAKE_DOWN)
        remove_workspace(self._home, sandbox)

    def _sweep(self) -> None:
        """What user code left running, when stub and warden were both killed, is ours by now."""
        wardens = {link.pid for link in self._families if not link.closed}
        if 0 in wardens:
            return  # one is just being forked, and is not known by its pid yet
        for pid in linux.children(os.getpid()):
            if pid not in wardens | self._exits.roots:
                linux.kill_descendants(pid)
                linux.send_signal([pid], signal.SIGKILL)
