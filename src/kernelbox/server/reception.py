"""Reception: what all requests share, and the kernels as each guest may see them.

Where there are tenants, a kernel is called ``tenant::name`` in the home. A guest never hears of the
prefix, nor of anybody else's kernels: names get it on the way in and lose it on the way out. And a
tenant's kernel has walls: one without is not theirs, whatever it is called.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import HTTPConnection

from kernelbox.config import Settings
from kernelbox.errors import BoxError, KernelNotFound, Unsupported
from kernelbox.keeper.home import locate
from kernelbox.result import KernelRecord
from kernelbox.server.errors import Refused, content_of
from kernelbox.server.folder import Start
from kernelbox.server.jupyter.lines import Lines
from kernelbox.server.servicebox import ServiceBox
from kernelbox.server.settings import ServerSettings
from kernelbox.server.underway import Underway, going_away

if TYPE_CHECKING:
    from kernelbox.server.tenancy import Tenancy
    from kernelbox.walls.profiles import Profile

_BETWEEN = "::"
_ID = re.compile(r"[0-9a-f]{8,}(-[0-9a-f]+)*")
_NOWHERE = "/"
"""Where a tenant's kernel starts on the host; its walls do not show it."""


class Reception:
    """One per app: the box, what runs, and what is being made."""

    def __init__(
        self, settings: Settings, server: ServerSettings, *, tenancy: Tenancy | None = None
    ) -> None:
        """``tenancy``: which kernels tenants may have; without it, they get none."""
        self.settings = settings
        self.server = server
        self.tenancy = tenancy
        self.box = ServiceBox(settings)
        self.lines = Lines()
        self.sessions: dict[str, dict[str, Any]] = {}
        """Which document uses which kernel, as Jupyter clients told us."""
        self.env: Mapping[str, str] = {}
        """What every kernel has in its environment besides ours."""
        self.started_at = time.time()
        self.underway: set[Underway] = set()
        self.ending = False
        """The service was told to end: what runs has some time left, and nothing else begins."""
        self.making: set[str] = set()
        self._turns: dict[str | None, asyncio.Semaphore] = {}
        self.chosen_ids: dict[tuple[str, str], str] = {}
        """Under which id a kernel runs what came with a key, where the client chose that id."""
        self.starts: dict[tuple[str, int], Start] = {}
        """Where kernels, by id and epoch, were when their files were first asked for."""

    @property
    def home(self) -> str:
        return os.path.dirname(self.settings.registry_path)

    @property
    def own_places(self) -> tuple[str, ...]:
        """Folders and files that are nobody's business, though they may lie in a kernel's folder:
        keys, sockets, what others have saved."""
        home = locate(self.settings)
        key = os.path.join(self.home, "session.key")
        return home.runtime_dir, home.rundir, self.data_dir, self.settings.registry_path, key

    @property
    def secured(self) -> bool:
        """Whether a token is needed."""
        return bool(self.server.api_token or self.server.tokens_file)

    @property
    def data_dir(self) -> str:
        beside = os.path.join(self.home, "server")
        return os.path.abspath(self.server.data_dir or beside)

    async def close(self) -> None:
        await self.lines.close()
        await self.box.close()

    def guest(self, connection: HTTPConnection) -> Guest:
        return Guest(self, connection.scope["state"].get("tenant"))

    async def end_all(self) -> None:
        """Interrupt what clients wait for; what was to go on without them goes on without us."""
        self.ending = True
        underway = list(self.underway)
        for execution in underway:
            if execution.on_disconnect == "continue":
                execution.leave()
        await asyncio.gather(
            *(
                self.box.cancel(execution.kernel, execution.execution_id)
                for execution in underway
                if execution.on_disconnect == "interrupt"
            ),
            return_exceptions=True,
        )

    @contextmanager
    def running(self, kernel: str, execution_id: str, *, on_disconnect: str) -> Iterator[Underway]:
        """Make an execution known while a client waits for it."""
        if self.ending:
            raise going_away()
        execution = Underway(kernel, execution_id, on_disconnect)
        self.underway.add(execution)
        try:
            yield execution
        finally:
            self.underway.discard(execution)

    def turns(self, tenant: str | None) -> asyncio.Semaphore:
        """Who may search now: a search keeps a processor busy, and more at once would only take
        longer. A tenant has one turn, and nobody else waits for it."""
        most = (os.cpu_count() or 1) if tenant is None else 1
        return self._turns.setdefault(tenant, asyncio.Semaphore(most))

    def without_places(self, text: str) -> str:
        """Words of ours without places of this machine, which are no tenant's business."""
        for place in self._places:
            text = text.replace(place, "…")
        return text

    @functools.cached_property
    def _places(self) -> list[str]:
        """The longest first, so that nothing is left of one that is inside of another."""
        from kernelbox.installs.places import cache_root

        cache = cache_root(self.settings.install_cache, os.environ)
        places = {*self.own_places, self.home, cache, os.path.expanduser("~")}
        places.add(self.settings.audit_log or "")
        with suppress(FileNotFoundError):
            places.add(os.getcwd())
        return sorted((place for place in places if len(place) > 1), key=len, reverse=True)


@dataclass(frozen=True, slots=True)
class Guest:
    """Somebody at the reception: a tenant, or, where there are none, anybody."""

    reception: Reception
    tenant: str | None

    @property
    def prefix(self) -> str:
        return "" if self.tenant is None else self.tenant + _BETWEEN

    async def kernel(self, key: str) -> str:
        """What the box knows a guest's kernel by, from the id or the name that they gave."""
        if self.tenant is None:
            return key
        if _ID.fullmatch(key):
            record = await self._found(key)
            if record is not None and self._owns(record):
                return record.kernel_id
        record = await self._found(self.prefix + key)
        if record is not None and not self._owns(record):
            raise KernelNotFound(f"there is no kernel {key[:100]!r} of yours")
        return self.prefix + key

    async def _found(self, wanted: str) -> KernelRecord | None:
        try:
            return await self.reception.box.find(wanted)
        except KernelNotFound:
            return None

    def _owns(self, record: KernelRecord) -> bool:
        """By its name, which has the prefix if it was made here. Somebody with the rights of the
        service may have made one that is called so too, without walls: that is not a tenant's."""
        if self.tenant is None:
            return True
        return record.name.startswith(self.prefix) and record.profile != "open"

    async def records(self) -> list[KernelRecord]:
        """The guest's kernels, as the home calls them."""
        return [each for each in await self.reception.box.list_kernels() if self._owns(each)]

    async def kernels(self, *, refresh: bool = False) -> list[KernelRecord]:
        """The guest's kernels, as the guest calls them."""
        found = await self.reception.box.list_kernels(refresh=refresh)
        return [self.shown(record) for record in found if self._owns(record)]

    def shown(self, record: KernelRecord) -> KernelRecord:
        """A record as the guest may see it: places on this machine are no tenant's business."""
        if self.tenant is not None:
            record.name = record.name.removeprefix(self.prefix)
            record.address = record.connection_file = ""
            record.notes = [self._said(note) for note in record.notes]
        return record

    def record(self, record: KernelRecord) -> dict[str, Any]:
        """A record as JSON."""
        age = max(0.0, time.time() - record.created_at)
        return {**self.shown(record).to_dict(), "age_seconds": round(age, 3)}

    def error(self, error: BoxError) -> dict[str, Any]:
        """An error as the guest may see it."""
        content = content_of(error)
        if self.tenant is not None:
            if type(error) is KernelNotFound:  # its words name the kernels that there are
                content["message"] = "you have no such kernel"
            content["message"] = self._said(content["message"])
            content["details"] = {
                name: self._said(value) if isinstance(value, str) else value
                for name, value in content["details"].items()
            }
        return content

    def _said(self, words: str) -> str:
        return self.reception.without_places(words.replace(self.prefix, ""))

    def key(self, text: str | None) -> str | None:
        """An idempotency key in the guest's own scope."""
        if text is None:
            return None
        return hashlib.sha256(f"{self.prefix}{text}".encode()).hexdigest()

    # -- new kernels --------------------------------------------------------------------------

    async def make(
        self,
        wanted: str,
        *,
        session_name: str | None = None,
        tags: Mapping[str, Any] | list[str] | None = None,
        cwd: str | None = None,
        given: Mapping[str, str] | None = None,
        template: str | None = None,
        profile: str | Profile | None = None,
    ) -> KernelRecord:
        """The kernel that the home knows by this name, made if need be: at every door the only way
        to a new one. ``given`` are variables besides those of the service.

        A tenant's is behind walls that a tenant may have, whatever was asked for.
        """
        box = self.reception.box
        environ = {**os.environ, **given} if given else None
        if self.tenant is None:
            return await box.get_or_create(
                wanted,
                session_name=session_name,
                tags=tags,
                cwd=cwd,
                environ=environ,
                template=template,
                profile=profile,
            )
        tenancy = self._tenancy()
        walls = tenancy.allowed(profile)
        tenancy.check_variables(given or {})
        if cwd is not None:
            raise Refused(403, "NotAllowed", "a tenant's kernel starts in a folder of its own")
        if template is not None:
            await box.find(template)
            raise Unsupported(
                "a tenant's kernels are behind walls, where there are no templates; "
                "POST /kernels/{id}/branch makes a copy behind the same walls"
            )
        there = await self._found(wanted)
        if there is not None and self._owns(there):
            return there
        return await box.get_or_create(
            wanted,
            session_name=session_name,
            tags=tags,
            cwd=_NOWHERE,
            environ=environ,
            profile=walls,
        )

    async def load(self, wanted: str, path: str, *, trust: bool) -> KernelRecord:
        """A new kernel with a saved session. A tenant's file may say anything: its walls are those
        that it names only if a tenant may have them, and no folder of the host counts."""
        box = self.reception.box
        if self.tenant is None:
            return await box.load(wanted, path, trust=trust)
        from kernelbox.client.sessionfile import claimed_profile

        walls = self._tenancy().claimed(await asyncio.to_thread(claimed_profile, path))
        return await box.load_behind(wanted, path, trust=trust, profile=walls, cwd=_NOWHERE)

    def _tenancy(self) -> Tenancy:
        """What a tenant may have; refused, if that is nothing."""
        tenancy = self.reception.tenancy
        if tenancy is not None and not tenancy.obstacle:
            return tenancy
        why = tenancy.obstacle if tenancy is not None else "this service does not build any"
        raise Refused(
            403,
            "WallsMissing",
            "there are several tenants, whose kernels must have walls between them, and there can "
            f"be none: {why}. So no kernel is made",
            hint="`kernelbox doctor` says what is in the way; or run one service per tenant, each "
            "as another user, with KERNELBOX_API_TOKEN",
        )

    @asynccontextmanager
    async def making(self, names: list[str], *, fresh: bool = True) -> AsyncIterator[list[str]]:
        """Room for new kernels, by the names that the home will know them by.

        ``fresh``: there must be none of that name. The names are taken while they are made, so that
        of two who ask at once one is refused, and both are counted.
        """
        reception = self.reception
        if self.tenant is not None:
            self._tenancy()
        wanted = [self.prefix + name for name in names]
        if len(set(wanted)) < len(wanted):
            raise self._taken(max(wanted, key=wanted.count))
        busy = reception.making.intersection(wanted)
        if fresh and busy:
            raise self._taken(busy.pop())
        # Taken before anybody is asked what there is: what is made meanwhile is in the one or the
        # other.
        new = set(wanted) - reception.making
        reception.making |= new
        try:
            everybodys = {record.name for record in await reception.box.list_kernels()}
            live = {name for name in everybodys if name.startswith(self.prefix)}
            if fresh and not live.isdisjoint(wanted):
                raise self._taken(live.intersection(wanted).pop())
            if not live.issuperset(wanted):
                self._check_room(everybodys | reception.making, set(wanted))
            yield wanted
        finally:
            reception.making -= new

    def _check_room(self, names: set[str], wanted: set[str]) -> None:
        """``names``: of all kernels that there are, and are being made."""
        server = self.reception.server
        if self.tenant is not None:
            mine = {name for name in names if name.startswith(self.prefix)}
            if len(mine) > server.max_kernels_per_token:
                raise _too_many(
                    f"you have {len(mine - wanted)} kernels, and may have "
                    f"{server.max_kernels_per_token}",
                    "KERNELBOX_HTTP_MAX_KERNELS_PER_TOKEN",
                )
        if len(names) > server.max_kernels:
            raise _too_many(
                f"there are {len(names - wanted)} kernels, and there may be {server.max_kernels}"
                if self.tenant is None
                else "the service has as many kernels as it may have",
                "KERNELBOX_HTTP_MAX_KERNELS",
            )

    def _taken(self, name: str) -> Refused:
        name = name.removeprefix(self.prefix)
        return Refused(
            409,
            "NameTaken",
            f"there is a kernel named {name!r} already",
            hint="choose another name, or DELETE that kernel first",
            details={"name": name},
        )


def _too_many(words: str, variable: str) -> Refused:
    return Refused(
        429,
        "TooManyKernels",
        words,
        hint=f"DELETE one that is not needed; {variable} is the limit",
        headers={"retry-after": "10"},
    )
