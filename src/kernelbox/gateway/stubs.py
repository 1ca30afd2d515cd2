"""The modules that stand for tools in a kernel, as source: typed, documented, easy to discover."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from kernelbox.gateway.signatures import NAMES, stub_signature
from kernelbox.gateway.tools import Tool

MODULE = "tools"

_HEAD = """{doc!r}

from typing import {names}

from kernelbox.inside.host_tools import ToolError, call as {call}

__all__ = {exported!r}
"""
_DOC = "Functions that run outside this kernel, in the process of whoever runs it, if they approve."


def installation(tools: Mapping[str, Tool], folder: str | None) -> str:
    """A program that prepares a kernel; empty if there is nothing to prepare."""
    steps: list[str] = []
    if tools:
        steps.append(f"install({modules(tools)!r})")
    if folder is not None:
        steps.append(f"keep_folder({folder!r})")
    # By expressions, so that no name is left among the user's.
    module = "__import__('kernelbox.inside.host_tools', fromlist=['install'])"
    return "\n".join(f"{module}.{step}" for step in steps)


def modules(tools: Mapping[str, Tool]) -> dict[str, str]:
    """The source of ``tools``, and of a module below it for each group of tools."""
    groups: dict[str, list[Tool]] = {}
    for tool in tools.values():
        groups.setdefault(tool.group, []).append(tool)
    own = groups.pop("", [])
    names = [*(tool.own_name for tool in own), *groups]
    found = {MODULE: _module(_DOC, own, names)}
    for group, members in groups.items():
        doc = (
            f"Functions of the MCP server {group!r}, which are called outside if that is approved."
        )
        found[f"{MODULE}.{group}"] = _module(doc, members, [tool.own_name for tool in members])
    return found


def _module(doc: str, tools: Iterable[Tool], exported: Iterable[str]) -> str:
    members, names = list(tools), set(exported)
    call = "_call"
    # Whatever parameters are called, their names are theirs.
    while any(call in tool.signature.parameters for tool in members):
        call += "_"
    head = _HEAD.format(doc=doc, names=", ".join(NAMES), exported=sorted(names), call=call)
    return "\n\n".join([head, *(_function(tool, call, names) for tool in members)])


def _function(tool: Tool, call: str, others: Set[str]) -> str:
    signature = stub_signature(tool.signature, others)
    doc = tool.doc or f"Calls {tool.name} in the process of whoever runs this kernel."
    # No function of Python's is needed here: a parameter, or another tool, may have its name.
    given = ", ".join(f"{name!r}: {name}" for name in tool.signature.parameters)
    return (
        f"def {tool.own_name}{signature.text}:\n"
        f"    {_docstring(doc)}\n"
        f"    return {call}({tool.name!r}, {{{given}}}, {signature.more!r})\n"
    )


def _docstring(text: str) -> str:
    """As people write it, if it can be written so: getsource() is read by agents."""
    plain = "\\" not in text and '"""' not in text and not text.endswith('"')
    if not plain or not text.replace("\n", "").isprintable():
        return repr(text)
    return '"""' + text.replace("\n", "\n    ") + '"""'
