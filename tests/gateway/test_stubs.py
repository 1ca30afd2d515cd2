"""What code in a kernel, and an agent that reads it, finds in the module ``tools``."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable
from inspect import Signature
from pathlib import Path
from typing import Any, Literal

import pytest

from kernelbox.gateway.schemas import function_name, signature_from
from kernelbox.gateway.signatures import bind, signature_of, stub_signature


class Unit:
    """A type that kernels do not have."""


def weather(city: str, unit: Literal["C", "F"] = "C", *, days: int | None = None) -> dict[str, Any]:
    """The weather in a city.

    One entry for each day.
    """
    return {}


def odd(path: Path, unit: Unit = Unit(), then: Callable[[int], str] | None = None) -> Unit:  # noqa: B008
    return unit


def anything(*args: int, **options: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (weather, "(city: str, unit: Literal['C', 'F'] = 'C', *, days: int | None = None) -> dict[str, Any]"),
        (odd, "(path: 'Path', unit: 'Unit' = ..., then: Callable[[int], str] | None = None) -> 'Unit'"),
        (anything, "(*args: int, **options: Any) -> None"),
        (lambda: None, "()"),
        (lambda a, /, b=0.5, *, c=float("inf"): None, "(a, /, b=0.5, *, c=...)"),
        (lambda a, /: None, "(a, /)"),
    ],
)  # fmt: skip
def test_a_signature_is_written_as_any_kernel_can_run_it(function: Any, text: str) -> None:
    # As a module with postponed annotations has them, and as one without.
    written = stub_signature(signature_of(function)).text
    evaluated = stub_signature(inspect.signature(function, eval_str=True)).text
    assert text in (written, evaluated)
    exec(f"from typing import *\ndef stub{written}: pass", {})


async def test_names_of_parameters_and_tools_stand_in_nobodys_way(connected: Any) -> None:
    def look(locals: str, _call: str = "b", _call_: str = "c", *, dict: str = "d") -> str:
        return locals + _call + _call_ + dict

    def list(str: str = "e") -> builtins.list[builtins.str]:
        return [str]

    def after(items: builtins.list[int] | None = None) -> builtins.list[int]:
        return items or []

    after.__annotations__ = {"items": "list[int] | None", "return": "list[int]"}
    tools = {"look": look, "list": list, "after": after, "locals": list}
    async with connected(tools=tools) as client:
        await client.execute("import tools")
        assert (await client.execute("print(tools.look('a'), tools.look('a', dict='f'))")).text == (
            "abcd abcf"
        )
        code = "print(tools.list(), tools.locals(str='g'), tools.after([1]))"
        assert (await client.execute(code)).text == "['e'] ['g'] [1]"


def test_arguments_by_name_find_their_parameters() -> None:
    def many(a: int, /, b: int = 1, *rest: int, c: int = 2, **more: int) -> None: ...

    signature = signature_of(many)
    assert bind(signature, {"a": 1}) == ([1], {})
    assert bind(signature, {"a": 1, "c": 3}) == ([1], {"c": 3})
    given = {"a": 1, "b": 2, "rest": [3, 4], "c": 5, "d": 6}
    assert bind(signature, given) == ([1, 2, 3, 4], {"c": 5, "d": 6})
    for bad in ({}, {"b": 1}, {"a": 1, "rest": [2]}, {"a": 1, "rest": 2}):
        with pytest.raises(TypeError):
            bind(signature, bad)


SCHEMA = {
    "type": "object",
    "properties": {
        "limit": {"type": "integer", "default": 10},
        "query": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "kind": {"enum": ["a", "b"]},
        "where": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}], "default": None},
        "counts": {"type": "object", "additionalProperties": {"type": "number"}},
        "whatever": {},
    },
    "required": ["query", "kind"],
    "$defs": {"Place": {"type": "object"}},
}


def test_a_schema_becomes_a_signature() -> None:
    assert stub_signature(signature_from(SCHEMA, {"type": "object"})).text == (
        "(query: str, kind: Literal['a', 'b'], limit: int = 10, tags: list[str] = ..., "
        "where: dict[str, Any] | None = None, counts: dict[str, float] = ..., "
        "whatever: Any = ...) -> dict[str, Any]"
    )


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"properties": {"not-a-name": {"type": "string"}}},
        {"properties": {"class": {}}},
        {"properties": None, "required": None},
        {"properties": {"x": {"$ref": "#/$defs/X"}}, "$defs": {"X": {"$ref": "#/$defs/X"}}},
        {"properties": {"x": {"enum": ["'] + __import__('os').system('id') + ['"]}}},
        {"properties": {"x": {"type": "exec", "default": '"""\n'}}},
        {"properties": {"x": True, "y": []}},
        {"properties": {"x": {"anyOf": []}}},
    ],
)
def test_any_schema_becomes_a_signature_that_runs(schema: dict[str, Any]) -> None:
    signature = signature_from(schema, None)
    assert isinstance(signature, Signature)
    exec(f"from typing import *\ndef stub{stub_signature(signature).text}: pass", {})


def test_any_name_becomes_that_of_a_function() -> None:
    assert function_name("get-weather", {}) == "get_weather"
    assert function_name("get_weather", {"get_weather": 1}) == "get_weather_"
    assert function_name("class", {}) == "tool_class"
    assert function_name("__class__", {}).isidentifier()
    assert function_name("3d", {}) == "tool_3d"
    assert function_name("", {}) == "tool"


async def test_a_kernel_can_look_at_its_tools(connected: Any) -> None:
    async with connected(tools=[weather, odd, anything]) as client:
        await client.execute("import inspect, tools")
        signature = await client.execute("print(inspect.signature(tools.weather))")
        assert (signature.text or "").replace("typing.", "") == (
            "(city: str, unit: Literal['C', 'F'] = 'C', *, days: int | None = None)"
            " -> dict[str, Any]"
        )
        helped = await client.execute("help(tools.weather)")
        assert "The weather in a city." in helped.text
        assert "weather(city: str" in helped.text
        source = await client.execute("print(inspect.getsource(tools.weather))")
        assert source.text.startswith("def weather(city: str")
        assert "One entry for each day." in source.text
        documented = await client.execute("print(inspect.getdoc(tools.weather))")
        assert documented.text == inspect.getdoc(weather)
        names = await client.execute("print(tools.__all__)")
        assert names.text == "['anything', 'odd', 'weather']"
        completed = await client.execute("print(get_ipython().complete('tools.wea')[1])")
        assert "weather" in completed.text
        asked = await client.execute("tools.weather?")
        assert asked.text is None or "weather" in asked.text


async def test_a_star_import_brings_the_tools_and_nothing_else(connected: Any) -> None:
    async with connected(tools=[weather]) as client:
        code = "before = set(globals())\nfrom tools import *\nprint(set(globals()) - before - {'before'})"
        assert (await client.execute(code)).text == "{'weather'}"
