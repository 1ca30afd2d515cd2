"""The digest: what a result says of a cell's output, small enough for a context window.

Pure: events go in, the output fields of a result come out. Of each stream the head and the tail
are kept (errors live at the end); a progress bar that redraws its line counts once.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from kernelbox.spool import Event

_Piece = tuple[int, str]
_LONGEST_HELD_LINE = 1 << 16


class LineFolder:
    """Plays a terminal's carriage return: what was on the line is overwritten."""

    def __init__(self) -> None:
        self._line: list[_Piece] = []
        self._held = 0
        self._returned = False

    def feed(self, order: int, text: str) -> list[_Piece]:
        """The text that is final now; the line that is still open is held."""
        if self._returned or "\r" in text:
            done = self._draw(order, text)
        else:
            end = text.rfind("\n") + 1
            done = [*self.finish(), (order, text[:end])] if end else []
            if end < len(text):
                self._hold(order, text[end:])
        if self._held > _LONGEST_HELD_LINE and not self._returned:
            done += self.finish()
        return done

    def finish(self) -> list[_Piece]:
        line, self._line, self._held, self._returned = self._line, [], 0, False
        return line

    def _draw(self, order: int, text: str) -> list[_Piece]:
        done: list[_Piece] = []
        for number, line in enumerate(text.split("\n")):
            if number:
                # Also after a return: "\\r\\n" is a plain end of line.
                done += [*self.finish(), (order, "\n")]
            for place, drawn in enumerate(line.split("\r")):
                if place:
                    self._returned = True
                if drawn:
                    if self._returned:
                        self.finish()
                    self._hold(order, drawn)
        return done

    def _hold(self, order: int, text: str) -> None:
        self._line.append((order, text))
        self._held += len(text)


class HeadAndTail:
    """Keeps the first and the last characters of a stream, ``limit`` in all, marker included."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._head: list[_Piece] = []
        self._head_size = 0
        self._tail: deque[_Piece] = deque()
        self._tail_size = 0
        self.total = 0

    @property
    def truncated(self) -> bool:
        return self.total > self._limit

    def add(self, order: int, text: str) -> None:
        self.total += len(text)
        room = self._limit - self._head_size
        if room > 0:
            head, text = text[:room], text[room:]
            self._head.append((order, head))
            self._head_size += len(head)
        if text:
            text = text[-self._limit :]
            self._tail.append((order, text))
            self._tail_size += len(text)
            while self._tail_size - len(self._tail[0][1]) >= self._limit:
                self._tail_size -= len(self._tail.popleft()[1])

    def pieces(self) -> list[_Piece]:
        """What is kept, in order, with a line that says how much was left out."""
        if not self.truncated:
            return self._head
        room = self._limit - len(_marker(self.total, self.total))
        if room < 2:
            return _last(self._head + list(self._tail), self._limit)
        head = _first(self._head, room // 2)
        tail = _last(self._head + list(self._tail), room - room // 2)
        left_out = self.total - room
        order = tail[0][0] if tail else 0
        return [*head, (order, _marker(left_out, self.total)), *tail]


def _marker(left_out: int, total: int) -> str:
    return f"\n[… {left_out:,} of {total:,} characters left out …]\n"


def _first(pieces: list[_Piece], size: int) -> list[_Piece]:
    kept = []
    for order, text in pieces:
        if size <= 0:
            break
        kept.append((order, text[:size]))
        size -= len(text)
    return kept


def _last(pieces: list[_Piece], size: int) -> list[_Piece]:
    kept: list[_Piece] = []
    for order, text in reversed(pieces):
        if size <= 0:
            break
        kept.append((order, text[-size:]))
        size -= len(text)
    kept.reverse()
    return kept


def bounded(text: str, limit: int) -> str:
    """Head and tail of a text, ``limit`` characters in all."""
    if len(text) <= limit:
        return text
    kept = HeadAndTail(limit)
    kept.add(0, text)
    return "".join(part for _, part in kept.pieces())


def bounded_error(error: dict[str, Any], limit: int) -> dict[str, Any]:
    """An error whose message and traceback, too, fit a context window."""
    lines = bounded_lines(error["traceback"], limit)
    return {**error, "evalue": bounded(error["evalue"], limit), "traceback": lines}


def bounded_lines(lines: list[str], limit: int) -> list[str]:
    """The lines of a traceback, head and tail of them if they are too many."""
    whole = "\n".join(lines)
    return bounded(whole, limit).split("\n") if len(whole) > limit else lines


class _Stream:
    """One stream on its way into a result: progress bars folded, the middle left out."""

    def __init__(self, name: str, limit: int, metadata: dict[str, Any]) -> None:
        self.name = name
        self.metadata = metadata
        self.kept = HeadAndTail(limit)
        self._folder = LineFolder()

    def add(self, order: int, text: str) -> None:
        for piece in self._folder.feed(order, text):
            self.kept.add(*piece)

    def finish(self) -> list[_Piece]:
        for piece in self._folder.finish():
            self.kept.add(*piece)
        return self.kept.pieces()

    def item(self, text: str) -> dict[str, Any]:
        metadata = dict(self.metadata)
        return {"kind": "stream", "name": self.name, "text": text, "data": {}, "metadata": metadata}


class Digest:
    """Collects the events of one execution and makes the output fields of its result."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._streams: dict[tuple[str, bool], _Stream] = {}
        self._items: deque[tuple[int, int, dict[str, Any]]] = deque()  # order, size, item
        self._size = 0
        self._order = 0
        self._return_value: str | None = None
        self.cut_value = False
        self.cut_error = False
        self.left_out = 0

    @property
    def cut_stream(self) -> bool:
        return any(stream.kept.truncated for stream in self._streams.values())

    def add(self, event: Event) -> None:
        self._order += 1
        kind = event["kind"]
        if kind == "stream":
            metadata = event.get("metadata") or {}
            key = (event["name"], bool(metadata))
            if key not in self._streams:
                self._streams[key] = _Stream(event["name"], self._limit, metadata)
            self._streams[key].add(self._order, event["text"])
        elif kind in _SHOWN:
            item = {"kind": kind, "text": event.get("text"), "name": event.get("name")}
            item["data"] = self._bounded(kind, event.get("data") or {})
            item["metadata"] = event.get("metadata") or {}
            if kind == "execute_result":
                self._return_value = item["data"].get("text/plain")
            if kind == "error":
                item["text"] = "\n".join(item["data"]["traceback"])
            elif item["text"] is None:
                item["text"] = item["data"].get("text/plain")
            self._show(item)

    def stderr_tail(self) -> str:
        """The last that was written to stderr, some lines of it."""
        stream = self._streams.get(("stderr", False))
        text = "".join(text for _, text in stream.finish()) if stream else ""
        return "\n".join(text.rstrip("\n").split("\n")[-_TAIL_LINES:])

    def finish(self) -> dict[str, Any]:
        """``output``, ``stderr``, ``return_value``, ``outputs`` and ``truncated``."""
        texts = {"stdout": "", "stderr": ""}
        items = [(order, item) for order, _, item in self._items]
        for (name, apart), stream in self._streams.items():
            pieces = stream.finish()
            if not apart:
                texts[name] = "".join(text for _, text in pieces)
            items += [(order, stream.item(text)) for order, text in pieces if text]
        items.sort(key=lambda entry: entry[0])
        return {
            "output": texts["stdout"],
            "stderr": texts["stderr"],
            "return_value": self._return_value,
            "outputs": _joined([item for _, item in items]),
            "truncated": bool(self.cut_value or self.cut_error or self.left_out or self.cut_stream),
        }

    def _show(self, item: dict[str, Any]) -> None:
        """The latest are kept: a plot that is drawn again and again must not fill our memory."""
        size = _size(item)
        self._items.append((self._order, size, item))
        self._size += size
        while self._size > MOST_SHOWN or len(self._items) > MOST_ITEMS:
            if len(self._items) == 1:
                # One that is too large by itself: its words are kept.
                order, size, item = self._items.pop()
                item["data"] = {"text/plain": bounded(str(item["text"] or ""), self._limit)}
                item["metadata"] = {}
                self._size += _size(item) - size
                self._items.append((order, _size(item), item))
                self.left_out += 1
                return
            self._size -= self._items.popleft()[1]
            self.left_out += 1

    def _bounded(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        """The representations of a value, with plain text held to the limit as well."""
        if kind == "error":
            bounded_data = bounded_error(data, self._limit)
            self.cut_error = self.cut_error or bounded_data != data
            return bounded_data
        plain = data.get("text/plain")
        if not isinstance(plain, str) or len(plain) <= self._limit:
            return data
        self.cut_value = True
        return {**data, "text/plain": bounded(plain, self._limit)}


MOST_SHOWN = 32 * 1024 * 1024
"""Bytes, about: of displays, values and errors in one result."""

MOST_ITEMS = 5_000
_TAIL_LINES = 20


def _size(item: dict[str, Any]) -> int:
    """About what it takes up: strings by their length, the rest as JSON."""
    total = 200
    for part in (item["data"], item["metadata"]):
        for value in part.values():
            total += len(value) if isinstance(value, str) else len(json.dumps(value, default=str))
    return total


_SHOWN = {
    "stream",
    "display_data",
    "update_display_data",
    "execute_result",
    "clear_output",
    "error",
}


def _joined(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbouring pieces of one stream as one item."""
    joined: list[dict[str, Any]] = []
    pieces: list[str] = []  # of the last item: added to a string one by one, cost grows with size
    for item in items:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last["kind"] == item["kind"] == "stream"
            and last["name"] == item["name"]
            and last["metadata"] == item["metadata"]
        ):
            pieces.append(item["text"])
            continue
        if len(pieces) > 1 and last is not None:
            last["text"] = "".join(pieces)
        joined.append(item)
        pieces = [item["text"]]
    if len(pieces) > 1:
        joined[-1]["text"] = "".join(pieces)
    return joined
