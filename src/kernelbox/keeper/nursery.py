"""Who provides families: a root per kind of kernel, and what is made before anybody asks for it."""

from __future__ import annotations

import time
import uuid

from kernelbox.errors import BoxError, StartupFailed
from kernelbox.keeper import decisions
from kernelbox.keeper.exits import Exits
from kernelbox.keeper.families import Answer, Families, FamilyLink
from kernelbox.keeper.home import Home, remove_files
from kernelbox.keeper.rootprocess import RootProcess
from kernelbox.keeper.roots import Build, Root, RootKey, key_for, key_of
from kernelbox.reactor import Reactor
from kernelbox.wire import Frame

_REFILL_DELAY = 0.15
_GVISOR_DELAY = 1.0
_MOST_ROOTS = 4


class Nursery:
    """The roots, and with each of them its spares and the next sandbox."""

    def __init__(self, reactor: Reactor, home: Home, *, families: Families, exits: Exits) -> None:
        self._reactor = reactor
        self._home = home
        self._families = families
        self._exits = exits
        self._roots: dict[RootKey, Root] = {}
        self._last_words = ""  # of the root that ended last

    @property
    def warm(self) -> int:
        """How many spares are handed out without waiting for their answer."""
        return sum(spare.warm for root in self._roots.values() for spare in root.spares)

    def adopt(self, process: RootProcess, build: Build) -> None:
        """A root that was started ahead, for who is going to ask for a kernel first."""
        self._keep(key_of(process.facts), build, process)

    def take(self, request: Frame, build: Build, *, spares: int) -> tuple[FamilyLink, list[str]]:
        """A family for who asks, and what is to be noted about it. If ``spares`` are wanted, what
        was taken is made again when the caller's first cell has had the processor."""
        key = key_for(request)
        root = self._root(key, build)
        root.used_at = time.monotonic()
        if profile := request.get("profile"):
            walls = decisions.spare_for(request)
            link = root.take_spare(walls)
            if spares and decisions.can_be_ready(profile):
                self._plan_sandbox(key, walls, decisions.sandbox_like(request))
            if link is None:
                kind = decisions.kind_of_family(profile)
                link = root.fork_family(self._families.connect, kind)
            return link, []
        link = root.take_spare() or root.fork_family(self._families.connect)
        if spares:

            def refill() -> None:
                self._refill(key, spares)

            if root.settled:
                self._reactor.call_later(_REFILL_DELAY, refill)
            else:
                root.when_settled = refill
        return link, decisions.fresh_start_notes(key, self._roots)

    def forget(self, link: FamilyLink) -> bool:
        """A family is gone; whether it was a spare, that nobody can have any more."""
        for root in self._roots.values():
            if link in root.spares:
                root.spares.remove(link)
                return True
        return False

    def poll(self) -> None:
        """Hear now what roots have to say about wardens that ended."""
        for root in list(self._roots.values()):
            root.poll()

    def last_words_for(self, request: Frame) -> str:
        """What the root that a request needs had to say, for the error message."""
        root = self._roots.get(key_for(request))
        return root.last_words() if root else self._last_words

    def look_after_root(self, request: Frame, patience: float, *, otherwise: str) -> str:
        """Somebody has waited so long for a fork, in vain: what to tell them, ``otherwise`` if it
        is not for the root. One that is stuck is ended, or everybody after this one would wait for
        it, too."""
        root = self._roots.get(key_for(request))
        if root is None:
            return otherwise
        if not root.stuck(patience):
            return f"the interpreter it is forked from is still warming up; {otherwise}"
        root.abort()
        self._drop(root)
        return (
            "the interpreter it is forked from did not answer, and was ended; try again. "
            f"What it was doing is at the end of {root.log_path}"
        )

    def close(self, *, at_once: bool) -> None:
        """End all roots and spares; families that are somebody's live on. ``at_once``: also what a
        root has been asked for, and does not know of yet."""
        for root in list(self._roots.values()):
            self._drop(root)
            if at_once:
                root.kill()

    # -- roots ------------------------------------------------------------------------------

    def _root(self, key: RootKey, build: Build) -> Root:
        root = self._roots.get(key)
        if root is not None and root.outdated(build):
            self._drop(root)
            root = None
        if root is None:
            idle = [other for other in self._roots.values() if not other.busy]
            if len(self._roots) >= _MOST_ROOTS and idle:
                self._drop(min(idle, key=lambda other: other.used_at))
            try:
                root = self._keep(key, build)
            except OSError as error:
                raise StartupFailed(f"{key.executable!r} cannot be started: {error}") from None
        return root

    def _keep(self, key: RootKey, build: Build, process: RootProcess | None = None) -> Root:
        root = self._roots[key] = Root(
            self._reactor,
            key,
            build=build,
            rundir=self._home.rundir,
            on_fork=self._exits.started,
            on_exit=self._exits.told,
            on_close=self._ended,
            process=process,
        )
        self._exits.roots.add(root.pid)
        return root

    def _drop(self, root: Root) -> None:
        self._roots.pop(root.key, None)
        self._dismiss_spares(root)
        root.close()

    def _ended(self, root: Root) -> None:
        self._last_words = root.last_words()
        if self._roots.get(root.key) is root:
            del self._roots[root.key]
        self._dismiss_spares(root)

    def _dismiss_spares(self, root: Root) -> None:
        for spare in root.spares:
            self._dismiss(spare)
        root.spares = []

    def _dismiss(self, spare: FamilyLink) -> None:
        """One that is killed, or was never forked, cannot clean up itself."""
        spare.close()
        self._families.discard(spare)
        if spare.reserved:
            remove_files(self._home, spare.reserved)

    # -- made ahead -------------------------------------------------------------------------

    def _refill(self, key: RootKey, spares: int) -> None:
        """Make spares again, one at a time, so that a user's first cell has the processor."""
        root = self._roots.get(key)
        open_ones = () if root is None else [spare for spare in root.spares if not spare.walls]
        if root is None or len(open_ones) >= spares:
            return
        try:
            link = root.fork_family(self._families.connect)
        except OSError:
            return  # without descriptors to spare, there are no spares
        request = self._reserve(link)

        def primed(content: Answer) -> None:
            if not isinstance(content, BoxError):
                link.warm, link.notes = True, list(content["notes"])

        link.ask(request, primed)
        root.spares.append(link)
        if len(open_ones) + 1 < spares:
            self._reactor.call_later(_REFILL_DELAY / 3, lambda: self._refill(key, spares))

    def _plan_sandbox(self, key: RootKey, walls: str, like: Frame) -> None:
        delay = _GVISOR_DELAY if like["profile"]["driver"] == "gvisor" else _REFILL_DELAY
        self._reactor.call_later(delay, lambda: self._prepare_sandbox(key, walls, like))

    def _prepare_sandbox(self, key: RootKey, walls: str, like: Frame) -> None:
        """One ahead, of the kind that was asked for last. (In gVisor, that takes a second and 70
        MB, elsewhere 20 ms and 13 MB.)"""
        root = self._roots.get(key)
        if root is None or any(spare.walls == walls for spare in root.spares):
            return
        if not root.settled:
            self._plan_sandbox(key, walls, like)  # later it shares more with the root
            return
        for other in [spare for spare in root.spares if spare.walls]:
            root.spares.remove(other)
            self._dismiss(other)
        kind = decisions.kind_of_family(like["profile"])
        try:
            link = root.fork_family(self._families.connect, kind)
        except OSError:
            return  # without descriptors to spare, there are none ahead
        link.walls = walls
        request = self._reserve(link)
        link.sandbox = link.reserved
        own = {"kernel_id": link.reserved, "address": request["address"]}
        link.ask({**request, "walls": {**like, **own}}, _ignore)
        root.spares.append(link)

    def _reserve(self, link: FamilyLink) -> Frame:
        """For a spare: the id that its kernel will have, and what goes with that."""
        link.reserved = str(uuid.uuid4())
        return {
            "op": "prime",
            "address": self._home.kernel_address(link.reserved),
            "draft": self._home.draft(link.reserved),
            "connection_file": self._home.connection_file(link.reserved),
            "spool": self._home.spool(link.reserved),
        }


def _ignore(content: object) -> None:
    """What a sandbox says that is nobody's yet. If it fails it ends, and nobody takes it."""
