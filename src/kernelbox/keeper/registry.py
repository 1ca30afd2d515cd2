"""The registry file: which kernels there are, and which there were and why they ended.

The keeper is its only writer. It is written whole, then renamed into place. A file that cannot be
read is set aside, never deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
import uuid
from collections import OrderedDict
from collections.abc import Container, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

Record = dict[str, Any]

_MOST_GRAVES = 500
_END_OF_TIME = 1e11
_KINDS: dict[str, Any] = {
    "cause": str | None,
    "created_at": int | float,
    "ended_at": int | float,
    "epoch": int,
    "kernel_id": str,
    "last_used_at": int | float,
}


@dataclass(slots=True)
class Grave:
    """A kernel that ended by itself, and why."""

    kernel_id: str
    name: str
    cause: str
    epoch: int
    ended_at: float = field(default_factory=time.time)


@dataclass(slots=True)
class Registry:
    """Live kernels by id, and the graves of those that ended unasked."""

    path: str
    kernels: dict[str, Record] = field(default_factory=dict)
    graves: OrderedDict[str, Grave] = field(default_factory=OrderedDict)
    dirty: bool = False
    problem: str | None = None
    set_aside: str | None = None  # what became of an unreadable file, until somebody was told

    def find(self, wanted: str, *, besides: Container[str] = ()) -> Record | None:
        """By id or by name, leaving out the kernels with these ids."""
        if wanted in self.kernels:
            return None if wanted in besides else self.kernels[wanted]
        for kernel_id, record in self.kernels.items():
            if record["name"] == wanted and kernel_id not in besides:
                return record
        return None

    def grave(self, wanted: str) -> Grave | None:
        """By id or by name, the latest first."""
        for grave in reversed(self.graves.values()):
            if wanted in (grave.kernel_id, grave.name):
                return grave
        return None

    def add(self, record: Record) -> None:
        self.kernels[record["kernel_id"]] = record
        self.dirty = True

    def remove(self, kernel_id: str) -> Record | None:
        self.dirty = True
        return self.kernels.pop(kernel_id, None)

    def bury(self, kernel_id: str, *, cause: str, epoch: int | None = None) -> None:
        """A kernel ended without being destroyed: remember it for whoever comes back."""
        record = self.remove(kernel_id)
        if record is not None:
            last = epoch if epoch is not None else int(record.get("epoch", 1)) + 1
            self.graves[kernel_id] = Grave(kernel_id, record["name"], cause, last)
            while len(self.graves) > _MOST_GRAVES:
                self.graves.popitem(last=False)

    def forget_graves(self, name: str) -> None:
        for kernel_id in [key for key, grave in self.graves.items() if grave.name == name]:
            del self.graves[kernel_id]
            self.dirty = True

    def save(self) -> None:
        """Write if anything changed. A full disk is remembered, not raised: kernels matter more."""
        if not self.dirty or not self.path:
            return
        content = (
            '{"version": 1,\n'
            f' "kernels": [{_lines(self.kernels.values())}],\n'
            f' "graves": [{_lines(asdict(grave) for grave in self.graves.values())}]}}\n'
        )
        folder, name = os.path.split(self.path)
        try:
            fd, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}-writing-")
            try:
                with os.fdopen(fd, "w") as file:
                    file.write(content)
                os.replace(temporary, self.path)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as error:
            self.problem = f"the registry {self.path!r} cannot be written: {error.strerror}"
        else:
            self.dirty = False
            self.problem = None


def load(path: str) -> Registry:
    """What the file says; a corrupted one is set aside (kernels are found by their sockets)."""
    registry = Registry(path)
    if not path:
        return registry
    _remove_half_written(path)
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        for record in content["kernels"]:
            registry.kernels[_checked(record, "kernel_id")] = record
        for grave in content.get("graves", ()):
            registry.graves[_checked(grave, "kernel_id")] = Grave(**grave)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        registry = Registry(path, dirty=True, set_aside=_set_aside(path, error))
    return registry


def _checked(entry: Record, key: str) -> str:
    """The id of an entry, if all in it is of the kind that others count on."""
    for name, kinds in _KINDS.items():
        value = entry.get(name)
        if name in entry and not isinstance(value, kinds):
            raise ValueError(f"{name} is {value!r}")
        if isinstance(value, int | float) and not 0 <= value < _END_OF_TIME:
            raise ValueError(f"{name} is {value!r}")
    if not isinstance(entry["name"], str):
        raise ValueError(f"name is {entry['name']!r}")
    # Files are removed by this id: it must not lead anywhere else.
    return str(uuid.UUID(entry[key]))


def _set_aside(path: str, error: Exception) -> str:
    """Move an unreadable registry out of the way; what it held may matter to somebody."""
    words = f"the registry {path!r} was unreadable ({type(error).__name__}: {error})"
    aside = f"{path}.corrupt-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    if not os.path.isfile(path):
        return f"{words} and is not a file"
    try:
        os.replace(path, aside)
    except OSError as failure:
        return f"{words} and cannot be set aside: {failure.strerror}"
    return f"{words}; it was set aside as {aside!r}"


def _remove_half_written(path: str) -> None:
    """A keeper that was killed while it wrote has left a file behind that is nobody's."""
    folder, name = os.path.split(path)
    with contextlib.suppress(OSError):
        for found in os.listdir(folder):
            if found.startswith(f".{name}-writing-"):
                os.unlink(os.path.join(folder, found))


def _lines(entries: Iterable[Record]) -> str:
    """A line each: readable enough, and not json's own indentation, which is ten times slower."""
    return ",\n  ".join(map(json.dumps, entries))
