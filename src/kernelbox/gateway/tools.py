"""Host tools: functions of the caller that code in a kernel can call, each call approved or not.

In the kernel a tool is an ordinary function of the module ``tools``. Calling it asks the client a
question, over the way that ``input()`` takes: no network, and nothing happens unless the client
answers. Who may call what is decided here, in the caller's process; whatever code in the kernel
makes up, it can ask for registered tools only, and never for their approval.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import keyword
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

MARK = "\0kernelbox-tool\0"
"""How a question that is a tool call begins: no prompt for a person does."""

Approve = Callable[["ApprovalRequest"], "Awaitable[object] | object"]


class ToolRejected(Exception):
    """The caller did not approve of a call; in the kernel it is a ``PermissionError``."""


@dataclass
class ApprovalRequest:
    """A call that waits for a word of the caller: ``accept()``, also with other ``arguments``, or
    ``reject()``. The first word counts."""

    tool: str
    arguments: dict[str, Any]
    _answer: asyncio.Future[dict[str, Any]] = field(repr=False)

    def accept(self, arguments: Mapping[str, Any] | None = None) -> None:
        """Have the tool run, with ``arguments`` in place of those the code gave."""
        if not self._answer.done():
            self._answer.set_result(dict(self.arguments if arguments is None else arguments))

    def reject(self, reason: str = "the caller did not approve of it") -> None:
        """Refuse: the code gets a ``PermissionError`` with this reason."""
        if not self._answer.done():
            self._answer.set_exception(ToolRejected(reason))

    @property
    def answered(self) -> bool:
        return self._answer.done()

    async def response(self) -> dict[str, Any]:
        """The arguments that were approved, when somebody has decided."""
        return await self._answer


@dataclass(frozen=True)
class Tool:
    """A function that kernels may ask for."""

    name: str
    call: Callable[..., Any]
    signature: str = "(**arguments)"
    doc: str = ""

    @classmethod
    def of(cls, function: Callable[..., Any], name: str | None = None) -> Tool:
        """A Python callable, with the signature and the documentation that it has."""
        chosen = str(name or getattr(function, "__name__", ""))
        check_name(chosen)
        return cls(chosen, function, _signature(function), inspect.getdoc(function) or "")


def check_name(name: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise ValueError(
            f"{name!r} cannot be called as a function; give the tool a name: {{'search': function}}"
        )


Tools = Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any] | Tool]


def collect(tools: Tools) -> dict[str, Tool]:
    """The tools by name; two of one name are refused."""
    found: dict[str, Tool] = {}
    pairs = tools.items() if isinstance(tools, Mapping) else ((None, tool) for tool in tools)
    for name, tool in pairs:
        made = tool if isinstance(tool, Tool) else Tool.of(tool, name)
        if made.name in found:
            raise ValueError(f"there are two tools named {made.name!r}")
        found[made.name] = made
    return found


def stubs(tools: Mapping[str, Tool]) -> str:
    """A program that makes the module ``tools`` in a kernel."""
    return _PROGRAM.replace("SOURCE", repr(_module(tools)))


def _module(tools: Mapping[str, Tool]) -> str:
    lines = [_HEAD.format(names=sorted(tools), mark=MARK)]
    for tool in tools.values():
        doc = repr(tool.doc or f"Calls {tool.name} in the process of whoever runs this kernel.")
        body = f"    {doc}\n    return _call({tool.name!r}, locals())\n"
        lines.append(f"def {tool.name}{tool.signature}:\n{body}")
    return "\n\n".join(lines)


_HEAD = '''"""Functions that run outside, with whoever runs this kernel, if they approve."""

from __future__ import annotations

import json as _json
from typing import Any

__all__ = {names!r}


class ToolError(RuntimeError):
    """A tool raised an error."""


def _call(name, arguments):
    try:
        from kernelbox.inside.shell import ask_input as ask
    except ImportError:
        ask = input
    if list(arguments) == ["arguments"] and isinstance(arguments["arguments"], dict):
        arguments = arguments["arguments"]  # of a function that takes them as they come
    try:
        question = _json.dumps({{"tool": name, "arguments": arguments}})
    except (TypeError, ValueError) as error:
        raise TypeError(f"{{name}}() takes arguments that are JSON: {{error}}") from None
    answer = _json.loads(ask({mark!r} + question))
    if "value" in answer:
        return answer["value"]
    kinds = {{"rejected": PermissionError, "arguments": TypeError}}
    raise kinds.get(answer.get("kind"), ToolError)(answer.get("message", ""))
'''

# In a module that has a source, so that help() and inspect.getsource() show what an agent can call.
_PROGRAM = """
def _install(source):
    import linecache, sys, types
    module = types.ModuleType("tools")
    module.__file__ = "<tools>"
    linecache.cache["<tools>"] = (len(source), None, source.splitlines(True), "<tools>")
    exec(compile(source, "<tools>", "exec"), module.__dict__)
    sys.modules["tools"] = module
_install(SOURCE)
del _install
"""


def _signature(function: Callable[..., Any]) -> str:
    """As text, with names of types only: the kernel need not have the caller's classes."""
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):
        return "(**arguments)"
    parts: list[str] = []
    keyword_only = False
    for parameter in found.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            return "(**arguments)"  # which call by name cannot have
        if parameter.kind is parameter.VAR_KEYWORD:
            return "(**arguments)"
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            parts.append("*")
        text = parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {_annotation(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            default = parameter.default
            plain = default is None or isinstance(default, bool | int | float | str)
            text += f" = {default!r}" if plain else " = ..."
            if not plain:
                return "(**arguments)"  # the caller's own default counts, so it must not be sent
        parts.append(text)
    returns = ""
    if found.return_annotation is not found.empty:
        returns = f" -> {_annotation(found.return_annotation)}"
    return f"({', '.join(parts)}){returns}"


def _annotation(annotation: Any) -> str:
    """As it reads in a program; the kernel never evaluates it."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        text = annotation.__name__
    else:
        text = str(annotation).replace("typing.", "")
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return repr(text)
    return text


class Desk:
    """Takes the calls of one client's kernel."""

    def __init__(self, tools: Mapping[str, Tool], approve: Approve | None) -> None:
        self.tools = tools
        self._approve = approve

    @staticmethod
    def is_call(prompt: str) -> bool:
        return prompt.startswith(MARK)

    async def answer(self, prompt: str) -> str:
        """What the kernel is told about its call."""
        try:
            asked = json.loads(prompt.removeprefix(MARK))
            name, arguments = asked["tool"], asked["arguments"]
            if not isinstance(name, str) or not isinstance(arguments, dict):
                raise TypeError("not a call")
        except (ValueError, KeyError, TypeError, RecursionError):
            return _problem("rejected", "this is no call of a tool")
        tool = self.tools.get(name)
        if tool is None:
            return _problem("rejected", f"there is no tool {name[:100]!r}")
        try:
            approved = await self._approved(name, arguments)
        except ToolRejected as refusal:
            return _problem("rejected", str(refusal))
        return await self._called(tool, approved)

    async def _approved(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._approve is None:
            return arguments
        request = ApprovalRequest(name, arguments, asyncio.get_running_loop().create_future())
        try:
            verdict = self._approve(request)
            if inspect.isawaitable(verdict):
                verdict = await verdict
        except ToolRejected:
            raise
        except Exception as error:
            raise ToolRejected(f"it could not be approved: {error}") from error
        if not request.answered and isinstance(verdict, bool):
            (request.accept if verdict else request.reject)()
        return await request.response()

    async def _called(self, tool: Tool, arguments: dict[str, Any]) -> str:
        try:
            if inspect.iscoroutinefunction(tool.call):
                value = await tool.call(**arguments)
            else:
                value = await asyncio.to_thread(tool.call, **arguments)
                if inspect.isawaitable(value):
                    value = await value
        except Exception as error:  # noqa: BLE001 - it is the kernel's to hear of
            kind = "arguments" if isinstance(error, TypeError) else "failed"
            return _problem(kind, f"{type(error).__name__}: {error}")
        try:
            return json.dumps({"value": value})
        except (TypeError, ValueError):
            return json.dumps({"value": str(value)})


def _problem(kind: str, message: str) -> str:
    return json.dumps({"kind": kind, "message": message})
