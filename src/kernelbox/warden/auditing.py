"""What of a kernel goes into the audit log. Imported only where there is one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from kernelbox.audit import AuditLog
from kernelbox.errors import Unsupported
from kernelbox.warden.execution import Execution
from kernelbox.warden.jobs import Question

if TYPE_CHECKING:
    from kernelbox.config import Settings
    from kernelbox.spool import Event
    from kernelbox.warden.kernel import Kernel

_LONGEST_WORDS = 500


def open_log(settings: Settings) -> AuditLog:
    assert settings.audit_log
    return AuditLog(
        settings.audit_log, max_bytes=settings.audit_max_bytes, keep=settings.audit_keep
    )


class Auditor:
    """Writes down what happens to one kernel; it observes its executions."""

    def __init__(self, log: AuditLog, kernel: Kernel, *, whole_code: bool) -> None:
        self._log, self._kernel, self._whole_code = log, kernel, whole_code
        self._told = False

    # -- the kernel -------------------------------------------------------------------------

    def created(self) -> None:
        identity = self._kernel.identity
        self.write(
            "kernel.branched" if identity.parent else "kernel.created",
            kernel_type=identity.kernel_type,
            profile=identity.profile,
            made_by=identity.made_by,
            parent=identity.parent,
            session_name=identity.session_name,
            cwd=identity.cwd,
            epoch=self._kernel.truth.epoch,
        )

    def changed(self) -> None:
        """Its namespace is another: by a restart, a rewind, or the death of its interpreter."""
        loss = self._kernel.truth.loss
        if loss is None or loss.state == "rewound":
            event, cause = "kernel.rewound", loss.cause if loss else "a cell was undone"
        elif loss.ename == "KernelRestarted":
            event, cause = "kernel.restarted", loss.cause
        else:
            event, cause = "kernel.lost", loss.cause
        self.write(event, cause=cause[:_LONGEST_WORDS], epoch=self._kernel.truth.epoch)

    def ended(self, cause: str) -> None:
        self.write("kernel.ended", cause=cause[:_LONGEST_WORDS], epoch=self._kernel.truth.epoch)

    def checkpointed(self, checkpoint_id: str, label: str | None) -> None:
        self.write("kernel.checkpoint", checkpoint_id=checkpoint_id, label=label)

    def denied(self, said: dict[str, Any]) -> None:
        """The gate refused something. It knows no kernels, so each of the family is told."""
        running = self._kernel.current
        self.write(
            "denial",
            what="network",
            host=str(said.get("host"))[:300],
            port=said.get("port"),
            reason=str(said.get("reason"))[:100],
            execution_id=running.id if isinstance(running, Execution) else None,
        )

    def installed(self, packages: Sequence[str], *, ok: bool, reason: str = "") -> None:
        """Packages were put into the kernel's environment, or were refused."""
        self.write(
            "install", packages=list(packages)[:100], ok=ok, reason=reason[:_LONGEST_WORDS] or None
        )

    # -- its executions ---------------------------------------------------------------------

    def started(self, job: Execution | Question) -> None:
        if isinstance(job, Question) or job.internal:
            return
        code = job.code.encode("utf-8", "surrogatepass")
        facts: dict[str, Any] = {"sha256": sha256(code).hexdigest(), "characters": len(job.code)}
        if self._whole_code:
            facts["code"] = job.code
        self.write(
            "execution.started",
            execution_id=job.id,
            language=job.language,
            **facts,
            timeout=job.timeout,
            epoch=self._kernel.truth.epoch,
        )

    def happened(self, job: Execution | Question | None, event: Event) -> None:
        """Output is not written down: it is kept where results are."""

    def finished(self, job: Execution | Question) -> None:
        if isinstance(job, Question) or job.internal or job.result is None:
            return
        result = job.result
        error = result.get("error") or {}
        self.write(
            "execution.finished",
            execution_id=job.id,
            language=job.language,
            status=result.get("status"),
            error=str(error["ename"])[:200] if error.get("ename") else None,
            state=result.get("state"),
            epoch=result.get("epoch"),
            seconds=round(result.get("duration_ms", 0) / 1000, 3),
        )

    def write(self, event: str, **facts: Any) -> None:
        """A line; that it cannot be written is a note, once, until it can again."""
        identity = self._kernel.identity
        whose = {"kernel_id": identity.kernel_id, "kernel": identity.name, "warden": os.getpid()}
        if self._log.write(event, whose | facts):
            self._told = False
        elif not self._told:
            self._told = True
            identity.note(self._log.failure)
            self._kernel.note_denial(self._log.failure)


def check_out_of_reach(path: str, mounts: Iterable[tuple[str, str, bool]]) -> None:
    """Code must not write its own history: no sandbox has the log in a folder that it can write."""
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    for source, _, writable in mounts:
        if writable and (real == source or real.startswith(f"{source.rstrip('/')}/")):
            raise Unsupported(
                f"the audit log {path} is in {source}, which this sandbox may write to: let "
                "KERNELBOX_AUDIT_LOG name a place that no sandbox sees"
            )
