"""What goes back: plain values as ready JSON bytes, with the headers that every answer has."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from kernelbox.result import ExecutionResult


def _fields(value: Any) -> dict[str, Any]:
    """A dataclass as its fields, without the copies that ``asdict`` makes."""
    if isinstance(value, ExecutionResult):
        first = {name: getattr(value, name) for name in ("status", "output", "return_value")}
        return first | {name: getattr(value, name) for name in value.__dataclass_fields__}
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


# ASCII, so that lone surrogates in a cell's output survive.
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_fields).encode
_HEADERS = {"x-content-type-options": "nosniff", "cache-control": "no-store"}


_DEEPEST = 100
_TOO_DEEP = "[not shown: it is nested too deeply]"


def to_json(value: object) -> bytes:
    """A value, or a dataclass, as JSON that every client can read: of what a display may hold, NaN
    becomes null, and what is nested without end is cut."""
    try:
        text = _encode(value)
    except (ValueError, RecursionError):
        text = _encode(_readable(value, _DEEPEST))
    return text.encode("ascii")


def answer(
    content: object, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON response."""
    return Response(
        to_json(content),
        status_code=status,
        headers={**_HEADERS, **headers} if headers else _HEADERS,
        media_type="application/json",
    )


def _readable(value: Any, depth: int) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "__dataclass_fields__"):
        value = _fields(value)
    if isinstance(value, dict | list | tuple) and depth == 0:
        return _TOO_DEEP
    if isinstance(value, dict):
        return {name: _readable(item, depth - 1) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_readable(item, depth - 1) for item in value]
    return value
