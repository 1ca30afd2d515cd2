"""The bash of one kernel: started when it is first wanted, replaced when it has ended."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from kernelbox.errors import Unsupported
from kernelbox.inside.changes import Folder
from kernelbox.warden import outcomes
from kernelbox.warden.bash_member import BashMember
from kernelbox.warden.execution import Execution
from kernelbox.warden.exits import Exit
from kernelbox.warden.outcomes import Outcome

if TYPE_CHECKING:
    from kernelbox.warden.kernel import Kernel


class BashDesk:
    """Runs the kernel's bash commands in its one shell, and tells the kernel how they end."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.shell: BashMember | None = None
        self._past: str | None = None  # what a new shell takes over from an earlier one

    def start(self, job: Execution) -> None:
        """Run a command; before one that is atomic, remember what the shell is like."""
        shell = self._get()
        if not job.atomic:
            self.bash_ready(job.code)
            return

        def go(past: str | None) -> None:
            if self._kernel.current is not job:
                return
            if past is None:
                words = "the cell was not run: the shell's state could not be read to keep it"
                self._kernel.refuse(job, Unsupported(words))
                return
            job.bash_before = past
            job.folder_before = Folder(path=self._cwd(), besides=self._kernel.not_watched)
            self.bash_ready(job.code)

        shell.snapshot(go)

    def ask_past(self, go: Callable[[str | None], None]) -> None:
        """Learn what another shell would need to take over."""
        if self.shell is None:
            go(self._past)
        else:
            self.shell.snapshot(go)

    @property
    def is_asked(self) -> bool:
        """Whether it has been asked that, and has not answered yet."""
        return self.shell is not None and self.shell.is_asked

    def renew(self, past: str | None, *, spare_jobs: bool = False) -> None:
        """The next command gets a new shell, with a past of its own or none."""
        if self.shell is not None:
            self.shell.dismiss("the shell was replaced", spare_jobs=spare_jobs)
            self.shell = None
        self._past = past

    def abandon(self) -> None:
        """Whoever it works for is about to be answered for, while it works on: nobody would hear
        its answer, or somebody else would. The next command gets a new shell."""
        job = self._command()
        if self.shell is None or not (job or self.is_asked):
            return
        if job is not None:
            job.notes.append(
                "the bash session was ended with the command; the next one gets a new session, "
                "without its folder, exports and functions"
            )
        self.renew(None, spare_jobs=True)

    def kill(self, why: str) -> None:
        if self.shell is not None:
            self.shell.kill(why)

    def interrupt(self, *, hard: bool) -> None:
        if self.shell is not None:
            self.shell.interrupt(hard=hard)

    # -- what the shell says ----------------------------------------------------------------

    def bash_ready(self, code: str) -> None:
        """Hand the command to the shell, which keeps it until it is up."""
        assert self.shell is not None
        try:
            self.shell.run(self._kernel.packages.for_shell(self.shell) + code)
        except ValueError as error:
            if (job := self._command()) is not None:
                job.reply = {"ok": False, "execution_count": None}
                self._kernel.finish(job, outcomes.failed("ValueError", str(error)))

    def bash_printed(self, name: str, text: str) -> None:
        self._kernel.happened({"kind": "stream", "name": name, "text": text})

    def bash_done(self, exit_code: int) -> None:
        """The shell has come back to its prompt."""
        if (job := self._command()) is None:
            return
        job.reply = {"ok": exit_code == 0, "execution_count": None}
        self._finish(job, outcomes.of_command(job, exit_code))

    def bash_ended(self, exit: Exit) -> None:
        """The shell is gone: ``exit`` in the command, or it was killed."""
        self.shell = None
        if self._kernel.ending or (job := self._command()) is None:
            return
        job.reply = {"ok": False, "execution_count": None}
        ended = "ended" if exit.code < 128 else "was killed"
        job.notes.append(
            f"the bash session {ended} ({exit.cause}); the next command gets a new one, without "
            "its folder, exports and functions. Python's variables are kept"
        )
        self._finish(job, outcomes.of_shell(job, exit))

    def _finish(self, job: Execution, outcome: Outcome) -> None:
        if job.bash_before is not None and outcome["status"] != "success":
            if self.shell is not None and self.shell.has_jobs:
                job.notes.append("background jobs run on, but the shell knows them no longer")
            if job.folder_before is not None and (changed := job.folder_before.changes()):
                job.notes.append(f"files are not undone; changed meanwhile: {', '.join(changed)}")
            self.renew(job.bash_before, spare_jobs=True)
            cause = "the command failed; variables, functions and folder are as they were before it"
            outcome = outcomes.undone(outcome, cause, self._kernel.truth)
        self._kernel.finish(job, outcome)

    def _command(self) -> Execution | None:
        """What the shell runs for somebody; a cell that runs beside it is none of its business."""
        job = self._kernel.current
        return job if isinstance(job, Execution) and job.language == "bash" else None

    def _cwd(self) -> str | None:
        if self.shell is not None and self.shell.pid:
            with contextlib.suppress(OSError):
                return os.readlink(f"/proc/{self.shell.pid}/cwd")
        return None

    def _get(self) -> BashMember:
        if self.shell is None:
            kernel = self._kernel
            cwd = kernel.identity.cwd
            if kernel.member is not None and kernel.member.pid:
                with contextlib.suppress(OSError):
                    cwd = os.readlink(f"/proc/{kernel.member.pid}/cwd")
            self.shell = kernel.family.start_bash(kernel, cwd)
            if self._past is not None:
                self.shell.take_over(self._past)
                self._past = None
        return self.shell
