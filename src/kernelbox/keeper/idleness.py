"""Idle kernels: when to ask which warden whether one has been unused for as long as is allowed."""

from __future__ import annotations

import time
from functools import partial

from kernelbox.errors import BoxError
from kernelbox.keeper import decisions
from kernelbox.keeper.endings import Endings
from kernelbox.keeper.families import Answer, Families
from kernelbox.keeper.registry import Registry
from kernelbox.reactor import Reactor, Timer

_SLACK = 0.05


class Idleness:
    """Knows each kernel's limit, and asks when it may have passed. The warden decides."""

    def __init__(
        self, reactor: Reactor, registry: Registry, *, families: Families, endings: Endings
    ) -> None:
        self._reactor = reactor
        self._registry = registry
        self._families = families
        self._endings = endings
        self._limits: dict[str, float] = {}
        self._excused: dict[str, float] = {}  # until when not to ask again who was busy
        self._timer: Timer | None = None

    def limit(self, *kernel_ids: str, seconds: float) -> None:
        """How long kernels may be idle from now on; 0: for ever."""
        self._limits.update(dict.fromkeys(kernel_ids, seconds))
        self._plan()

    def forget(self, kernel_id: str) -> None:
        self._limits.pop(kernel_id, None)
        self._excused.pop(kernel_id, None)

    def _plan(self) -> None:
        delay = decisions.next_idle_check(self._registry.kernels, self._limits, time.time())
        if delay is None:
            return
        if self._timer is not None:
            if self._timer.due <= time.monotonic() + delay + _SLACK:
                # To look too early is harmless. A new plan for each call would leave as many
                # cancelled ones behind, for half an hour.
                return
            self._timer.cancel()
        self._timer = self._reactor.call_later(delay, self._check)

    def _check(self) -> None:
        self._timer = None
        now = time.time()
        for kernel_id in decisions.maybe_idle(self._registry.kernels, self._limits, now):
            link = self._families.of(kernel_id)
            if link is None or kernel_id in self._endings or now < self._excused.get(kernel_id, 0):
                continue
            question = {"op": "retire", "kernel_id": kernel_id, "idle": self._limits[kernel_id]}
            link.ask(question, partial(self._answered, kernel_id))
        self._timer = self._reactor.call_later(decisions.idle_period(self._limits), self._check)

    def _answered(self, kernel_id: str, content: Answer) -> None:
        record = self._registry.kernels.get(kernel_id)
        if record is None or isinstance(content, BoxError) or content.get("retired"):
            return
        if used := content.get("last_used_at"):
            record["last_used_at"] = used
        else:
            # Something runs there, though nobody has used it: that is no use, and not recorded as
            # one, but a reason not to ask again at once.
            self._excused[kernel_id] = time.time() + self._limits.get(kernel_id, 0) / 2
