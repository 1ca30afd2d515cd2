"""The signatures of tools: as text for a stub in the kernel, and back from arguments by name."""

from __future__ import annotations

import inspect
import keyword
import math
import re
import typing
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any

NAMES = ("Any", "Callable", "Literal", "Optional", "Union")
"""What stubs import from ``typing``, for their annotations."""

_WORD = re.compile(r"\w+")
_KNOWN = {name: getattr(typing, name) for name in NAMES}


@dataclass(frozen=True)
class StubSignature:
    """A signature as it is written in a stub; ``more`` is the parameter that takes any names."""

    text: str
    more: str | None = None


ANYTHING = Signature([Parameter("arguments", Parameter.VAR_KEYWORD)])
"""Of a function that does not say what it takes."""


def signature_of(function: Callable[..., Any]) -> Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return ANYTHING


def stub_signature(signature: Signature, others: Set[str] = frozenset()) -> StubSignature:
    """As text that any kernel can run: it need not have the caller's classes and values, and names
    of ``others`` are functions there: ``list`` may be one."""
    parts: list[str] = []
    more = None
    before = None
    for parameter in signature.parameters.values():
        if before is Parameter.POSITIONAL_ONLY and parameter.kind is not before:
            parts.append("/")
        starred = before in (Parameter.VAR_POSITIONAL, Parameter.KEYWORD_ONLY)
        if parameter.kind is Parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
        if parameter.kind is Parameter.VAR_KEYWORD:
            more = parameter.name
        parts.append(_parameter(parameter, others))
        before = parameter.kind
    if before is Parameter.POSITIONAL_ONLY:
        parts.append("/")
    returns = ""
    if signature.return_annotation is not Signature.empty:
        returns = f" -> {annotation_text(signature.return_annotation, others)}"
    return StubSignature(f"({', '.join(parts)}){returns}", more)


def _parameter(parameter: Parameter, others: Set[str]) -> str:
    text: str = parameter.name
    if parameter.kind is Parameter.VAR_POSITIONAL:
        text = f"*{text}"
    elif parameter.kind is Parameter.VAR_KEYWORD:
        text = f"**{text}"
    annotated = parameter.annotation is not Parameter.empty
    if annotated:
        text += f": {annotation_text(parameter.annotation, others)}"
    if parameter.default is not Parameter.empty:
        default = parameter.default
        plain = default is None or type(default) in (bool, int, str)
        plain = plain or (type(default) is float and math.isfinite(default))
        equals = " = " if annotated else "="
        # Of others, the caller's own default counts: the stub does not send what is `...`.
        text += f"{equals}{default!r}" if plain else f"{equals}..."
    return text


def annotation_text(annotation: Any, others: Set[str] = frozenset()) -> str:
    """As it reads in a program; a name that the stub does not have becomes a string."""
    if isinstance(annotation, str):
        text = annotation
    elif isinstance(annotation, type) and not typing.get_args(annotation):
        text = annotation.__name__
    else:
        text = str(annotation).replace("typing.", "").replace("collections.abc.", "")
    if not others.isdisjoint(_WORD.findall(text)):
        return repr(text)
    try:
        # Our own function's annotation, in our own process: nothing that a kernel said.
        eval(text, {"__builtins__": __builtins__}, dict(_KNOWN))
    except Exception:  # noqa: BLE001 - whatever it needs, the stub would need it too
        return repr(text)
    return text


def bind(signature: Signature, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and named arguments for a call; ``TypeError`` if they do not fit."""
    left = dict(arguments)
    positional: list[Any] = []
    by_position = True
    for parameter in signature.parameters.values():
        if parameter.kind is Parameter.VAR_POSITIONAL:
            rest = left.pop(parameter.name, [])
            if not isinstance(rest, list | tuple):
                raise TypeError(f"{parameter.name!r} is a list of arguments")
            if rest and not by_position:
                raise TypeError(f"{parameter.name!r} cannot follow an argument that is missing")
            positional.extend(rest)
        elif parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
            # One that was left out ends what can be given by position.
            by_position = by_position and parameter.name in left
            if by_position:
                positional.append(left.pop(parameter.name))
    signature.bind(*positional, **left)
    return positional, left


def is_name(text: str) -> bool:
    """Whether it can be a parameter or a function in a program."""
    return text.isidentifier() and not keyword.iskeyword(text)
