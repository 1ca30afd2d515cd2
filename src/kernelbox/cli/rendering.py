"""What a cell put out, for people: text as it is, errors in colour, pictures where they can be."""

from __future__ import annotations

import os
import sys
from base64 import b64decode

from kernelbox.cli import images
from kernelbox.cli.colours import painted, traceback_lines, wanted_on
from kernelbox.cli.printing import say_text
from kernelbox.config import Settings
from kernelbox.result import ExecutionResult, OutputItem


class Rendering:
    """Writes items to the terminal as they come, and what there is to say in the end."""

    def __init__(self, settings: Settings) -> None:
        self._folder = os.path.join(os.path.dirname(settings.registry_path), "images")
        self._on_stdout = wanted_on(sys.stdout)
        self._on_stderr = wanted_on(sys.stderr)
        self._protocol = images.protocol_of(os.environ) if self._on_stdout else None

    def show_result(self, result: ExecutionResult, *, shown: bool = False) -> None:
        """All of it; ``shown``: its items were written when they came."""
        if not shown:
            for item in result.outputs:
                self.show_item(item)
        raised = [item.data.get("ename") for item in result.outputs if item.kind == "error"]
        # Why a cell was ended (a timeout, a crash) is not what the cell itself raised then.
        if result.error is not None and result.error.ename not in raised:
            self._complain(f"{result.error}\n", "bold red")
        if result.state != "kept":
            self._complain(f"state: {result.state}; {result.cause}\n", "yellow")
        for note in result.notes:
            self._complain(f"note: {note}\n", "dim")

    def show_item(self, item: OutputItem) -> None:
        if item.kind == "stream":
            say_text(item.text or "", error=item.name == "stderr")
        elif item.kind == "error":
            lines = item.data.get("traceback") or [item.text or ""]
            say_text(traceback_lines(lines, on=self._on_stderr), error=True)
        elif item.kind == "gap":
            self._complain(f"{item.text}\n", "yellow")
        elif item.kind != "clear_output":
            self._show_display(item)

    def _show_display(self, item: OutputItem) -> None:
        for mime, content in item.data.items():
            if mime.startswith("image/") and isinstance(content, str):
                try:
                    raw = content.encode() if "svg" in mime else b64decode(content)
                except ValueError:
                    continue  # a library's mistake; its text is still there
                self._show_image(mime, raw)
                return
        if item.text:
            say_text(f"{item.text}\n")

    def _show_image(self, mime: str, data: bytes) -> None:
        drawn = images.drawn(data, mime, self._protocol) if self._protocol else None
        if drawn is not None:
            say_text(drawn)
            return
        size = images.size_of(data)
        words = f"{mime} {size[0]}×{size[1]}" if size else mime
        try:
            say_text(f"[{words}, saved as {self._saved(mime, data)}]\n")
        except OSError as error:
            say_text(f"[{words}, which could not be saved: {error.strerror}]\n")

    def _saved(self, mime: str, data: bytes) -> str:
        """Under what it is, so that the same picture is one file however often it is shown."""
        from hashlib import sha256

        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        name = f"{sha256(data).hexdigest()[:16]}.{images.extension_of(mime)}"
        path = os.path.join(self._folder, name)
        with open(path, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(data)
        return path

    def _complain(self, text: str, colour: str) -> None:
        say_text(painted(text, colour, on=self._on_stderr), error=True)
