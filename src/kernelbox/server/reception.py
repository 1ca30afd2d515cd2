"""Reception: what all requests share, and the kernels as each guest may see them.

Where there are tenants, a kernel is called ``tenant::name`` in the home. A guest never hears of the
prefix, nor of anybody else's kernels: names get it on the way in and lose it on the way out.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import HTTPConnection

from kernelbox.async_box import AsyncBox
from kernelbox.config import Settings
from kernelbox.errors import BoxError, KernelNotFound
from kernelbox.keeper.home import locate
from kernelbox.result import KernelRecord
from kernelbox.server.errors import Refused, content_of
from kernelbox.server.folder import Start
from kernelbox.server.jupyter.lines import Lines
from kernelbox.server.settings import ServerSettings

_BETWEEN = "::"
_ID = re.compile(r"[0-9a-f]{8,}(-[0-9a-f]+)*")
_MOST_REMEMBERED = 10_000
_T = TypeVar("_T")


def going_away() -> Refused:
    """What clients are told for whom there is no time left."""
    return Refused(
        503,
        "GoingAway",
        "the service ends; a cell that was to go on goes on without it",
        hint="come back to it by its execution id, or send the same Idempotency-Key again",
        headers={"retry-after": "5"},
    )


@dataclass(slots=True, eq=False)
class Underway:
    """An execution that a client waits for; what comes of it is awaited with :meth:`heard`."""

    kernel: str
    execution_id: str
    on_disconnect: str
    _listener: asyncio.Task[Any] | None = None
    _over: bool = False

    async def heard(self, news: Callable[[], Awaitable[_T]]) -> _T:
        """What is to come, unless :meth:`leave` is called first: then :func:`going_away`."""
        if self._over:
            raise going_away()
        listener = self._listener = asyncio.current_task()
        assert listener is not None
        try:
            return await news()
        except asyncio.CancelledError:
            # Somebody else may want this task to end, too.
            if not self._was_left() or listener.uncancel() > 0:
                raise
            raise going_away() from None
        finally:
            self._listener = None

    def _was_left(self) -> bool:
        return self._over

    def leave(self) -> None:
        """Let go of it; what becomes of the cell is what was asked for."""
        if not self._over:
            self._over = True
            if self._listener is not None:
                self._listener.cancel()


class Reception:
    """One per app: the box, what runs, and what is being made."""

    def __init__(
        self, settings: Settings, server: ServerSettings, *, tenants: bool, walls: bool
    ) -> None:
        """``walls``: whether kernels of tenants are kept apart, without which none are made."""
        self.settings = settings
        self.server = server
        self.tenants = tenants
        self.walls = walls
        self.box = AsyncBox(settings)
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
        self.searches = asyncio.Semaphore(os.cpu_count() or 1)
        """A search keeps a processor busy; more at once would only take longer."""
        self.chosen_ids: dict[tuple[str, str], str] = {}
        """Under which id a kernel runs what came with a key, where the client chose that id."""
        self.starts: dict[tuple[str, int], Start] = {}
        """Where kernels, by id and epoch, were when their files were first asked for."""
        self._names: dict[str, str] = {}

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

    async def name_of(self, kernel_id: str) -> str | None:
        """The name of the kernel with an id. Neither changes nor comes back, so it is kept."""
        if kernel_id not in self._names:
            if len(self._names) > _MOST_REMEMBERED:
                self._names.clear()
            for record in await self.box.list_kernels():
                self._names[record.kernel_id] = record.name
        return self._names.get(kernel_id)


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
            name = await self.reception.name_of(key)
            if name is not None and name.startswith(self.prefix):
                return key
        return self.prefix + key

    async def records(self) -> list[KernelRecord]:
        """The guest's kernels, as the home calls them."""
        found = await self.reception.box.list_kernels()
        return [record for record in found if record.name.startswith(self.prefix)]

    async def kernels(self, *, refresh: bool = False) -> list[KernelRecord]:
        """The guest's kernels, as the guest calls them."""
        found = await self.reception.box.list_kernels(refresh=refresh)
        return [self.shown(record) for record in found if record.name.startswith(self.prefix)]

    def shown(self, record: KernelRecord) -> KernelRecord:
        """A record as the guest may see it: places on this machine are no tenant's business."""
        if self.tenant is not None:
            record.name = record.name.removeprefix(self.prefix)
            record.address = record.connection_file = ""
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
            content["message"] = content["message"].replace(self.prefix, "")
            content["details"] = {
                name: value.replace(self.prefix, "") if isinstance(value, str) else value
                for name, value in content["details"].items()
            }
        return content

    def key(self, text: str | None) -> str | None:
        """An idempotency key in the guest's own scope."""
        if text is None:
            return None
        return hashlib.sha256(f"{self.prefix}{text}".encode()).hexdigest()

    def folder(self, name: str) -> str | None:
        """Where a new kernel of the guest starts: tenants have folders of their own."""
        if self.tenant is None or not self.reception.walls:
            return None
        folder = os.path.join(self._folders(self.tenant), name)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return folder

    @asynccontextmanager
    async def in_folder(self, name: str) -> AsyncIterator[str | None]:
        """:meth:`folder`, which does not stay if it is new and no kernel comes to live there."""
        folder, new = await asyncio.to_thread(self._made_folder, name)
        try:
            yield folder
        except BaseException:
            if new and folder is not None:
                with suppress(OSError):
                    os.rmdir(folder)
            raise

    def _made_folder(self, name: str) -> tuple[str | None, bool]:
        new = self.tenant is not None and not os.path.exists(
            os.path.join(self._folders(self.tenant), name)
        )
        return self.folder(name), new

    def may_see(self, folder: str) -> bool:
        """Whether files there are the guest's: a loaded session brings a folder along."""
        if self.tenant is None:
            return True
        mine = os.path.realpath(self._folders(self.tenant))
        return os.path.realpath(folder).startswith(mine + os.sep)

    def may_remove(self, folder: str) -> bool:
        """Whether that is a folder that :meth:`folder` made."""
        return self.tenant is not None and os.path.dirname(
            os.path.realpath(folder)
        ) == os.path.realpath(self._folders(self.tenant))

    def _folders(self, tenant: str) -> str:
        return os.path.join(self.reception.data_dir, "folders", tenant)

    @asynccontextmanager
    async def making(self, names: list[str], *, fresh: bool = True) -> AsyncIterator[list[str]]:
        """Room for new kernels, by the names that the home will know them by.

        ``fresh``: there must be none of that name. The names are taken while they are made, so that
        of two who ask at once one is refused, and both are counted.
        """
        reception = self.reception
        if self.tenant is not None and not reception.walls:
            raise Refused(
                403,
                "WallsMissing",
                "there are several tenants, whose kernels must have walls between them; this "
                "version does not put walls between tenants yet, so no kernel is made",
                hint="run one service per tenant, each as another user, with KERNELBOX_API_TOKEN",
            )
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
            live = {record.name for record in await self.records()}
            if fresh and not live.isdisjoint(wanted):
                raise self._taken(live.intersection(wanted).pop())
            self._check_room(live, set(wanted))
            yield wanted
        finally:
            reception.making -= new

    def _check_room(self, live: set[str], wanted: set[str]) -> None:
        reception = self.reception
        making = {name for name in reception.making if name.startswith(self.prefix)}
        if wanted <= live or len(live | making) <= reception.server.max_kernels:
            return
        raise Refused(
            429,
            "TooManyKernels",
            f"there are {len((live | making) - wanted)} kernels, and there may be "
            f"{reception.server.max_kernels}",
            hint="DELETE one that is not needed; KERNELBOX_HTTP_MAX_KERNELS is the limit",
            headers={"retry-after": "10"},
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
