"""The digest: what a result says of a cell's output, small enough for a context window.

Pure: events go in, the output fields of a result come out. Of each stream the head and the tail
are kept (errors live at the end); a progress bar that redraws its line counts once.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from kernelbox.spool import Event

_Piece = tuple[int, str]
_LONGEST_HELD_LINE = 1 << 16


class LineFolder:
    """Plays a terminal's carriage return: what was on the line is overwritten."""

    def __init__(self) -> None:
        self._line = ""
        self._order = 0

    def feed(self, order: int, text: str) -> list[_Piece]:
        """The text that is final now; the line that is still open is held."""
        if self._line:
            first, text = self._order, self._line + text
        else:
            first = order
        if "\r" in text:
            text = _overwrite(text)
        end = text.rfind("\n") + 1
        self._line, self._order = text[end:], first if end == 0 else order
        done = [(first, text[:end])] if end else []
        if len(self._line) > _LONGEST_HELD_LINE and "\r" not in self._line:
            done += self.finish()
        return done

    def finish(self) -> list[_Piece]:
        line, self._line = self._line, ""
        return [(self._order, line)] if line else []


def _overwrite(text: str) -> str:
    lines = text.replace("\r\n", "\n").split("\n")
    for number, line in enumerate(lines):
        if "\r" in line:
            drawn = line.split("\r")
            # A return at the very end waits for what will be drawn over the line.
            kept = drawn[-1] or (drawn[-2] + "\r" if number == len(lines) - 1 else drawn[-2])
            lines[number] = kept
    return "\n".join(lines)


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


class Digest:
    """Collects the events of one execution and makes the output fields of its result."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._streams = {name: HeadAndTail(limit) for name in ("stdout", "stderr")}
        self._folders = {name: LineFolder() for name in self._streams}
        self._items: list[tuple[int, dict[str, Any]]] = []
        self._order = 0
        self._return_value: str | None = None
        self._cut_value = False

    def add(self, event: Event) -> None:
        self._order += 1
        kind = event["kind"]
        if kind == "stream" and not event.get("metadata"):
            name = event["name"]
            for order, text in self._folders[name].feed(self._order, event["text"]):
                self._streams[name].add(order, text)
        elif kind in _SHOWN:
            item = {"kind": kind, "text": event.get("text"), "name": event.get("name")}
            item["data"] = self._bounded(event.get("data") or {})
            item["metadata"] = event.get("metadata") or {}
            if kind == "execute_result":
                self._return_value = item["data"].get("text/plain")
            if item["text"] is None:
                item["text"] = item["data"].get("text/plain")
            self._items.append((self._order, item))

    def finish(self) -> dict[str, Any]:
        """``output``, ``stderr``, ``return_value``, ``outputs``, ``truncated`` and the totals."""
        texts: dict[str, str] = {}
        items = list(self._items)
        for name, stream in self._streams.items():
            for order, text in self._folders[name].finish():
                stream.add(order, text.rstrip("\r"))
            pieces = stream.pieces()
            texts[name] = "".join(text for _, text in pieces)
            items += [(order, _stream_item(name, text)) for order, text in pieces if text]
        items.sort(key=lambda entry: entry[0])
        return {
            "output": texts["stdout"],
            "stderr": texts["stderr"],
            "return_value": self._return_value,
            "outputs": _joined([item for _, item in items]),
            "truncated": self._cut_value or any(s.truncated for s in self._streams.values()),
        }

    def _bounded(self, data: dict[str, Any]) -> dict[str, Any]:
        """The representations of a value, with plain text held to the limit as well."""
        plain = data.get("text/plain")
        if not isinstance(plain, str) or len(plain) <= self._limit:
            return data
        kept = HeadAndTail(self._limit)
        kept.add(0, plain)
        self._cut_value = True
        return {**data, "text/plain": "".join(text for _, text in kept.pieces())}


_SHOWN = {
    "stream",
    "display_data",
    "update_display_data",
    "execute_result",
    "clear_output",
    "error",
}


def _stream_item(name: str, text: str) -> dict[str, Any]:
    return {"kind": "stream", "name": name, "text": text, "data": {}, "metadata": {}}


def _joined(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbouring pieces of one stream as one item."""
    joined: list[dict[str, Any]] = []
    for item in items:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last["kind"] == item["kind"] == "stream"
            and last["name"] == item["name"]
            and last["metadata"] == item["metadata"]
        ):
            last["text"] += item["text"]
        else:
            joined.append(item)
    return joined
