"""The spool: every event of an execution, numbered, in memory while small and then on disk.

Past a limit the head and the tail are kept and the middle is dropped, which is said. The warden
writes; whoever wants to page or search the whole output reads the files (:class:`SpoolReader`).

A record is a length, a kind and a payload: text of stdout or stderr, or any other event as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from kernelbox.errors import BadInput

Event = dict[str, Any]

_HEADER = struct.Struct("!IB")
_JSON, _STDOUT, _STDERR = 0, 1, 2
_KIND_OF = {"stdout": _STDOUT, "stderr": _STDERR}
_STREAM_OF = {kind: name for name, kind in _KIND_OF.items()}
_IN_MEMORY = 64 * 1024
_LONGEST_MATCH = 1_000


def _pack(event: Event) -> tuple[int, bytes]:
    name = event.get("name")
    if event["kind"] == "stream" and name in _KIND_OF and not event.get("metadata"):
        return _KIND_OF[name], event["text"].encode("utf-8", "surrogatepass")
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
        return _unpack(_HEADER.unpack_from(record)[1], record[_HEADER.size :])

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
        record = _HEADER.pack(len(payload), kind) + payload
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
        """What a :class:`SpoolReader` needs: files, and what could not be written to them."""
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


@dataclass(frozen=True, slots=True)
class OutputPage:
    """A part of an execution's output: ``text`` starts at character ``start`` of ``total``."""

    text: str
    start: int
    end: int
    total: int
    missing: int = 0


@dataclass(frozen=True, slots=True)
class OutputMatch:
    """A line of an execution's output that a search found; ``start`` is the text's first character.

    Of a line over a thousand characters, ``text`` is the part around the match.
    """

    line: int | None
    start: int
    text: str


class SpoolReader:
    """Pages and searches the output of an execution from the files of its spool."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        self._segments = manifest["segments"]
        self._total: dict[str, int] = manifest["characters"]

    def page(self, stream: str, *, start: int, length: int) -> OutputPage:
        """``length`` characters from ``start`` on (negative: from the end)."""
        total = self._total[stream]
        start = max(0, total + start) if start < 0 else min(start, total)
        end = min(start + max(0, length), total)
        parts: list[str] = []
        for at, text in self._texts(stream, start):
            if at >= end:
                break
            if at + len(text) > start:
                parts.append(text[max(0, start - at) : end - at])
        body = "".join(parts)
        return OutputPage(body, start, end, total, missing=end - start - len(body))

    def search(self, pattern: str, *, stream: str, limit: int) -> list[OutputMatch]:
        """Lines that match the regular expression, the first ``limit`` of them."""
        try:
            wanted = re.compile(pattern)
        except re.error as error:
            raise BadInput(f"{pattern!r} is no regular expression: {error}") from None
        found: list[OutputMatch] = []
        for number, start, line in self._lines(stream):
            if match := wanted.search(line):
                before = match.start() - _LONGEST_MATCH // 4
                first = max(0, before) if len(line) > _LONGEST_MATCH else 0
                text = line[first : first + _LONGEST_MATCH]
                found.append(OutputMatch(number, start + first, text))
                if len(found) >= limit:
                    break
        return found

    def _lines(self, stream: str) -> Iterator[tuple[int | None, int, str]]:
        number: int | None = 1
        held: list[str] = []
        held_at = expected = 0
        for at, text in self._texts(stream, 0):
            if at != expected:  # the dropped middle: line numbers are not known from here on
                if held:
                    yield number, held_at, "".join(held)
                number, held = None, []
            if not held:
                held_at = at
            expected = at + len(text)
            held.append(text)
            if "\n" not in text:
                continue  # joined once: a line may be as long as the whole output
            *whole, rest = "".join(held).split("\n")
            for line in whole:
                yield number, held_at, line
                held_at += len(line) + 1
                if number is not None:
                    number += 1
            held = [rest] if rest else []
        if held:
            yield number, held_at, "".join(held)

    def _texts(self, stream: str, start: int) -> Iterator[tuple[int, str]]:
        """``(first character, text)`` of each record of a stream, from near ``start`` on."""
        wanted = _KIND_OF[stream]
        first = 0
        for index, segment in enumerate(self._segments):
            if segment["before"][stream] <= start:
                first = index
        for segment in self._segments[first:]:
            at = segment["before"][stream]
            with _open(segment) as file:
                while len(header := file.read(_HEADER.size)) == _HEADER.size:
                    length, kind = _HEADER.unpack(header)
                    payload = file.read(length)
                    if len(payload) < length:
                        break  # it is being written right now
                    if kind == wanted:
                        text = payload.decode("utf-8", "surrogatepass")
                        yield at, text
                        at += len(text)


def _open(segment: dict[str, Any]) -> BinaryIO:
    """A segment's records. One whose file is gone has none; the reader says what is missing."""
    if segment.get("content") is not None:
        return io.BytesIO(segment["content"].encode("latin-1"))
    try:
        return open(segment["path"], "rb")
    except FileNotFoundError:
        return io.BytesIO()
