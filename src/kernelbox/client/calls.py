"""How the keeper and the kernels of a home are reached; every call of a Box goes through here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from kernelbox.client.conversation import ConnectionLost
from kernelbox.client.effects import Ask, Call, Pause, StartKeeper
from kernelbox.client.meaning import (
    AsyncOnInput,
    KernelLike,
    OnInput,
    check_meant,
    wanted_kernel,
)
from kernelbox.config import Settings
from kernelbox.errors import BoxError, KeeperUnavailable, KernelLost, KernelNotFound
from kernelbox.keeper.home import Home, locate
from kernelbox.keeper.rootprocess import facts_for
from kernelbox.result import KernelRecord
from kernelbox.wire import PROTOCOL, Frame, build_id

START_MARGIN = 10.0
"""Seconds: the other side gives up first, and says why."""
NOTICE_TRIES = 40
NOTICE_PAUSE = 0.025
"""We may notice that a kernel has ended before its keeper does: so often, and so long, we wait."""
_KEEPER_TRIES = 12


class Calls:
    """The calls of one Box: settings, the home they mean, and the addresses known so far.

    ``on_disconnect`` is what becomes of its cells, unless somebody says otherwise, when it is gone.
    """

    def __init__(self, settings: Settings, *, on_disconnect: str = "continue") -> None:
        self.settings = settings.check()
        self.settings_told = self.settings.to_wire()
        self.on_disconnect = on_disconnect
        self._places: dict[int, tuple[Home, dict[str, str]]] = {}
        self._greeted = False

    @property
    def home(self) -> Home:
        return self._place[0]

    @property
    def _addresses(self) -> dict[str, str]:
        return self._place[1]

    @property
    def _place(self) -> tuple[Home, dict[str, str]]:
        # With the memory store the home is this process's own; a forked child has another.
        pid = os.getpid() if self.settings.store_backend == "memory" else 0
        place = self._places.get(pid)
        if place is None:
            place = self._places[pid] = (locate(self.settings), {})
        return place

    # -- the keeper -------------------------------------------------------------------------

    def keeper(self, request: Frame, *, patience: float | None = 60.0) -> Call[Frame]:
        """Ask the keeper, starting it if need be. Its requests can all be repeated safely."""
        request = {**request, "settings": self.settings_told}
        last = "it did not answer"
        for tried in range(_KEEPER_TRIES):
            try:
                if not self._greeted:
                    yield from self._greet()
                reply: Frame = yield Ask(self.home.keeper_address, request, patience)
                return reply
            except ConnectionLost as error:
                last = str(error)
                self._greeted = False
                if error.late:
                    break
                first = _root_for(request) if request["op"] == "get_or_create" else None
                yield StartKeeper(self.home, first)
                yield Pause(0.01 * tried)  # keepers that hand over to each other need a moment
        raise KeeperUnavailable(
            f"the keeper of {self.home.runtime_dir!r} cannot be reached: {last}. "
            f"Its log is {os.path.join(self.home.rundir, 'keeper.log')!r}."
        )

    def _greet(self) -> Call[None]:
        """An older keeper hands over to our build; kernels do not notice."""
        mine = build_id()
        greeting: Frame = yield Ask(
            self.home.keeper_address, {"op": "hello", "build": mine, "protocol": PROTOCOL}, 30.0
        )
        if greeting.get("build", mine) < mine and not self.home.owner:
            yield Ask(self.home.keeper_address, {"op": "hand_over"}, 30.0)
            raise ConnectionLost("an older keeper handed over", connected=False)
        self._greeted = True

    def keeper_on(
        self, kernel: KernelLike, request: Frame, *, patience: float | None = 60.0
    ) -> Call[Frame]:
        """Ask the keeper about a kernel. The keeper is told a record's id only, so that no other
        kernel of the same name is taken for it; people know it by its name."""
        request = {**request, "kernel": wanted_kernel(kernel)}
        try:
            return (yield from self.keeper(request, patience=patience))
        except KernelNotFound as error:
            if isinstance(error, KernelLost) or not isinstance(kernel, KernelRecord):
                raise
            raise KernelNotFound(
                f"no kernel named {kernel.name!r} with this record's id is here any more: it was "
                f"destroyed or replaced, or its home is another than {self.home.runtime_dir!r}. "
                f"get_or_create({kernel.name!r}) gives the one of that name, new if need be.",
                kernel_id=kernel.kernel_id,
                name=kernel.name,
            ) from None

    def find(self, kernel: KernelLike) -> Call[KernelRecord]:
        reply = yield from self.keeper_on(kernel, {"op": "find"})
        return self.remember(reply["record"])

    # -- a kernel ---------------------------------------------------------------------------

    def kernel(
        self, kernel: KernelLike, request: Frame, *, patience: float | None = 60.0
    ) -> Call[Frame]:
        """Ask a kernel something; if it ends meanwhile, the error says why."""
        if "execution_id" in request:
            check_meant(request["execution_id"])
        try:
            return (yield from self.converse(kernel, request, patience=patience))
        except ConnectionLost as error:
            if not error.late:
                for _ in range(NOTICE_TRIES):
                    yield from self.find(kernel)  # raises what the keeper knows of its end
                    yield Pause(NOTICE_PAUSE)
            wanted = kernel.name if isinstance(kernel, KernelRecord) else kernel
            raise BoxError(
                f"kernel {wanted!r} cannot be reached: {error}. Ask again; "
                f"destroy({wanted!r}) ends it whatever state it is in."
            ) from None

    def converse(
        self,
        kernel: KernelLike,
        request: Frame,
        *,
        patience: float | None,
        cancel_on_interrupt: bool = False,
        on_input: OnInput | AsyncOnInput | None = None,
    ) -> Call[Frame]:
        """Ask a kernel's warden. A stale address is looked up again; nothing is sent twice."""
        address = yield from self.address(kernel)
        for _ in range(NOTICE_TRIES):
            try:
                content: Frame = yield Ask(
                    address, request, patience, cancel_on_interrupt, on_input
                )
                return content
            except ConnectionLost as error:
                if error.connected:
                    raise
                last = error
            address = yield from self.fresh_address(kernel, stale=address)
        raise last

    def address(self, kernel: KernelLike) -> Call[str]:
        """Where a kernel listens, from memory if possible."""
        if isinstance(kernel, KernelRecord) and kernel.address:
            return kernel.address
        known = self._addresses.get(wanted_kernel(kernel))
        if known is not None:
            return known
        return (yield from self.fresh_address(kernel))

    def fresh_address(self, kernel: KernelLike, *, stale: str = "") -> Call[str]:
        """Where a kernel listens, as its keeper says; nobody listens at ``stale`` any more."""
        self.forget(kernel)
        record = yield from self.find(kernel)
        if record.address == stale:
            yield Pause(NOTICE_PAUSE)  # it has just ended; the keeper is about to notice
        return record.address

    def remember(self, values: Mapping[str, Any]) -> KernelRecord:
        """A record that the keeper or a kernel sent; where it listens is known from now on."""
        record = KernelRecord.from_wire(values)
        self._addresses[record.kernel_id] = self._addresses[record.name] = record.address
        return record

    def forget(self, kernel: KernelLike) -> None:
        self._addresses.pop(wanted_kernel(kernel), None)

    def forget_all(self) -> None:
        self._addresses.clear()


def _root_for(request: Frame) -> Frame | None:
    """What the keeper is going to need for this; None: nothing, or it cannot be known."""
    settings = request["settings"]
    if request.get("template") or settings["kernel_type"] != "python3":
        return None
    return facts_for(
        request["executable"], request["package_parent"], request["environ"], settings["preload"]
    )
