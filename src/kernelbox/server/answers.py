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


def to_json(value: object) -> bytes:
    """A value, or a dataclass, as JSON that every client can read: NaN, which a display may hold,
    becomes null."""
    try:
        text = _encode(value)
    except ValueError:
        text = _encode(_finite(value))
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


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return _finite(_fields(value))
    return value
