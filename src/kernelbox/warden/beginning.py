"""How an interpreter becomes a kernel's own: from the order to begin to the first cell."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from kernelbox.warden.execution import Execution
from kernelbox.warden.identity import Identity
from kernelbox.wire import Frame

_STARTUP_MARGIN = 2.0  # of a first start the keeper gives up before

Waiter = Callable[[str | None], None]
"""Called once the interpreter is there; with the failure if it is not."""


class Beginning:
    """Knows how far the interpreter has come, and who waits for it."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self.ready = False
        self.handed_out = False
        """Whether its caller has been told that it is there, before it said so itself."""
        self.skip_startup = False
        """For the next interpreter: it is not a new one."""
        self._ordered = False
        self._startup: Execution | None = None  # while it is waited for
        self._waiters: list[Waiter] = []

    def order(self) -> Frame:
        """What a new interpreter is told: folder, environment, limits."""
        self.ready = self.handed_out = False
        self._ordered = True
        identity = self._identity
        if identity.profile == "open":  # behind walls, folders are others
            identity.note(_why_not_entered(identity.cwd))
        return {
            "op": "begin",
            "cwd": identity.cwd,
            "environ": identity.environ,
            "open_files": identity.open_files,
            "soft_memory": identity.soft_memory,
        }

    def when_ready(self, waiter: Waiter) -> None:
        if self.ready:
            waiter(None)
        else:
            self._waiters.append(waiter)

    def when_next_ready(self, waiter: Waiter) -> None:
        """The same of the interpreter that is about to be ordered, however far this one is."""
        self._waiters.append(waiter)

    def started(self) -> None:
        """Its process is there. Nobody has to wait for it to settle in: cells queue until then.

        Startup code is waited for, because it may fail.
        """
        if self.skip_startup or not self._identity.startup_code:
            # Its death from now on is a loss, not a bad start.
            self.handed_out = bool(self._waiters)
            self.tell(None)

    def begun(self) -> Execution | None:
        """It is the caller's now; what is left to run before anything else.

        That is said once. A cell that says it again would have startup code run in its own midst,
        and its death there taken for a bad start and not for a loss.
        """
        if not self._ordered:
            return None
        self._ordered = False
        code = self._identity.startup_code
        skipped, self.skip_startup = self.skip_startup, False
        if not code or skipped:
            self._came_up(None)
            return None
        self._startup = Execution(
            "startup",
            code,
            internal=True,
            store_history=False,
            timeout=self._identity.start_timeout + _STARTUP_MARGIN,
            finishers=[self._startup_finished],
        )
        self.ready = True
        return self._startup

    def taken_over(self) -> None:
        """By the copy of a fork, which is somebody already."""
        self._ordered = False
        self.ready = True
        self.tell(None)

    def died(self, cause: str) -> str | None:
        """The interpreter has: why its start failed, or None if it had started."""
        was_ready, self.ready = self.ready, False
        if self._startup is not None:
            self._startup.finishers.clear()
            self._startup = None
            return f"the startup code ended the interpreter: {cause}"
        handed_out, self.handed_out = self.handed_out, False
        if not was_ready and not handed_out:
            return f"the interpreter did not come up: {cause}"
        return None

    def tell(self, failure: str | None) -> bool:
        """Tell all who wait; False if nobody does."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter(failure)
        return bool(waiters)

    def _startup_finished(self, result: dict[str, Any]) -> None:
        self._startup = None
        failure = None
        if result["status"] != "success":
            error = result.get("error") or {}
            failure = (
                f"the startup code (KERNELBOX_STARTUP_CODE) failed: "
                f"{error.get('ename')}: {error.get('evalue')}"
            )
        self._came_up(failure)

    def _came_up(self, failure: str | None) -> None:
        self.ready = True
        if not self.tell(failure) and failure:
            self._identity.note(failure)


def _why_not_entered(folder: str) -> str:
    """Why a process of ours cannot have ``folder`` as its own; empty if it can."""
    try:
        os.stat(os.path.join(folder, "."))
    except OSError as error:
        return f"the folder {folder!r} cannot be entered ({error.strerror})"
    return ""
