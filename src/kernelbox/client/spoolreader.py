"""Pages and searches what an execution printed, in the files of its spool."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from kernelbox.errors import BadInput, in_short
from kernelbox.result import OutputMatch, OutputPage
from kernelbox.spool import HEADER, KIND_OF

_LONGEST_MATCH = 1_000


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
        wanted = compiled(pattern)
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
        wanted = KIND_OF[stream]
        first = 0
        for index, segment in enumerate(self._segments):
            if segment["before"][stream] <= start:
                first = index
        for segment in self._segments[first:]:
            at = segment["before"][stream]
            with _open(segment) as file:
                while len(header := file.read(HEADER.size)) == HEADER.size:
                    length, kind = HEADER.unpack(header)
                    payload = file.read(length)
                    if len(payload) < length:
                        break  # it is being written right now
                    if kind == wanted:
                        text = payload.decode("utf-8", "surrogatepass")
                        yield at, text
                        at += len(text)


def compiled(pattern: object) -> re.Pattern[str]:
    """A regular expression, or :class:`BadInput` that says why it is none."""
    if not isinstance(pattern, str):
        raise BadInput(f"a pattern is a string, not {type(pattern).__name__}")
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:  # numbers, and depths, beyond it
        raise BadInput(f"{in_short(pattern)} is no regular expression: {error}") from None


def _open(segment: dict[str, Any]) -> BinaryIO:
    """A segment's records. One whose file is gone has none; the reader says what is missing."""
    if segment.get("content") is not None:
        return io.BytesIO(segment["content"].encode("latin-1"))
    try:
        return open(segment["path"], "rb")
    except FileNotFoundError:
        return io.BytesIO()
