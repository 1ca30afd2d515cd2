"""The registry file: which kernels there are, and which there were and why they ended.

The keeper is its only writer. It is written whole, then renamed into place. A file that cannot be
read is set aside, never deleted.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from typing import Any

Record = dict[str, Any]

_MOST_GRAVES = 500


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

    def find(self, wanted: str) -> Record | None:
        """By id or by name."""
        if wanted in self.kernels:
            return self.kernels[wanted]
        for record in self.kernels.values():
            if record["name"] == wanted:
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
        content = {
            "version": 1,
            "kernels": list(self.kernels.values()),
            "graves": [asdict(grave) for grave in self.graves.values()],
        }
        try:
            fd, temporary = tempfile.mkstemp(dir=os.path.dirname(self.path), prefix=".writing-")
            try:
                with os.fdopen(fd, "w") as file:
                    json.dump(content, file, indent=1)
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
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        for record in content["kernels"]:
            registry.kernels[str(record["kernel_id"])] = {"name": "?", **record}
        for grave in content.get("graves", ()):
            registry.graves[str(grave["kernel_id"])] = Grave(**grave)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        aside = f"{path}.corrupt-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        try:
            os.replace(path, aside)
            registry.problem = f"the registry was unreadable ({error}); it was set aside as {aside}"
        except OSError:
            registry.problem = f"the registry is unreadable ({error}) and cannot be set aside"
        registry.kernels.clear()
        registry.graves.clear()
        registry.dirty = True
    return registry
