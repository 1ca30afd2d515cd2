"""When the registry is written: once for many changes, and never into a home of another's."""

from __future__ import annotations

from kernelbox.keeper.claim import Claim
from kernelbox.keeper.registry import Registry
from kernelbox.reactor import Reactor, Timer

_SOON = 0.008
_AGAIN = 5.0


class Scribe:
    """Writes the registry."""

    def __init__(self, reactor: Reactor, registry: Registry, claim: Claim) -> None:
        self._reactor = reactor
        self._registry = registry
        self._claim = claim
        self._timer: Timer | None = None

    def soon(self) -> None:
        """In a moment: once for many changes, and not while a new kernel and its caller want the
        processor. Should we be killed before, the kernel is found by its socket."""
        if self._timer is None:
            self._timer = self._reactor.call_later(_SOON, self.now)

    def now(self) -> None:
        self._timer = None
        if not self._claim.lost:
            self._registry.save()
        if self._registry.problem:
            # A disk that is full now may have room later.
            self._timer = self._reactor.call_later(_AGAIN, self.now)
