"""When the keeper ends itself, and how: with nothing to keep, or because its time is over."""

from __future__ import annotations

import os
import time

from kernelbox.keeper.beginnings import Beginnings
from kernelbox.keeper.callers import Callers
from kernelbox.keeper.claim import Claim
from kernelbox.keeper.destruction import Destruction
from kernelbox.keeper.endings import Endings
from kernelbox.keeper.home import Home, vacate
from kernelbox.keeper.nursery import Nursery
from kernelbox.keeper.registry import Registry
from kernelbox.reactor import Reactor, Timer

_FIRST_LOOK = 1.0
_LOOK_AT_LEAST_EVERY, _LOOK_AT_MOST_EVERY = 5.0, 0.05


class Departure:
    """Looks, now and then, whether there is a reason to stay."""

    def __init__(
        self,
        reactor: Reactor,
        home: Home,
        *,
        claim: Claim,
        callers: Callers,
        registry: Registry,
        nursery: Nursery,
        beginnings: Beginnings,
        endings: Endings,
        destruction: Destruction,
    ) -> None:
        self._reactor = reactor
        self._home = home
        self._claim = claim
        self._callers = callers
        self._registry = registry
        self._nursery = nursery
        self._beginnings = beginnings
        self._endings = endings
        self._destruction = destruction
        self._closing = False
        self._timer: Timer | None = None

    def watch(self) -> None:
        """From now on; with the memory store, over the process that the home belongs to as well."""
        self._look_in(_FIRST_LOOK)
        if self._home.owner:
            self._watch_owner(self._home.owner)

    def leave(self) -> None:
        """At once; every family lives on."""
        nothing_to_keep = not self._registry.kernels and not self._beginnings
        self._nursery.close(at_once=nothing_to_keep)
        if not self._claim.lost:
            # Saved before the address is free: the next keeper reads and writes it too.
            self._registry.save()
            self._claim.give_up()
            # One that is just coming up is found by its socket, by the keeper that takes over.
            if nothing_to_keep:
                vacate(self._home)
        self._reactor.stop()

    def _consider(self) -> None:
        """With nothing to keep and nobody asking, a keeper is only a process too many."""
        quiet = time.monotonic() - self._callers.asked_at
        # If the folder was removed, neither we nor our kernels can be found ever again.
        self._closing = self._closing or self._claim.lost
        linger = 0.0 if self._closing else self._callers.settings.keeper_linger
        if self._closing:
            self._end_kernels()
        busy = self._registry.kernels or self._beginnings or self._endings
        if not busy and quiet >= linger:
            self.leave()
            return
        wait = min(linger if busy else linger - quiet, _LOOK_AT_LEAST_EVERY)
        self._look_in(max(_LOOK_AT_MOST_EVERY, wait))

    def _look_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._reactor.call_later(seconds, self._consider)

    def _end_kernels(self) -> None:
        """Those that are just being made follow when they are there: we look again and again."""
        for record in list(self._registry.kernels.values()):
            if record["kernel_id"] not in self._endings:
                self._destruction.end(record, lambda _: None)

    def _watch_owner(self, pid: int) -> None:
        """Memory store: kernels end with the process that made them, however it ends."""
        try:
            owner = os.pidfd_open(pid)
        except ProcessLookupError:
            self._owner_ended(None)
        else:
            self._reactor.watch(owner, lambda: self._owner_ended(owner))

    def _owner_ended(self, owner: int | None) -> None:
        if owner is not None:
            self._reactor.forget(owner)
        self._closing = True
        self._look_in(0)
