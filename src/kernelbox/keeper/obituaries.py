"""The last line of a kernel in the audit log, when its warden was killed and could not write it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelbox.config import Settings
    from kernelbox.keeper.registry import Record


class Obituaries:
    """Knows which kernels are audited, and where."""

    def __init__(self) -> None:
        self._logs: dict[str, tuple[str, int, int]] = {}

    def remember(self, kernel_id: str, settings: dict[str, Any]) -> None:
        """By the settings of whoever made it."""
        if path := settings.get("audit_log"):
            self._logs[kernel_id] = path, settings["audit_max_bytes"], settings["audit_keep"]

    def forget(self, kernel_id: str) -> None:
        self._logs.pop(kernel_id, None)

    def write(self, kernel: Record | None, cause: str, *, latest: Settings) -> None:
        """``latest``: for kernels that another keeper has made; it may have written elsewhere."""
        if kernel is None:
            return
        kernel_id = kernel["kernel_id"]
        fallback = (latest.audit_log, latest.audit_max_bytes, latest.audit_keep)
        path, max_bytes, keep = self._logs.get(kernel_id, fallback)
        if not path:
            return
        from kernelbox.audit import AuditLog

        log = AuditLog(path, max_bytes=max_bytes, keep=keep)
        whose = {"kernel_id": kernel_id, "kernel": kernel["name"], "keeper": os.getpid()}
        log.write("kernel.ended", {**whose, "cause": cause})
        log.close()
