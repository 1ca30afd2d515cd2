"""Every call of a Box, once: generators that say what to ask of whom, and a driver that does it."""

from __future__ import annotations

import os
import re
import resource
import sys
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, Union

from kernelbox.client.conversation import ConnectionLost
from kernelbox.config import (
    Settings,
    check_choice,
    check_code,
    check_epoch,
    check_flag,
    check_key,
    check_label,
    check_language,
    check_name,
    check_timeout,
    in_short,
)
from kernelbox.errors import BadInput, BoxError, KeeperUnavailable, KernelLost, KernelNotFound
from kernelbox.keeper.home import Home, locate
from kernelbox.keeper.rootprocess import facts_for
from kernelbox.places import package_parent
from kernelbox.result import (
    Checkpoint,
    ErrorInfo,
    ExecutionResult,
    InstallReport,
    KernelRecord,
    SaveReport,
)
from kernelbox.wire import PROTOCOL, Frame, build_id

if TYPE_CHECKING:
    from kernelbox.walls.profiles import Profile

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
    """Make sure that a keeper listens; one that has to be started starts ``first_root`` first."""

    home: Home
    first_root: Frame | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """Do something here that may take a while: reading and writing files."""

    do: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait a moment."""

    seconds: float


Effect = Ask | StartKeeper | Work | Pause
Call = Generator[Effect, Any, _T]
KernelLike = KernelRecord | str
ProfileLike = Union["Profile", str, Mapping[str, Any], "os.PathLike[str]"]
"""Walls: a profile, its name, the same as plain data, or the path of a file that has it."""

_KEEPER_TRIES = 12
_START_MARGIN = 10.0  # the keeper gives up first, and says why
_NOTICE_TRIES = 40
_NOTICE_PAUSE = 0.025
_PLAIN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Calls:
    """The calls of one Box: settings, the home they mean, and the addresses known so far."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings.check()
        self._settings_told = self.settings.to_wire()
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
        request = {**request, "settings": self._settings_told}
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
        template: KernelLike | None = None,
        profile: ProfileLike | None = None,
        fresh: bool = False,
    ) -> Call[KernelRecord]:
        """``fresh``: not if there is one of that name."""
        check_name(name)
        walls = self._walls(profile, template)
        # Of a template's copy, only what the caller gives is other than the template's.
        own: Frame = {"cwd": None, "environ": None}
        if cwd not in (None, ""):
            own["cwd"] = _check_folder(cwd)
        if environ is not None:
            own["environ"] = _check_environ(environ)
        given = _own_environ() if environ is None else _check_environ(environ)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        reply = yield from self.keeper(
            {
                "op": "get_or_create",
                "name": name,
                "session_name": session_name,
                "tags": _check_tags(tags),
                "cwd": _working_directory() if cwd in (None, "") else _check_folder(cwd),
                "environ": given,
                "executable": sys.executable,
                "package_parent": package_parent(),
                "build": build_id(),
                "open_files": [soft, hard],
                "connection": dict(connection) if connection else None,
                "connection_file": connection_file,
                "template": None if template is None else _wanted(template),
                "given": own,
                "profile": walls,
                # Behind walls, only what somebody has named comes along for sure.
                "given_environ": _differences(given) if walls else None,
                "secrets": _secrets(walls, given) if walls else None,
                "fresh": fresh,
            },
            patience=self.settings.start_timeout + _START_MARGIN,
        )
        return self._remember(reply["record"])

    def _walls(self, profile: ProfileLike | None, template: KernelLike | None) -> Frame | None:
        """The profile as it travels; None for one without walls, which need no module of theirs."""
        wanted = self.settings.profile if profile is None else profile
        if wanted in (None, "", "open"):
            return None
        from kernelbox.walls.profiles import resolve

        found = resolve(wanted)
        if not found.walled:
            return None
        if template is not None:
            raise BadInput("a template's copy has the walls of its template; leave profile out")
        if self.settings.kernel_type != "python3":
            raise BadInput(
                f"a kernel of type {self.settings.kernel_type!r} cannot be walled; only python3 can"
            )
        return found.to_wire()

    def branch(
        self,
        kernel: KernelLike,
        names: Sequence[str],
        *,
        reseed: bool = False,
        files: str = "share",
        method: str = "auto",
    ) -> Call[list[KernelRecord]]:
        if isinstance(names, str) or not isinstance(names, Sequence):
            raise BadInput(f"names is a list of names for the branches, not {in_short(names)}")
        if not names:
            raise BadInput("names is empty; give each branch a name: names=['a', 'b']")
        check_flag("reseed", reseed)
        for name in names:
            check_name(name)
        check_choice("files", files, ("share", "copy"))
        check_choice("method", method, ("auto", "fork", "copy"))
        reply = yield from self._keeper_on(
            kernel,
            {
                "op": "branch",
                "names": list(names),
                "reseed": bool(reseed),
                "files": files,
                "method": method,
            },
            patience=self.settings.fork_timeout + self.settings.start_timeout + _START_MARGIN,
        )
        return [self._remember(record) for record in reply["records"]]

    def save(self, kernel: KernelLike, path: str) -> Call[SaveReport]:
        from kernelbox.client import sessionfile  # who only executes need not wait for it

        whole = os.path.abspath(os.path.expanduser(_check_path(path)))
        key = yield Work(lambda: sessionfile.key_of(self._key_folder))
        draft = yield Work(lambda: sessionfile.begin(whole))
        try:
            request = {"op": "save", "path": draft, "start": sessionfile.START}
            facts = yield from self.kernel(kernel, request, patience=None)
            report: SaveReport = yield Work(lambda: sessionfile.finish(draft, whole, facts, key))
            return report
        finally:
            sessionfile.discard(draft)

    def load(
        self,
        name: str,
        path: str,
        *,
        trust: bool = False,
        profile: ProfileLike | None = None,
        cwd: str | None = None,
    ) -> Call[KernelRecord]:
        """``profile`` and ``cwd`` are those that the file names, unless they are given."""
        from kernelbox.client import sessionfile

        check_name(name)
        check_flag("trust", trust)
        whole = os.path.abspath(os.path.expanduser(_check_path(path)))
        key = yield Work(lambda: sessionfile.key_of(self._key_folder))
        runtime = self.home.runtime_dir
        opened: sessionfile.Opened = yield Work(
            lambda: sessionfile.open_checked(whole, runtime, key, trust=trust)
        )
        try:
            folder = opened.manifest["cwd"]
            if cwd is None and isinstance(folder, str) and os.path.isdir(folder):
                cwd = folder
            # What is in it runs as it is read: behind the walls that it was saved behind.
            profile = profile or opened.manifest.get("profile") or "open"
            record = yield from self.get_or_create(name, cwd=cwd, profile=profile, fresh=True)
            request = {
                "op": "load",
                "path": opened.payload,
                "pieces": opened.pieces,
                "manifest": opened.size - opened.pieces,
                "failures": opened.manifest["failures"],
            }
            try:
                reply = yield from self.kernel(record, request, patience=None)
            except BaseException:
                yield from self.destroy(record)
                raise
            return self._remember(reply["record"])
        finally:
            sessionfile.discard(opened.payload)

    @property
    def _key_folder(self) -> str:
        return os.path.dirname(self.settings.registry_path)

    def find(self, kernel: KernelLike) -> Call[KernelRecord]:
        reply = yield from self._keeper_on(kernel, {"op": "find"})
        return self._remember(reply["record"])

    def _keeper_on(
        self, kernel: KernelLike, request: Frame, *, patience: float | None = 60.0
    ) -> Call[Frame]:
        """Ask the keeper about a kernel. The keeper is told a record's id only, so that no other
        kernel of the same name is taken for it; people know it by its name."""
        try:
            return (
                yield from self.keeper({**request, "kernel": _wanted(kernel)}, patience=patience)
            )
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
            content = yield from self._converse(
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
        for _ in range(_NOTICE_TRIES):
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
            yield Pause(_NOTICE_PAUSE)  # we may have noticed before the keeper did
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
        atomic: bool = False,
        stdin: bool = False,
        stream: bool = False,
        on_disconnect: str = "continue",
        idempotency_key: str | None = None,
    ) -> Frame:
        """The request for one execution; bad input is refused here, before anything is sent."""
        settings = self.settings
        limit = settings.execution_timeout if timeout is None else check_timeout(timeout)
        check_choice("on_disconnect", on_disconnect, ("interrupt", "continue"))
        request = {
            "op": "execute",
            "execution_id": uuid.uuid4().hex if execution_id is None else _check_id(execution_id),
            "code": check_code(code),
            "language": check_language(language),
            "timeout": limit,
            "limit": settings.output_char_limit,
            "interrupt_grace": settings.interrupt_grace,
            "kill_grace": settings.kill_grace,
            "expect_epoch": check_epoch(expect_epoch),
            "atomic": check_flag("atomic", atomic),
            "undo": settings.undo,
            "undo_cost": settings.undo_cost,
            "most_checkpoints": settings.max_checkpoints,
            "stdin": stdin,
            "stream": stream,
            "on_disconnect": on_disconnect,
        }
        if idempotency_key is not None:
            request["key"] = check_key(idempotency_key)
            request["fingerprint"] = _fingerprint(request, timeout)
        return request

    def checkpoint_request(self, label: str | None) -> Frame:
        return {
            "op": "checkpoint",
            "label": check_label(label),
            "most": self.settings.max_checkpoints,
            "patience": self.settings.fork_timeout,
        }

    def install(
        self, kernel: KernelLike, requirements: Sequence[str], *, upgrade: bool
    ) -> Call[InstallReport]:
        from kernelbox.installs.indexes import host_environment

        if not requirements or not all(isinstance(each, str) for each in requirements):
            raise BadInput("name the packages to install, each a text like 'pandas==2.*'")
        check_flag("upgrade", upgrade)
        request = {
            "op": "install",
            "requirements": list(requirements),
            "upgrade": upgrade,
            "settings": self._settings_told,
            "environ": host_environment(os.environ),
        }
        # The warden gives up first, and says why. Others of the family may be before us.
        patience = 4 * (self.settings.install_timeout + _START_MARGIN)
        reply = yield from self.kernel(kernel, request, patience=patience)
        return InstallReport.from_wire(reply["report"])

    def kernel(
        self, kernel: KernelLike, request: Frame, *, patience: float | None = 60.0
    ) -> Call[Frame]:
        """Ask a kernel something; if it ends meanwhile, the error says why."""
        if "execution_id" in request:
            check_meant(request["execution_id"])
        try:
            return (yield from self._converse(kernel, request, patience=patience))
        except ConnectionLost as error:
            if not error.late:
                for _ in range(_NOTICE_TRIES):
                    yield from self.find(kernel)  # raises what the keeper knows of its end
                    yield Pause(_NOTICE_PAUSE)
            wanted = kernel.name if isinstance(kernel, KernelRecord) else kernel
            raise BoxError(
                f"kernel {wanted!r} cannot be reached: {error}. Ask again; "
                f"destroy({wanted!r}) ends it whatever state it is in."
            ) from None

    def _converse(
        self,
        kernel: KernelLike,
        request: Frame,
        *,
        patience: float | None,
        cancel_on_interrupt: bool = False,
    ) -> Call[Frame]:
        """Ask a kernel's warden. A stale address is looked up again; nothing is sent twice."""
        address = yield from self.address(kernel)
        for _ in range(_NOTICE_TRIES):
            try:
                content: Frame = yield Ask(address, request, patience, cancel_on_interrupt)
                return content
            except ConnectionLost as error:
                if error.connected:
                    raise
                last = error
            stale, address = address, (yield from self.fresh_address(kernel))
            if address == stale:
                yield Pause(_NOTICE_PAUSE)  # it has just ended; the keeper is about to notice
        raise last

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


def _root_for(request: Frame) -> Frame | None:
    """What the keeper is going to need for this; None: nothing, or it cannot be known."""
    settings = request["settings"]
    if request.get("template") or settings["kernel_type"] != "python3":
        return None
    return facts_for(
        request["executable"], request["package_parent"], request["environ"], settings["preload"]
    )


def wanted_checkpoint(checkpoint: object) -> str:
    """What a checkpoint is looked up by: its id or its label."""
    if isinstance(checkpoint, Checkpoint):
        return checkpoint.checkpoint_id
    if not isinstance(checkpoint, str) or not checkpoint:
        raise BadInput(f"a checkpoint is meant by its id or label, not by {in_short(checkpoint)}")
    return checkpoint


def _check_id(execution_id: object) -> str:
    """An execution's id names a file of the spool, so it is a plain word."""
    if not isinstance(execution_id, str) or not _PLAIN_ID.fullmatch(execution_id):
        raise BadInput(
            "an execution_id is up to 128 letters, digits, '-', '_' and '.', and starts with a "
            f"letter or digit; not {in_short(execution_id)}"
        )
    return execution_id


def _fingerprint(request: Frame, timeout: float | None) -> str:
    """Two requests with the same one ask for the same thing. A timeout that was not given does not
    count: the default may be another after a restart."""
    import hashlib
    import json

    asked = [request[name] for name in ("code", "language", "expect_epoch", "atomic")]
    return hashlib.sha256(json.dumps([*asked, timeout]).encode("ascii")).hexdigest()


def check_meant(execution_id: object) -> None:
    """An execution is meant by its id; a whole result is easily passed instead."""
    if isinstance(execution_id, ExecutionResult):
        raise BadInput("execution_id is a string, not a whole result; pass result.execution_id")
    if not isinstance(execution_id, str):
        raise BadInput(
            f"execution_id is a string, not {in_short(execution_id)}; pass result.execution_id"
        )


def _own_environ() -> dict[str, str]:
    """``dict(os.environ)``, which takes six calls of Python for each variable, by one."""
    raw = getattr(os.environ, "_data", None)
    if not isinstance(raw, dict) or os.name != "posix":
        return dict(os.environ)
    encoding = sys.getfilesystemencoding()
    return {
        name.decode(encoding, "surrogateescape"): value.decode(encoding, "surrogateescape")
        for name, value in raw.copy().items()
    }


def _check_environ(environ: Mapping[Any, Any]) -> dict[str, str]:
    """Variables that a process can have; others would only fail in the new kernel."""
    for name, value in environ.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadInput(
                f"environ maps strings to strings, not {in_short(name)} to {in_short(value)}"
            )
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise BadInput(
                "no process can have this variable, which environ has: "
                f"{in_short(name)}={in_short(value)}"
            )
    return dict(environ)


def _differences(environ: Mapping[str, str]) -> dict[str, str]:
    """What a caller has added to the environment of this process, or changed."""
    return {name: value for name, value in environ.items() if os.environ.get(name) != value}


def _secrets(walls: Frame, environ: Mapping[str, str]) -> dict[str, str] | None:
    """The values of what a profile binds to domains. They are found here, by the caller's rights,
    and go to the warden, which hands them on; nobody stores them."""
    if not walls["secrets"]:
        return None
    from kernelbox.walls.bindings import secrets_from, values_of

    return values_of(secrets_from(walls["secrets"]), environ)


def _check_tags(tags: object) -> dict[str, Any] | list[str]:
    if tags is None:
        return {}
    if isinstance(tags, Mapping) and all(isinstance(key, str) for key in tags):
        return dict(tags)
    if isinstance(tags, list) and all(isinstance(tag, str) for tag in tags):
        return tags
    raise BadInput(f"tags map strings to values or are a list of strings, not {in_short(tags)}")


def _check_folder(cwd: object) -> str:
    """A folder that the caller chose: a kernel that starts elsewhere would be a bad surprise."""
    path = os.fspath(cwd) if isinstance(cwd, str | os.PathLike) else None
    if not isinstance(path, str) or "\0" in path:
        raise BadInput(f"cwd is the path of a folder, not {in_short(cwd)}")
    path = os.path.abspath(path)
    try:
        os.stat(os.path.join(path, "."))  # as entering it would
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadInput(
            f"cwd={in_short(path)} is not a folder that a kernel can start in: {why}. "
            "Make it first, or give another."
        ) from None
    return path


def _check_path(path: object) -> str:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise BadInput(f"path is the path of a file, not {in_short(path)}")
    return text


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"
