"""Every call of a Box, once: generators that say what to ask of whom, and a driver that does it."""

from __future__ import annotations

import os
import resource
import sys
import uuid
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kernelbox.client.conversation import ConnectionLost
from kernelbox.config import (
    Settings,
    check_code,
    check_language,
    check_name,
    check_timeout,
)
from kernelbox.errors import BadInput, BoxError, KeeperUnavailable, KernelLost, KernelNotFound
from kernelbox.keeper.home import Home, locate
from kernelbox.keeper.launch import package_parent
from kernelbox.result import ErrorInfo, ExecutionResult, KernelRecord
from kernelbox.wire import PROTOCOL, Frame, build_id

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Ask:
    """Send a request to an address and wait for its answer."""

    address: str
    request: Frame
    patience: float | None = None
    cancel_on_interrupt: bool = False


@dataclass(frozen=True, slots=True)
class StartKeeper:
    """Make sure that a keeper listens."""

    home: Home


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait a moment."""

    seconds: float


Effect = Ask | StartKeeper | Pause
Call = Generator[Effect, Any, _T]
KernelLike = KernelRecord | str

_KEEPER_TRIES = 4


class Calls:
    """The calls of one Box: settings, the home they mean, and the addresses known so far."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._homes: dict[int, Home] = {}
        self._addresses: dict[str, str] = {}
        self._greeted = False

    @property
    def home(self) -> Home:
        # With the memory store the home is this process's own; a forked child has another.
        pid = os.getpid() if self.settings.store_backend == "memory" else 0
        if pid not in self._homes:
            self._homes[pid] = locate(self.settings)
        return self._homes[pid]

    # -- the keeper -------------------------------------------------------------------------

    def keeper(self, request: Frame, *, patience: float | None = 60.0) -> Call[Frame]:
        """Ask the keeper, starting it if need be. Its requests can all be repeated safely."""
        request = {**request, "settings": self.settings.to_wire()}
        last = "it did not answer"
        for _ in range(_KEEPER_TRIES):
            try:
                if not self._greeted:
                    yield from self._greet()
                reply: Frame = yield Ask(self.home.keeper_address, request, patience)
                return reply
            except ConnectionLost as error:
                last = str(error)
                self._greeted = False
                yield StartKeeper(self.home)
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

    # -- kernels ----------------------------------------------------------------------------

    def get_or_create(
        self,
        name: str,
        *,
        session_name: str | None = None,
        tags: Any = None,
        cwd: str | None = None,
        environ: Mapping[str, str] | None = None,
        connection: Mapping[str, Any] | None = None,
        connection_file: str | None = None,
    ) -> Call[KernelRecord]:
        check_name(name)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        reply = yield from self.keeper(
            {
                "op": "get_or_create",
                "name": name,
                "session_name": session_name,
                "tags": tags or {},
                "cwd": os.path.abspath(cwd) if cwd else _working_directory(),
                "environ": dict(os.environ if environ is None else environ),
                "executable": sys.executable,
                "package_parent": package_parent(),
                "open_files": [soft, hard],
                "connection": dict(connection) if connection else None,
                "connection_file": connection_file,
            },
            patience=self.settings.start_timeout,
        )
        return self._remember(reply["record"])

    def branch(
        self, kernel: KernelLike, name: str, *, session_name: str | None = None, tags: Any = None
    ) -> Call[KernelRecord]:
        check_name(name)
        reply = yield from self.keeper(
            {
                "op": "branch",
                "kernel": _wanted(kernel),
                "name": name,
                "session_name": session_name,
                "tags": tags or {},
            },
            patience=self.settings.fork_timeout + self.settings.start_timeout,
        )
        return self._remember(reply["record"])

    def find(self, kernel: KernelLike) -> Call[KernelRecord]:
        reply = yield from self.keeper({"op": "find", "kernel": _wanted(kernel)})
        return self._remember(reply["record"])

    def list_kernels(self, *, refresh: bool = False) -> Call[list[KernelRecord]]:
        reply = yield from self.keeper({"op": "list", "refresh": refresh})
        return [KernelRecord.from_wire(record) for record in reply["kernels"]]

    def destroy(self, kernel: KernelLike) -> Call[bool]:
        wanted = _wanted(kernel)
        reply = yield from self.keeper({"op": "destroy", "kernel": wanted})
        self._addresses.pop(wanted, None)
        return bool(reply["destroyed"])

    def wipe(self) -> Call[list[str]]:
        reply = yield from self.keeper({"op": "wipe"})
        self._addresses.clear()
        return list(reply["destroyed"])

    # -- talking to a kernel ----------------------------------------------------------------

    def execute(self, kernel: KernelLike, request: Frame) -> Call[ExecutionResult]:
        try:
            content = yield from self.kernel(
                kernel, request, patience=None, cancel_on_interrupt=True
            )
        except ConnectionLost as error:
            return (yield from self.lost_result(kernel, request, error))
        return ExecutionResult.from_wire(content)

    def lost_result(
        self, kernel: KernelLike, request: Frame, error: ConnectionLost
    ) -> Call[ExecutionResult]:
        """The warden went away under a running cell: say what is known of it."""
        state, cause, epoch = "unknown", f"the connection to the kernel was lost ({error})", 0
        for _ in range(40):
            try:
                yield from self.find(kernel)
            except KernelLost as lost:
                state, cause = "lost", str(lost.details.get("cause"))
                epoch = int(lost.details.get("epoch", 0))
                break
            except KernelNotFound:
                state, cause = "lost", "the kernel was destroyed while the code ran"
                break
            except BoxError:
                break
            yield Pause(0.025)  # we may have noticed before the keeper did
        words = f"{cause}; the kernel's state is {state}"
        return ExecutionResult(
            status="error",
            error=ErrorInfo("KernelDied", words, [f"KernelDied: {words}"]),
            state=state,
            cause=cause,
            epoch=epoch,
            execution_id=str(request.get("execution_id", "")),
        )

    def execute_request(
        self,
        code: str,
        *,
        language: str = "python",
        timeout: float | None = None,
        expect_epoch: int | None = None,
        execution_id: str | None = None,
        stdin: bool = False,
        stream: bool = False,
        on_disconnect: str = "continue",
    ) -> Frame:
        """The request for one execution; bad input is refused here, before anything is sent."""
        settings = self.settings
        limit = settings.execution_timeout if timeout is None else check_timeout(timeout)
        if expect_epoch is not None and (
            not isinstance(expect_epoch, int) or isinstance(expect_epoch, bool)
        ):
            raise BadInput(f"expect_epoch is a whole number, not {expect_epoch!r}")
        return {
            "op": "execute",
            "execution_id": execution_id or uuid.uuid4().hex,
            "code": check_code(code),
            "language": check_language(language),
            "timeout": limit,
            "limit": settings.output_char_limit,
            "interrupt_grace": settings.interrupt_grace,
            "kill_grace": settings.kill_grace,
            "expect_epoch": expect_epoch,
            "stdin": stdin,
            "stream": stream,
            "on_disconnect": on_disconnect,
        }

    def kernel(
        self,
        kernel: KernelLike,
        request: Frame,
        *,
        patience: float | None = 60.0,
        cancel_on_interrupt: bool = False,
    ) -> Call[Frame]:
        """Ask a kernel's warden. A stale address is looked up once more; nothing is sent twice."""
        address = yield from self.address(kernel)
        try:
            content: Frame = yield Ask(address, request, patience, cancel_on_interrupt)
        except ConnectionLost as error:
            if error.connected:
                raise
            address = yield from self.fresh_address(kernel)
            content = yield Ask(address, request, patience, cancel_on_interrupt)
        return content

    def address(self, kernel: KernelLike) -> Call[str]:
        """Where a kernel listens, from memory if possible."""
        if isinstance(kernel, KernelRecord) and kernel.address:
            return kernel.address
        known = self._addresses.get(_wanted(kernel))
        if known is not None:
            return known
        return (yield from self.fresh_address(kernel))

    def fresh_address(self, kernel: KernelLike) -> Call[str]:
        self._addresses.pop(_wanted(kernel), None)
        record = yield from self.find(kernel)
        return record.address

    def _remember(self, values: Mapping[str, Any]) -> KernelRecord:
        record = KernelRecord.from_wire(values)
        self._addresses[record.kernel_id] = self._addresses[record.name] = record.address
        return record


def _wanted(kernel: object) -> str:
    """What to look a kernel up by: a record means its id, a string an id or a name."""
    if isinstance(kernel, KernelRecord):
        return kernel.kernel_id
    if isinstance(kernel, str):
        if not kernel:
            raise BadInput("a kernel is meant by its record, its name or its id, not by ''")
        return kernel
    raise BadInput(f"a kernel is a KernelRecord, a name or an id, not {type(kernel).__name__}")


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"
