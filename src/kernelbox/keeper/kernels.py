"""The kernels there are: found by name, added when they are there, struck off when they end."""

from __future__ import annotations

from collections.abc import Iterable

from kernelbox.config import Settings
from kernelbox.errors import KernelLost, KernelNotFound
from kernelbox.keeper import decisions
from kernelbox.keeper.endings import Endings
from kernelbox.keeper.families import Families, FamilyLink
from kernelbox.keeper.home import Home, remove_files
from kernelbox.keeper.idleness import Idleness
from kernelbox.keeper.obituaries import Obituaries
from kernelbox.keeper.registry import Record, Registry
from kernelbox.keeper.scribe import Scribe


class Kernels:
    """All that is known of each kernel, kept in step: its record, its family, its limits."""

    def __init__(
        self,
        home: Home,
        registry: Registry,
        *,
        families: Families,
        endings: Endings,
        idleness: Idleness,
        obituaries: Obituaries,
        scribe: Scribe,
    ) -> None:
        self.registry = registry
        self._home = home
        self._families = families
        self._endings = endings
        self._idleness = idleness
        self._obituaries = obituaries
        self._scribe = scribe

    def find(self, wanted: str) -> Record | None:
        """A kernel by id or name; one that is being destroyed does not count any more."""
        found = self.registry.find(wanted, besides=self._endings)
        link = self._families.of(found["kernel_id"]) if found else None
        if link is not None:
            link.poll()  # its warden may have told of a change that we have not read yet
            found = self.registry.find(wanted, besides=self._endings)
        return found

    def known(self, wanted: str) -> Record:
        """The same for who counts on it; an error says what became of it, or what there is."""
        record = self.find(wanted)
        if record is not None:
            return record
        grave = self.registry.grave(wanted)
        if grave is not None:
            raise KernelLost(
                f"kernel {grave.name!r} {decisions.loss_words(grave)}. Its state is lost. "
                f"get_or_create({grave.name!r}) makes a new one.",
                kernel_id=grave.kernel_id,
                name=grave.name,
                cause=grave.cause,
                ended_at=grave.ended_at,
                epoch=grave.epoch,
            )
        raise KernelNotFound(
            decisions.not_found_words(wanted, [r["name"] for r in self.registry.kernels.values()])
        )

    def add(self, record: Record, link: FamilyLink, *, settings: Settings) -> Record:
        """A kernel is there, for a caller with these settings; its record as the caller gets it."""
        kernel_id = record["kernel_id"]
        if self.registry.set_aside:
            record["notes"] = [*record.get("notes", ()), self.registry.set_aside]
            self.registry.set_aside = None
        self.registry.forget_graves(record["name"])
        self.registry.add(record)
        self._families.house(kernel_id, link)
        self._obituaries.remember(kernel_id, settings)
        self.wanted(kernel_id, settings)
        self._scribe.soon()
        return record

    def adopt(self, records: Iterable[Record], link: FamilyLink, *, idle_limit: float) -> None:
        """The kernels of a family that an earlier keeper has left."""
        for record in records:
            self._families.house(record["kernel_id"], link)
            self.registry.add(record)
        self._idleness.limit(*link.kernel_ids, seconds=idle_limit)

    def wanted(self, kernel_id: str, settings: Settings) -> None:
        """Somebody has asked for a kernel: how long it may be idle is for the latest to say."""
        self._idleness.limit(kernel_id, seconds=settings.kernel_idle_timeout)

    def changed(self, record: Record, *, minor: bool = False) -> None:
        """What a warden says of its kernel now. What it is doing is no reason to write a file."""
        if record["kernel_id"] in self.registry.kernels:
            self.registry.add(record)
            if not minor:
                self._scribe.soon()

    def ended(self, kernel_id: str, cause: str, epoch: int | None = None) -> None:
        """A kernel is gone; unless that was wanted, it is remembered for whoever comes back."""
        self._families.vacate(kernel_id)
        self._idleness.forget(kernel_id)
        self._obituaries.forget(kernel_id)
        if kernel_id in self.registry.kernels:
            remove_files(self._home, kernel_id)  # a warden that was killed could not
        if kernel_id in self._endings or cause == "destroyed":
            self.registry.remove(kernel_id)
        else:
            self.registry.bury(kernel_id, cause=cause, epoch=epoch)
        self._scribe.soon()

    def forget(self, wanted: str) -> None:
        """What died by itself is gone: nobody needs to hear of it any more."""
        grave = self.registry.grave(wanted)
        if grave is not None:
            self.registry.forget_graves(grave.name)
            self._scribe.soon()
