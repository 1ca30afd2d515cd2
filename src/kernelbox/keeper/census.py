"""The list of kernels, as far as is known or with a fresh word from each of them."""

from __future__ import annotations

from functools import partial

from kernelbox.errors import BoxError, KernelNotFound
from kernelbox.keeper.callers import Request
from kernelbox.keeper.families import Answer, Families
from kernelbox.keeper.kernels import Kernels
from kernelbox.keeper.registry import Record
from kernelbox.reactor import Reactor

_PATIENCE = 5.0


class Census:
    """Lists kernels by age."""

    def __init__(self, reactor: Reactor, *, kernels: Kernels, families: Families) -> None:
        self._reactor = reactor
        self._registry = kernels.registry
        self._families = families

    def take(self, request: Request) -> None:
        for family in self._families:
            family.poll()
        known = self._registry.kernels.values()
        records = sorted(known, key=lambda record: record["created_at"])
        if request.frame.get("refresh") and records:
            self._refresh(records, request)
        else:
            request.reply({"kernels": records, "problem": self._registry.problem})

    def _refresh(self, records: list[Record], request: Request) -> None:
        """Ask each: who does not answer in time is unreachable, who has ended is left out."""
        fresh: dict[str, Record] = {}

        def finish() -> None:
            timer.cancel()
            live = self._registry.kernels
            live.update({key: record for key, record in fresh.items() if key in live})
            listed = [
                fresh.get(r["kernel_id"], {**r, "status": "unreachable"})
                for r in records
                if r["kernel_id"] in live
            ]
            request.reply({"kernels": listed, "problem": self._registry.problem})

        def described(kernel_id: str, content: Answer) -> None:
            waiting.discard(kernel_id)
            if not isinstance(content, BoxError):
                fresh[kernel_id] = content["record"]
            if not waiting and timer.callback is not None:
                finish()

        timer = self._reactor.call_later(_PATIENCE, finish)
        waiting = {record["kernel_id"] for record in records}
        for kernel_id in list(waiting):
            link = self._families.of(kernel_id)
            if link is None:
                described(kernel_id, KernelNotFound("gone"))
            else:
                question = {"op": "describe", "kernel_id": kernel_id}
                link.ask(question, partial(described, kernel_id))
