"""The shelf: the spools of a kernel's executions, the oldest thrown away when it is full."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import OrderedDict
from typing import TYPE_CHECKING

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

    def new_spool(self, execution_id: str) -> Spool:
        return Spool(self.folder, execution_id, limit=self._limit)

    def keep(self, execution: Execution) -> None:
        self._kept[execution.id] = execution
        kept = self._kept
        while len(kept) > self._keep or (len(kept) > 1 and self._size() > self._total):
            _, oldest = kept.popitem(last=False)
            if oldest.spool is not None:
                oldest.spool.delete()
        if self._in_memory() > _MOST_IN_MEMORY:
            for old in list(kept.values())[:-1]:
                if old.spool is not None and old.spool.in_memory:
                    old.spool.retire_to_disk()

    def find(self, execution_id: str) -> Execution | None:
        return self._kept.get(execution_id)

    def clear(self) -> None:
        for execution in self._kept.values():
            if execution.spool is not None:
                execution.spool.delete()
        self._kept.clear()
        with contextlib.suppress(OSError):
            shutil.rmtree(self.folder)

    def make_folder(self) -> None:
        os.makedirs(self.folder, mode=0o700, exist_ok=True)

    def _size(self) -> int:
        return sum(e.spool.size for e in self._kept.values() if e.spool is not None)

    def _in_memory(self) -> int:
        return sum(e.spool.in_memory for e in self._kept.values() if e.spool is not None)
