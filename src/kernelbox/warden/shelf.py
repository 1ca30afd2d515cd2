"""The shelf: the spools of a kernel's executions, the oldest thrown away when it is full."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from kernelbox.spool import Spool

if TYPE_CHECKING:
    from kernelbox.warden.execution import Execution

_MOST_IN_MEMORY = 512 * 1024


class Shelf:
    """Keeps finished executions so that their output can be read again."""

    def __init__(self, folder: str, *, limit: int, total: int, keep: int) -> None:
        self.folder = folder
        self._limit = limit
        self._total = total
        self._keep = keep
        self._kept: OrderedDict[str, Execution] = OrderedDict()
        self._size = 0
        self._in_memory = 0
        self._made = 0

    def new_spool(self, execution_id: str) -> Spool:
        self._made += 1
        stem = os.path.join(self.folder, str(self._made))
        return Spool(stem, execution_id, limit=self._limit)

    def keep(self, execution: Execution) -> None:
        """Put a finished execution on the shelf; the oldest make room for it."""
        spool = execution.spool
        if execution.id in self._kept:
            self._throw_away(self._kept.pop(execution.id))  # a client used its id again
        self._kept[execution.id] = execution
        if spool is not None:
            spool.seal()
            self._size += spool.size
            self._in_memory += spool.in_memory
        while len(self._kept) > self._keep or (len(self._kept) > 1 and self._size > self._total):
            self._throw_away(self._kept.popitem(last=False)[1])
        if self._in_memory > _MOST_IN_MEMORY:
            for old in self._kept.values():
                if old.spool is not None and old.spool.in_memory:
                    old.spool.retire_to_disk()
            self._in_memory = sum(e.spool.in_memory for e in self._kept.values() if e.spool)

    def find(self, execution_id: str) -> Execution | None:
        return self._kept.get(execution_id)

    def recent(self, most: int) -> list[dict[str, Any]]:
        """The latest executions that are kept, the last one first."""
        latest = list(self._kept.values())[-most:]
        return [
            {
                "execution_id": execution.id,
                "language": execution.language,
                "code": execution.code[:200],
                "status": (execution.result or {}).get("status"),
            }
            for execution in reversed(latest)
        ]

    def clear(self) -> None:
        for execution in self._kept.values():
            if execution.spool is not None:
                execution.spool.delete()
        self._kept.clear()
        self._size = self._in_memory = 0
        with contextlib.suppress(OSError):
            shutil.rmtree(self.folder)

    def make_folder(self) -> None:
        try:
            os.mkdir(self.folder, 0o700)
        except FileExistsError:
            pass  # a spare has made it ahead
        except FileNotFoundError:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)

    def _throw_away(self, execution: Execution) -> None:
        if execution.spool is not None:
            self._size -= execution.spool.size
            self._in_memory -= execution.spool.in_memory
            execution.spool.delete()
