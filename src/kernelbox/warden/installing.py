"""Installs of one family: an installer is started for each, one after the other, and its answer
taken to who has asked.

The warden itself neither resolves nor downloads nor writes anything; it would keep every kernel of
the family waiting.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernelbox.config import Settings
from kernelbox.errors import BadInput, BoxError, InstallFailed, Unsupported
from kernelbox.installs.indexes import host_environment
from kernelbox.installs.places import FamilyFolder, cache_root
from kernelbox.installs.policy import Policy
from kernelbox.installs.requirements import LONGEST, MOST
from kernelbox.installs.worker import PROGRAM
from kernelbox.places import importable, package_parent
from kernelbox.reactor import Reactor, Timer
from kernelbox.result import InstallReport
from kernelbox.warden.kernel import Kernel
from kernelbox.wire import Frame

_MOST_WAITING = 16
# Each name that a cell asks for is a word that gets out, to the index.
_MOST_FROM_CELLS = 200
_MOST_AT_ONCE_FROM_CELLS = 60
_MOST_UNKNOWN_FROM_CELLS = 20
_LARGEST_ANSWER = 1 << 22
_MARGIN = 15.0
_LOOK_EVERY = 0.3

Done = Callable[[dict[str, Any] | BoxError], None]


@dataclass(slots=True, eq=False)
class Order:
    """One install that is wanted."""

    kernel: Kernel
    requirements: list[str]
    upgrade: bool
    policy: Policy
    environ: dict[str, str]
    cache: str
    done: Done
    wanted: Callable[[], bool]
    """Whether anybody still waits for it."""
    cell: bool


class InstallDesk:
    """Takes orders for all kernels of the family."""

    def __init__(
        self,
        reactor: Reactor,
        settings: Settings,
        environ: Mapping[str, str],
        *,
        folder: FamilyFolder | None,
        inside: str | None,
    ) -> None:
        """``environ`` is that of who made the family. ``folder`` is there if it is shown to a
        sandbox, ``inside`` where it is there; both None: it is made when it is needed."""
        self._reactor = reactor
        self._settings = settings
        self._environ = environ
        self._folder = folder
        self._inside = inside
        self._waiting: deque[Order] = deque()
        self._running: _Running | None = None
        self._generation = 0
        self._from_cells = 0
        self._unknown = 0

    # -- orders -----------------------------------------------------------------------------

    def ask(self, kernel: Kernel, frame: Frame, done: Done) -> None:
        """A caller wants something: their settings say how."""
        settings = Settings.from_wire(frame["settings"])
        environ = host_environment(frame.get("environ") or self._environ)
        self._take(kernel, frame, settings, environ, done, lambda: True, cell=False)

    def ask_from_cell(self, kernel: Kernel, frame: Frame, done: Done) -> None:
        """Code wants something, and may lie: the settings are those of who made the family."""
        job = kernel.current
        before = [order for order in self._all() if order.kernel is kernel and order.cell]
        if job is None or any(order.wanted() for order in before):
            raise InstallFailed("one install at a time, from a running cell", reason="bad_request")
        if self._running is not None and self._running.order in before:
            self._running.kill()  # of a cell that was interrupted
        self._from_cells += 1
        if self._from_cells > _MOST_FROM_CELLS or self._unknown >= _MOST_UNKNOWN_FROM_CELLS:
            raise InstallFailed(
                "code of this kernel has installed too often; its host can: install(kernel, …)",
                reason="blocked",
            )
        environ = host_environment(self._environ)
        wanted = _still(kernel, job)
        self._take(kernel, frame, self._settings, environ, done, wanted, cell=True)

    def _take(
        self,
        kernel: Kernel,
        frame: Frame,
        settings: Settings,
        environ: dict[str, str],
        done: Done,
        wanted: Callable[[], bool],
        *,
        cell: bool,
    ) -> None:
        policy = Policy.of(settings)
        if words := policy.refuses_everything(cell=cell):
            raise InstallFailed(words, reason="blocked")
        most = _MOST_AT_ONCE_FROM_CELLS if cell else MOST
        requirements = _checked(frame.get("requirements"), most)
        if len(self._waiting) >= _MOST_WAITING:
            raise InstallFailed("too many installs wait for their turn; ask again", reason="busy")
        cache = cache_root(settings.install_cache, self._environ)
        upgrade = bool(frame.get("upgrade"))
        order = Order(
            kernel, requirements, upgrade, policy, environ, cache, done, wanted, cell=cell
        )
        self._waiting.append(order)
        self._next()

    def _all(self) -> list[Order]:
        return [*self._waiting, *([self._running.order] if self._running else ())]

    def _next(self) -> None:
        while self._running is None and self._waiting:
            order = self._waiting.popleft()
            if order.kernel.ending:
                order.done(InstallFailed("the kernel was ended", reason="failed"))
                continue
            try:
                self._start(order)
            except BoxError as error:
                order.done(error)

    def _start(self, order: Order) -> None:
        folder = self._family_folder(order)
        self._generation += 1
        packages = order.kernel.packages
        content = {
            "requirements": order.requirements,
            "upgrade": order.upgrade,
            "cell": order.cell,
            "policy": order.policy.to_wire(),
            "environ": order.environ,
            "cache": folder.root,
            "family": folder.path,
            "generation": self._generation,
            "earlier": packages.requirements,
            "present": packages.present,
        }
        try:
            self._running = _Running(self._reactor, order, content, self._answered)
        except OSError as error:
            raise InstallFailed(f"no installer can be started: {error}", reason="failed") from None

    def _family_folder(self, order: Order) -> FamilyFolder:
        if self._folder is None:
            if self._inside is not None:
                raise Unsupported(
                    "this sandbox was made without a place for packages: the folder "
                    f"{order.cache!r} could not be written. Point KERNELBOX_INSTALL_CACHE at one "
                    "you own, and make the kernel anew"
                )
            try:
                self._folder = FamilyFolder(order.cache, order.kernel.identity.kernel_id)
            except OSError as error:
                raise InstallFailed(
                    f"the folder for packages {order.cache!r} cannot be written: {error.strerror}; "
                    "point KERNELBOX_INSTALL_CACHE at one you own",
                    reason="disk_full" if error.errno == 28 else "failed",
                ) from None
        return self._folder

    # -- answers ----------------------------------------------------------------------------

    def _answered(self, order: Order, answer: Frame | None) -> None:
        self._running = None
        result = self._result(order, answer)
        if (audit := order.kernel.audit) is not None:
            failed = isinstance(result, BoxError)
            audit.installed(order.requirements, ok=not failed, reason=str(result) if failed else "")
        try:
            order.done(result)
        finally:
            self._next()

    def _result(self, order: Order, answer: Frame | None) -> dict[str, Any] | BoxError:
        if answer is None:
            return InstallFailed("the installer was ended before it was done", reason="failed")
        if not answer.get("ok"):
            reason = str(answer["reason"])
            self._unknown += order.cell and reason == "not_found"
            error = str(answer["error"])
            if reason == "no_uv":
                return Unsupported(error)
            return (
                BadInput(error) if reason == "bad_request" else InstallFailed(error, reason=reason)
            )
        folder = answer.get("folder")
        if folder is not None:
            assert self._folder is not None
            folder = os.path.join(self._inside or self._folder.path, str(folder))
        order.kernel.packages.changed(folder, answer)
        return {"report": answer["report"], "folder": order.kernel.packages.folder}

    def close(self) -> None:
        """The family ends."""
        self._waiting.clear()
        if self._running is not None:
            self._running.kill()

    def remove(self) -> None:
        """All its processes have ended."""
        if self._folder is not None:
            self._folder.remove()
            self._folder = None


class _Running:
    """An installer at work."""

    def __init__(
        self,
        reactor: Reactor,
        order: Order,
        content: Frame,
        answered: Callable[[Order, Frame | None], None],
    ) -> None:
        self.order = order
        self._reactor = reactor
        self._answered = answered
        self._said = b""
        self._deadline = time.monotonic() + order.policy.timeout + _MARGIN
        text = json.dumps(content).encode()
        told = os.memfd_create("kernelbox-install")
        try:
            os.write(told, text)
            os.lseek(told, 0, os.SEEK_SET)
            # The environment of the root, which nobody's code has touched.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, "kernelbox.installs"],
                cwd="/",
                env=importable(dict(os.environ), package_parent()),
                stdin=told,
                stdout=subprocess.PIPE,
                process_group=0,
            )
        finally:
            os.close(told)
        assert self._process.stdout is not None
        self._out = self._process.stdout.fileno()
        os.set_blocking(self._out, False)
        reactor.watch(self._out, self._read)
        self._timer: Timer = reactor.call_later(_LOOK_EVERY, self._look)

    def _read(self) -> None:
        try:
            data = os.read(self._out, 1 << 16)
        except BlockingIOError:
            return
        self._said += data
        if data and len(self._said) <= _LARGEST_ANSWER:
            return
        self._end()
        try:
            answer = json.loads(self._said)
        except ValueError:
            answer = None
        self._answered(self.order, answer if isinstance(answer, dict) else None)

    def _look(self) -> None:
        """Nobody waits any more, or it has hung: it is ended, which its pipe tells of."""
        if not self.order.wanted() or time.monotonic() > self._deadline:
            self.kill()
        else:
            self._timer = self._reactor.call_later(_LOOK_EVERY, self._look)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _end(self) -> None:
        self._timer.cancel()
        self._reactor.forget(self._out)
        self.kill()  # also what it may have left
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._reap()
        self._reactor.call_later(_LOOK_EVERY, self._reap)

    def _reap(self) -> None:
        """What it had started was left to us, and may take a moment to end."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-self._process.pid, os.WNOHANG)[0]:
                pass


def _still(kernel: Kernel, job: object) -> Callable[[], bool]:
    return lambda: kernel.current is job


def _checked(values: object, most: int) -> list[str]:
    """Hostile input: texts, few and short. What they mean is the installer's to say."""
    if not isinstance(values, list) or not values:
        raise BadInput("name the packages to install, like 'pandas' or 'pandas==2.*'")
    if len(values) > most:
        raise BadInput(f"at most {most} packages can be asked for at once")
    for value in values:
        if not isinstance(value, str) or len(value) > LONGEST:
            raise BadInput(f"a requirement is a text of at most {LONGEST} characters")
    return values


def answer_cell(desk: Callable[[], InstallDesk], kernel: Kernel, frame: Frame) -> None:
    """Code waits for this answer, so there is one whatever happens."""
    member, number = kernel.member, frame.get("id")
    if member is None:
        return

    def done(content: dict[str, Any] | BoxError) -> None:
        if kernel.member is not member:
            return  # another interpreter by now
        reply: Frame = {"op": "installed", "id": number}
        if isinstance(content, BoxError):
            member.send({**reply, "ok": False, "words": content.message})
            return
        words = str(InstallReport.from_wire(content["report"]))
        member.send({**reply, "ok": True, "words": words, "folder": content["folder"]})
        kernel.packages.knows(member)

    try:
        desk().ask_from_cell(kernel, frame, done)
    except BoxError as error:
        done(error)
