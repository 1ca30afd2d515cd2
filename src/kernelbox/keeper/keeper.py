"""The keeper itself: its parts, who knows whom, and what clients and families have to say."""

from __future__ import annotations

import os
import socket

from kernelbox.keeper.adoption import adopt
from kernelbox.keeper.beginnings import Beginnings
from kernelbox.keeper.branching import Branching
from kernelbox.keeper.callers import Callers, Request
from kernelbox.keeper.census import Census
from kernelbox.keeper.claim import Claim
from kernelbox.keeper.creation import Creation
from kernelbox.keeper.departure import Departure
from kernelbox.keeper.destruction import Destruction
from kernelbox.keeper.endings import Endings
from kernelbox.keeper.exits import Exits
from kernelbox.keeper.families import Families, FamilyLink
from kernelbox.keeper.home import Home
from kernelbox.keeper.idleness import Idleness
from kernelbox.keeper.kernels import Kernels
from kernelbox.keeper.nursery import Nursery
from kernelbox.keeper.obituaries import Obituaries
from kernelbox.keeper.reception import Handlers, Reception
from kernelbox.keeper.registry import Registry
from kernelbox.keeper.rootprocess import RootProcess
from kernelbox.keeper.scribe import Scribe
from kernelbox.keeper.undertaker import Undertaker
from kernelbox.reactor import Reactor
from kernelbox.wire import PROTOCOL, Frame, build_id


class Keeper:
    """One per home. Everything happens in one thread, so nothing here needs a lock.

    Each part knows only those that are made before it::

        Families, Exits ── Nursery          who runs kernels, and how processes ended
        Registry, Claim ── Scribe           what is written, and when
        Beginnings, Endings, Idleness       what is under way
          └── Kernels                       what there is
                ├── Undertaker, Census
                └── Destruction ── Branching ── Creation
                      └── Departure         why not to stay
    """

    def __init__(
        self,
        home: Home,
        listener: socket.socket,
        registry: Registry,
        first_root: RootProcess | None = None,
    ) -> None:
        """``first_root`` was started ahead, for who is going to ask for a kernel first."""
        reactor = self._reactor = Reactor()
        self._home = home
        self._build = build_id()
        claim = Claim(home)
        callers = Callers()
        beginnings, endings, obituaries = Beginnings(), Endings(), Obituaries()
        exits = Exits(reactor)
        families = self._families = Families(
            reactor, on_event=self._family_said, on_close=self._family_ended
        )
        self._nursery = Nursery(reactor, home, families=families, exits=exits)
        if first_root is not None:
            self._nursery.adopt(first_root, self._build)
        self._scribe = Scribe(reactor, registry, claim)
        self._kernels = Kernels(
            home,
            registry,
            families=families,
            endings=endings,
            idleness=Idleness(reactor, registry, families=families, endings=endings),
            obituaries=obituaries,
            scribe=self._scribe,
        )
        self._undertaker = Undertaker(
            reactor,
            home,
            callers=callers,
            kernels=self._kernels,
            families=families,
            nursery=self._nursery,
            exits=exits,
            endings=endings,
            obituaries=obituaries,
        )
        self._census = Census(reactor, kernels=self._kernels, families=families)
        self._destruction = Destruction(
            reactor,
            kernels=self._kernels,
            families=families,
            beginnings=beginnings,
            endings=endings,
        )
        self._branching = Branching(
            home,
            kernels=self._kernels,
            families=families,
            beginnings=beginnings,
            destruction=self._destruction,
        )
        self._creation = Creation(
            reactor,
            home,
            build=self._build,
            kernels=self._kernels,
            families=families,
            nursery=self._nursery,
            beginnings=beginnings,
            branching=self._branching,
        )
        self._departure = Departure(
            reactor,
            home,
            claim=claim,
            callers=callers,
            registry=registry,
            nursery=self._nursery,
            beginnings=beginnings,
            endings=endings,
            destruction=self._destruction,
        )
        self._reception = Reception(reactor, listener, callers=callers, handlers=self._handlers())

    def run(self) -> None:
        # Nobody is answered before it is known what there is.
        adopt(self._reactor, self._home, families=self._families, kernels=self._kernels)
        self._reception.open()
        self._scribe.now()
        self._departure.watch()
        self._reactor.run()

    # -- what clients ask -------------------------------------------------------------------

    def _handlers(self) -> Handlers:
        return {
            "hello": self._greet,
            "hand_over": self._hand_over,
            "get_or_create": self._creation.get_or_create,
            "branch": self._branching.branch,
            "find": self._find,
            "list": self._census.take,
            "destroy": self._destruction.destroy,
            "wipe": self._destruction.wipe,
        }

    def _greet(self, request: Request) -> None:
        request.reply(
            {
                "build": self._build,
                "protocol": PROTOCOL,
                "pid": os.getpid(),
                "warm": self._nursery.warm,
            }
        )

    def _hand_over(self, request: Request) -> None:
        """A newer build takes over: leave, and let every family live."""
        request.reply({})
        self._reactor.call_soon(self._departure.leave)

    def _find(self, request: Request) -> None:
        request.reply({"record": self._kernels.known(str(request.frame["kernel"]))})

    # -- what families say ------------------------------------------------------------------

    def _family_said(self, link: FamilyLink, frame: Frame) -> None:
        match frame["event"]:
            case "changed":
                self._kernels.changed(frame["record"], minor=bool(frame.get("minor")))
            case "ended":
                self._undertaker.kernel_ended(link, frame)

    def _family_ended(self, link: FamilyLink) -> None:
        self._undertaker.family_ended(link)
