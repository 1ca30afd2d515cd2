"""What goes to standard output and standard error: one JSON value per line, whatever is in it."""

from __future__ import annotations

import json
import os
import sys
from typing import IO, Any


def json_line(value: Any) -> bytes:
    """A value as one line of UTF-8. It can always be written, and a JSON parser can read it."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:  # NaN and infinity are no JSON, though displays may hold them
        text = json.dumps(_without_nan(value), ensure_ascii=False, default=str)
    # A lone surrogate has no UTF-8. Its backslash form happens to be what JSON calls it.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def say(value: Any) -> None:
    """One JSON line on standard output."""
    write(sys.stdout, json_line(value))


def complain(value: dict[str, Any]) -> None:
    """One JSON line on standard error. That nobody can hear it must not hide why."""
    try:
        write(sys.stderr, json_line(value))
    except OSError:
        pass


def say_text(text: str, *, error: bool = False) -> None:
    """Raw text, for people; on standard error if it is one."""
    stream = sys.stderr if error else sys.stdout
    write(stream, text.encode("utf-8", "backslashreplace"))


def write(stream: IO[str] | None, data: bytes) -> None:
    """Bytes, at once. Not through the stream's encoding, which may be ASCII."""
    if stream is None:  # started with it closed
        return
    stream.flush()
    stream.buffer.write(data)  # type: ignore[attr-defined]
    stream.flush()


def abandon_output() -> None:
    """Nobody reads us any more: keep the interpreter from complaining of it when it ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(null, stream.fileno())
        except (AttributeError, ValueError):
            continue
    os.close(null)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {str(key): _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value
