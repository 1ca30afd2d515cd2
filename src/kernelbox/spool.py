"""The spool: every event of an execution, numbered, in memory while small and then on disk.

Past a limit the head and the tail are kept and the middle is dropped, which is said. The warden
writes; whoever wants to page or search the whole output reads the files
(``client/spoolreader.py``).

A record is a length, a kind and a payload: text of stdout or stderr, or any other event as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from array import array
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]

HEADER = struct.Struct("!IB")
_JSON, _STDOUT, _STDERR = 0, 1, 2
KIND_OF = {"stdout": _STDOUT, "stderr": _STDERR}
_STREAM_OF = {kind: name for name, kind in KIND_OF.items()}
_IN_MEMORY = 64 * 1024


def _pack(event: Event) -> tuple[int, bytes]:
    name = event.get("name")
    if event["kind"] == "stream" and name in KIND_OF and not event.get("metadata"):
        return KIND_OF[name], event["text"].encode("utf-8", "surrogatepass")
    return _JSON, json.dumps(event, default=str).encode("ascii")


def _unpack(kind: int, payload: bytes) -> Event:
    if kind == _JSON:
        event: Event = json.loads(payload)
        return event
    text = payload.decode("utf-8", "surrogatepass")
    return {"kind": "stream", "name": _STREAM_OF[kind], "text": text}


@dataclass(slots=True)
class _Segment:
    """A run of records: in ``memory`` until it has a ``path``."""

    first: int
    before: dict[str, int]  # characters of each stream before this segment
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    size: int = 0
    memory: bytearray | None = field(default_factory=bytearray)
    path: str = ""
    fd: int = -1

    def append(self, record: bytes) -> None:
        """Add a record; on a full disk nothing is added and the error is raised."""
        if self.memory is not None:
            self.memory += record
        else:
            try:
                _write_all(self.fd, record)
            except OSError:
                os.lseek(self.fd, self.size, os.SEEK_SET)
                os.ftruncate(self.fd, self.size)  # half a record would be read as garbage
                raise
        self.offsets.append(self.size)
        self.size += len(record)

    def to_disk(self, path: str) -> None:
        if self.memory is None:
            return
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_all(fd, self.memory)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        self.path, self.fd, self.memory = path, fd, None

    def read(self, start: int, end: int) -> bytes:
        if self.memory is not None:
            return bytes(self.memory[start:end])
        if self.fd >= 0:
            return os.pread(self.fd, end - start, start)
        with open(self.path, "rb") as file:
            file.seek(start)
            return file.read(end - start)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def event(self, index: int) -> Event:
        start = self.offsets[index]
        end = self.offsets[index + 1] if index + 1 < len(self.offsets) else self.size
        record = self.read(start, end)
        return _unpack(HEADER.unpack_from(record)[1], record[HEADER.size :])

    def drop(self) -> None:
        self.close()
        if self.path:
            with contextlib.suppress(OSError):
                os.unlink(self.path)


class Spool:
    """The events of one execution, as the warden keeps them."""

    def __init__(self, stem: str, execution_id: str, *, limit: int) -> None:
        """Its files are ``stem`` and a number: the id is the client's, and no part of a path."""
        self._stem = stem
        self._over = False
        self.execution_id = execution_id
        self.failure: str | None = None
        self._head = limit // 2
        self._tail_segment = max(limit // 8, 4096)
        self._tail = limit - self._head
        self._segments = [_Segment(0, {"stdout": 0, "stderr": 0})]
        self._made = 0
        self.count = 0
        self.characters = {"stdout": 0, "stderr": 0}

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def in_memory(self) -> int:
        return sum(len(segment.memory or b"") for segment in self._segments)

    def append(self, event: Event) -> int:
        """Keep an event; its number is returned."""
        kind, payload = _pack(event)
        segment = self._segments[-1]
        room = self._head if len(self._segments) == 1 else self._tail_segment
        if segment.size and segment.size + len(payload) > room:
            segment = _Segment(self.count, dict(self.characters))
            self._segments.append(segment)
            self._drop_the_middle()
        record = HEADER.pack(len(payload), kind) + payload
        try:
            segment.append(record)
        except OSError as error:
            self._give_up_the_disk(error)
            self._segments[-1].append(record)
        number = self.count
        self.count += 1
        if kind != _JSON:
            self.characters[event["name"]] += len(event["text"])
        if segment.memory is not None and segment.size > _IN_MEMORY and not self.failure:
            try:
                segment.to_disk(self._new_path())
            except OSError as error:
                self._give_up_the_disk(error)
        return number

    def read(self, number: int, *, at_most: int) -> list[tuple[int, Event]]:
        """Events from ``number`` on, about ``at_most`` bytes of them; a gap is an event too."""
        found: list[tuple[int, Event]] = []
        taken = 0
        for segment in self._segments:
            end = segment.first + len(segment.offsets)
            if number >= end:
                continue
            if number < segment.first:
                found.append((segment.first - 1, {"kind": "gap", "events": segment.first - number}))
                number = segment.first
            while number < end:
                event = segment.event(number - segment.first)
                found.append((number, event))
                taken += len(event.get("text") or "") or 200
                number += 1
                if taken >= at_most:
                    return found
        if number < self.count:
            # Thrown away while it was read: whoever reads must get to the end all the same.
            found.append((self.count - 1, {"kind": "gap", "events": self.count - number}))
        return found

    def manifest(self) -> dict[str, Any]:
        """What a ``SpoolReader`` needs: files, and what could not be written to them."""
        self.retire_to_disk()
        return {
            "execution_id": self.execution_id,
            "characters": dict(self.characters),
            "events": self.count,
            "failure": self.failure,
            "segments": [
                {
                    "path": segment.path,
                    "first": segment.first,
                    "before": segment.before,
                    "content": segment.memory.decode("latin-1") if segment.memory else None,
                }
                for segment in self._segments
            ],
        }

    def retire_to_disk(self) -> None:
        """Free the memory of an execution that is over, as far as the disk has room."""
        with contextlib.suppress(OSError):
            for segment in self._segments:
                segment.to_disk(self._new_path())
        if self._over:
            self.seal()

    def seal(self) -> None:
        """The execution is over: a shelf full of open files would use up our descriptors."""
        self._over = True
        for segment in self._segments:
            segment.close()

    def delete(self) -> None:
        for segment in self._segments:
            segment.drop()
        self._segments = []

    def _new_path(self) -> str:
        self._made += 1
        return f"{self._stem}.{self._made}"

    def _drop_the_middle(self) -> None:
        while len(self._segments) > 2 and sum(s.size for s in self._segments[1:]) > self._tail:
            self._segments.pop(1).drop()

    def _give_up_the_disk(self, error: OSError) -> None:
        """A full disk must not stop the cell: keep the head, and the latest events in memory."""
        self.failure = f"output could not be written to disk ({error.strerror}); its middle is lost"
        self._tail = _IN_MEMORY
        self._tail_segment = _IN_MEMORY // 4
        self._segments.append(_Segment(self.count, dict(self.characters)))
        self._drop_the_middle()


def _write_all(fd: int, data: bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
