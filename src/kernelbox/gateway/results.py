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
    - ``notes``: what went wrong beside the code, as a picture that could not be saved
    """

    text: str | None
    images: list[Path]
    outputs: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


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
    """The interpreter ended while the code ran, or before it could; the message says why. Its
    variables are gone. If only the interpreter died, the client goes on with a fresh one; if the
    kernel or the gateway did, ``reset()`` asks for a new kernel."""


class ConnectionLost(ExecutionError):
    """The connection broke while the code ran, and what it said then is lost. The kernel lives,
    with its variables, and the client is connected again: look there how far the code came."""


class Collected:
    """The output of one execution, as it comes in."""

    def __init__(self, images_dir: Path) -> None:
        self._images_dir = images_dir
        self._chunks: list[str] = []
        self._displays: list[dict[str, Any]] = []
        self._by_id: dict[str, list[int]] = {}
        self._clear_next = False
        self._line_is_open = False

    def stream(self, text: str) -> str:
        """What was printed, as it is to be read: what was shown before has a line of its own."""
        self._forget_if_asked()
        if self._line_is_open and not text.startswith("\n"):
            text = "\n" + text
        self._line_is_open = False
        self._chunks.append(text)
        return text

    def display(self, content: dict[str, Any]) -> str | None:
        """The plain text of what was shown, if it has any."""
        self._forget_if_asked()
        data = content.get("data") or {}
        if name := (content.get("transient") or {}).get("display_id"):
            self._by_id.setdefault(str(name), []).append(len(self._displays))
        self._displays.append(data)
        text = data.get("text/plain")
        if text is None:
            return None
        shown = self.stream(str(text))
        self._line_is_open = True
        return shown

    def update(self, content: dict[str, Any]) -> None:
        """What was shown under this name is now something else; its text was read already."""
        name = str((content.get("transient") or {}).get("display_id"))
        for index in self._by_id.get(name, ()):
            self._displays[index] = content.get("data") or {}

    def clear(self, *, wait: bool) -> None:
        self._clear_next = True
        if not wait:
            self._forget_if_asked()

    @property
    def has_pictures(self) -> bool:
        return any(kind in data for data in self._displays for kind in _SUFFIXES)

    def result(self) -> ExecutionResult:
        """All of it. Pictures are written to files here, which may take a moment."""
        text = "".join(self._chunks).strip() if self._chunks else None
        images: list[Path] = []
        notes: list[str] = []
        for data in self._displays:
            try:
                path = self._saved(data)
            except OSError as error:
                # Everything else is worth having all the same, and the picture is in outputs.
                notes.append(f"a picture could not be saved in {self._images_dir}: {error}")
                continue
            if path is not None:
                images.append(path)
        return ExecutionResult(text, images, list(self._displays), notes)

    def _forget_if_asked(self) -> None:
        if self._clear_next:
            self._clear_next = False
            self._line_is_open = False
            self._chunks.clear()
            self._displays.clear()
            self._by_id.clear()

    def _saved(self, data: dict[str, Any]) -> Path | None:
        """The file of a picture. Of one that comes in several kinds the first is kept: they are
        the same picture."""
        for kind, suffix in _SUFFIXES.items():
            content = data.get(kind)
            if not isinstance(content, str):
                continue
            try:
                raw = content.encode() if "svg" in kind else base64.b64decode(content)
            except (ValueError, binascii.Error):
                continue  # a library's mistake; the display still has it
            self._images_dir.mkdir(parents=True, exist_ok=True)
            path = self._images_dir / f"{uuid.uuid4().hex[:8]}{suffix}"
            path.write_bytes(raw)
            return path
        return None


def error_of(content: dict[str, Any], result: ExecutionResult) -> ExecutionError:
    """The error that a kernel replied with; its text is the traceback without colours."""
    ename, evalue = str(content.get("ename", "")), str(content.get("evalue", ""))
    lines = [_COLOURS.sub("", str(line)) for line in content.get("traceback") or ()]
    text = "\n".join(lines) or f"{ename}: {evalue}"
    if ename not in text:
        text = f"{text}\n{ename}: {evalue}"
    kind = KernelDied if ename == "KernelDied" else ExecutionError
    return kind(text, ename=ename, evalue=evalue, result=result)
