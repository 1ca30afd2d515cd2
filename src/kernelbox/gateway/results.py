"""What a client of the gateway gets back, and how output becomes text and pictures."""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_SUFFIXES = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/svg+xml": ".svg",
    "image/gif": ".gif",
    "image/webp": ".webp",
}


@dataclass
class ExecutionResult:
    """The result of code that ran to its end.

    - ``text``: all that it printed and the value of its last expression, in order; None if nothing
    - ``images``: the pictures that it showed, as files
    - ``outputs``: everything that it showed, each a mapping of MIME types to content
    """

    text: str | None
    images: list[Path]
    outputs: list[dict[str, Any]] = field(default_factory=list)


class ExecutionError(Exception):
    """Code raised an error. The message has the traceback; ``result`` what was put out before."""

    def __init__(
        self,
        message: str,
        *,
        ename: str = "",
        evalue: str = "",
        result: ExecutionResult | None = None,
    ) -> None:
        super().__init__(message)
        self.ename = ename
        self.evalue = evalue
        self.result = result or ExecutionResult(None, [])


class KernelDied(ExecutionError):
    """The kernel ended while the code ran, or before it could; the message says why."""


class Collected:
    """The output of one execution, as it comes in."""

    def __init__(self, images_dir: Path) -> None:
        self._images_dir = images_dir
        self._chunks: list[str] = []
        self._displays: list[dict[str, Any]] = []
        self._by_id: dict[str, int] = {}
        self._clear_next = False

    def stream(self, text: str) -> str:
        self._forget_if_asked()
        self._chunks.append(text)
        return text

    def display(self, content: dict[str, Any]) -> str | None:
        """The plain text of what was shown; None of a picture, which has nothing to read."""
        self._forget_if_asked()
        data = content.get("data") or {}
        if name := (content.get("transient") or {}).get("display_id"):
            self._by_id[name] = len(self._displays)
        self._displays.append(data)
        if any(kind.startswith("image/") for kind in data):
            return None
        text = data.get("text/plain")
        return None if text is None else self.stream(str(text) + "\n")

    def update(self, content: dict[str, Any]) -> None:
        name = (content.get("transient") or {}).get("display_id")
        if name in self._by_id:
            self._displays[self._by_id[name]] = content.get("data") or {}

    def clear(self, *, wait: bool) -> None:
        self._clear_next = True
        if not wait:
            self._forget_if_asked()

    def result(self) -> ExecutionResult:
        text = "".join(self._chunks).strip()
        return ExecutionResult(text or None, self._saved(), self._displays)

    def _forget_if_asked(self) -> None:
        if self._clear_next:
            self._clear_next = False
            self._chunks.clear()
            self._displays.clear()
            self._by_id.clear()

    def _saved(self) -> list[Path]:
        """The pictures, written to files of their own. Of one that comes in several kinds, the
        first is kept: they are the same picture."""
        found: list[Path] = []
        for data in self._displays:
            for kind, suffix in _SUFFIXES.items():
                content = data.get(kind)
                if not isinstance(content, str):
                    continue
                try:
                    raw = (
                        content.encode()
                        if "svg" in kind
                        else base64.b64decode(content, validate=False)
                    )
                except (ValueError, binascii.Error):
                    continue  # a library's mistake; the display still has it
                self._images_dir.mkdir(parents=True, exist_ok=True)
                path = self._images_dir / f"{uuid.uuid4().hex[:8]}{suffix}"
                path.write_bytes(raw)
                found.append(path)
                break
        return found


def error_of(content: dict[str, Any], result: ExecutionResult) -> ExecutionError:
    """The error that a kernel replied with; its text is the traceback without colours."""
    ename, evalue = str(content.get("ename", "")), str(content.get("evalue", ""))
    lines = [_COLOURS.sub("", str(line)) for line in content.get("traceback") or ()]
    text = "\n".join(lines) or f"{ename}: {evalue}"
    if ename not in text:
        text = f"{text}\n{ename}: {evalue}"
    kind = KernelDied if ename == "KernelDied" else ExecutionError
    return kind(text, ename=ename, evalue=evalue, result=result)
