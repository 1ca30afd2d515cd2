"""Signatures from JSON schemas: what an MCP server says its tools take, as a function has it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from inspect import Parameter, Signature
from typing import Any

from kernelbox.gateway.signatures import ANYTHING, is_name

_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "array": "list[Any]",
    "object": "dict[str, Any]",
}
_DEEPEST = 5


def signature_from(schema: Mapping[str, Any], returns: Mapping[str, Any] | None) -> Signature:
    """Required parameters first. One that may be left out and has no default is ``...``: then it
    is not sent."""
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    if not all(map(is_name, properties)):
        return ANYTHING.replace(return_annotation=_returned(returns))
    required = set(schema.get("required") or ())
    parameters = [
        Parameter(
            name,
            Parameter.POSITIONAL_OR_KEYWORD,
            default=Parameter.empty if name in required else _default(inner),
            annotation=annotation_from(inner, schema),
        )
        for name, inner in sorted(properties.items(), key=lambda item: item[0] not in required)
    ]
    return Signature(parameters, return_annotation=_returned(returns))


def annotation_from(schema: Any, whole: Mapping[str, Any], depth: int = 0) -> str:
    """A type as it is written in Python; ``Any`` for what has no name there."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return "Any"
    if reference := schema.get("$ref"):
        return annotation_from(_referred(str(reference), whole), whole, depth + 1)
    if isinstance(schema.get("enum"), list):
        return _literal(schema["enum"])
    if "const" in schema:
        return _literal([schema["const"]])
    for union in ("anyOf", "oneOf"):
        if isinstance(schema.get(union), list):
            return _union(annotation_from(one, whole, depth + 1) for one in schema[union])
    kind = schema.get("type")
    if isinstance(kind, list):
        return _union(_TYPES.get(str(one), "Any") for one in kind)
    if kind == "array" and "items" in schema:
        return f"list[{annotation_from(schema['items'], whole, depth + 1)}]"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"dict[str, {annotation_from(schema['additionalProperties'], whole, depth + 1)}]"
    return _TYPES.get(str(kind), "Any")


def wraps_result(schema: Mapping[str, Any] | None) -> bool:
    """Whether an answer is an object only because it has to be one: ``{"result": …}``."""
    return schema is not None and list(schema.get("properties") or ()) == ["result"]


def function_name(text: str, taken: Mapping[str, Any]) -> str:
    """A tool's name as that of a function; each its own."""
    name = re.sub(r"\W", "_", text).lstrip("_") or "tool"
    name = name if is_name(name) else f"tool_{name}"
    while name in taken:
        name += "_"
    return name


def _returned(schema: Mapping[str, Any] | None) -> str:
    if schema is None:
        return "Any"
    if wraps_result(schema):
        return annotation_from(schema["properties"]["result"], schema)
    return annotation_from(schema, schema)


def _default(schema: Any) -> Any:
    return schema["default"] if isinstance(schema, dict) and "default" in schema else ...


def _referred(reference: str, whole: Mapping[str, Any]) -> Any:
    found: Any = whole
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _literal(values: list[Any]) -> str:
    plain = [value for value in values if value is None or isinstance(value, bool | int | str)]
    if not plain or len(plain) < len(values):
        return "Any"
    # Through JSON, so that it is a value and nothing that only looks like one.
    return f"Literal[{', '.join(repr(json.loads(json.dumps(value))) for value in plain)}]"


def _union(kinds: Any) -> str:
    distinct = list(dict.fromkeys(kinds))
    return "Any" if "Any" in distinct or not distinct else " | ".join(distinct)
