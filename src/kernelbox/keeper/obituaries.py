"""The last line of a kernel in the audit log, when its warden was killed and could not write it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelbox.config import Settings
    from kernelbox.keeper.registry import Record


class Obituaries:
    """Knows which kernels are audited, and where."""

    def __init__(self) -> None:
        self._settings: dict[str, Settings] = {}

    def remember(self, kernel_id: str, settings: Settings) -> None:
        """By the settings of whoever made it."""
        if settings.audit_log:
            self._settings[kernel_id] = settings

    def forget(self, kernel_id: str) -> None:
        self._settings.pop(kernel_id, None)

    def write(self, kernel: Record | None, cause: str, *, latest: Settings) -> None:
        """``latest``: for kernels that another keeper has made; it may have written elsewhere."""
        if kernel is None:
            return
        kernel_id = kernel["kernel_id"]
        settings = self._settings.get(kernel_id, latest)
        if not settings.audit_log:
            return
        from kernelbox.audit import AuditLog

        log = AuditLog(
            settings.audit_log, max_bytes=settings.audit_max_bytes, keep=settings.audit_keep
        )
        whose = {"kernel_id": kernel_id, "kernel": kernel["name"], "keeper": os.getpid()}
        log.write("kernel.ended", {**whose, "cause": cause})
        log.close()
