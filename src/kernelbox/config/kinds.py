"""The kinds of settings that there are: numbers, seconds, choices, paths, lists of words."""

from __future__ import annotations

import sys
from typing import Any

from kernelbox.config.variables import Kind


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_seconds(value: object, *, zero: bool) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    # Not "below infinity": a whole number can be that and still be more than a float holds.
    return (value >= 0 if zero else value > 0) and value <= sys.float_info.max


def is_text(value: object) -> bool:
    return isinstance(value, str) and value != "" and "\0" not in value


def whole(least: int, most: int | None = None) -> Kind:
    def fits(value: Any) -> bool:
        return is_whole(value) and least <= value and (most is None or value <= most)

    to = "on" if most is None else f"to {most}"
    return Kind(f"a whole number from {least} {to}", int, fits)


def seconds(*, zero: bool) -> Kind:
    takes = "a number of seconds, 0 or more" if zero else "a number of seconds above 0"
    return Kind(takes, float, lambda value: is_seconds(value, zero=zero))


def choice(*options: str) -> Kind:
    return Kind("one of " + ", ".join(options), str, lambda value: value in options)


def text(takes: str) -> Kind:
    """Any text but an empty one."""
    return Kind(takes, str, is_text)


def text_if_any(takes: str) -> Kind:
    """As :func:`text`, or nothing: None."""
    return Kind(
        takes,
        lambda text: text or None,
        lambda value: value in (None, "") or is_text(value),
    )


def words(takes: str) -> Kind:
    """A list of words with commas or spaces between them."""
    return Kind(
        f"a list of {takes}",
        split,
        lambda value: isinstance(value, tuple) and all(map(is_text, value)),
    )


def split(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())
