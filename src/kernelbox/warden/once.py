"""Idempotency keys: an execution that is asked for twice runs once, and both hear its result.

Outside the interpreter, so neither a rewind nor a crash forgets them, and in the warden, so neither
does a restart of whatever server the request came through.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kernelbox.errors import KeyReused

if TYPE_CHECKING:
    from kernelbox.warden.execution import Execution, Result

_KEPT_FOR = 24 * 3600.0
_MOST_KEYS = 100_000
_SMALL = 2_000


@dataclass(slots=True)
class _Entry:
    """What a key stands for: an execution that is under way, then its result, here or in a file."""

    fingerprint: str
    since: float
    execution: weakref.ref[Execution]  # the shelf keeps it as long as its output can be read
    running: Execution | None
    result: Result | None = None
    path: str = ""

    def known(self) -> Known | None:
        if self.running is not None:
            return Known(self.running, None)
        result = self.result
        if self.path:
            try:
                with open(self.path, "rb") as file:
                    result = json.load(file)
            except (OSError, ValueError):
                return None
        return Known(self.execution(), result) if result is not None else None


class Known(NamedTuple):
    """What a key stands for: an execution, if it is still there, and its result, if it has one."""

    execution: Execution | None
    result: Result | None


class Once:
    """The keys of one kernel."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._files = 0

    def find(self, key: str, fingerprint: str) -> Known | None:
        """What the key stands for; None: it is new."""
        self._forget_old()
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.fingerprint != fingerprint:
            raise KeyReused(
                "this idempotency key came before with another request, and that is what it stands "
                "for. Nothing was run now. Use a new key for each new request, and an old one only "
                "to send the very same again."
            )
        return entry.known()

    def begin(self, key: str, fingerprint: str, execution: Execution) -> None:
        entry = _Entry(fingerprint, time.monotonic(), weakref.ref(execution), execution)
        self._entries[key] = entry

        def finished(result: Result) -> None:
            entry.running = None
            if execution.ran and "refusal" not in result:
                self._keep(entry, result)
            elif self._entries.get(key) is entry:
                del self._entries[key]  # nothing has happened, so the same may be asked for again

        execution.on_result = finished

    def _keep(self, entry: _Entry, result: Result) -> None:
        """Small results stay here; a day of large ones would be a burden, so they go to disk."""
        text = json.dumps(result, default=str)
        if len(text) > _SMALL:
            self._files += 1
            path = os.path.join(self._folder, f"once-{self._files}.json")
            try:
                with open(path, "x", encoding="ascii") as file:
                    file.write(text)
            except OSError:
                _remove(path)  # the disk is full: rather the memory than running it twice
            else:
                entry.path = path
                return
        entry.result = json.loads(text)

    def _forget_old(self) -> None:
        horizon = time.monotonic() - _KEPT_FOR
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if entry.since > horizon and len(self._entries) <= _MOST_KEYS:
                return
            del self._entries[key]
            if entry.path:
                _remove(entry.path)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
