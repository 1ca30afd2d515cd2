"""Host tools: functions of the caller that code in a kernel can call, each call approved or not.

In the kernel a tool is an ordinary function of the module ``tools``. Calling it asks the client a
question, over the way that ``input()`` takes: no network, and nothing happens unless the client
answers. Who may call what is decided here, in the caller's process; whatever code in the kernel
makes up, it can ask for registered tools only, and never for their approval.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from inspect import Signature
from typing import Any

from kernelbox.gateway import apart
from kernelbox.gateway.signatures import ANYTHING, bind, is_name, signature_of
from kernelbox.inside.host_tools import MARK

Approve = Callable[["ApprovalRequest"], "Awaitable[object] | object"]
"""Decides about a call: by the request's methods, now or later, or by returning a bool."""

_NAME_SHOWN = 100
_NUMBER_SHOWN = 100


class ToolRejected(Exception):
    """The caller did not approve of a call; in the kernel it is a ``PermissionError``."""


@dataclass
class ApprovalRequest:
    """A call that waits for a word of the caller: ``accept()``, also with other ``arguments``, or
    ``reject()``. The first word counts; it may come from any thread, and any time later."""

    tool: str
    arguments: dict[str, Any]
    _answer: asyncio.Future[dict[str, Any]] = field(repr=False)
    _word: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def accept(self, arguments: Mapping[str, Any] | None = None) -> None:
        """Have the tool run, with ``arguments`` in place of those the code gave."""
        chosen = dict(self.arguments if arguments is None else arguments)
        self._decide(lambda: self._answer.set_result(chosen))

    def reject(self, reason: str = "the caller did not approve of it") -> None:
        """Refuse: the code gets a ``PermissionError`` with this reason."""
        self._decide(lambda: self._answer.set_exception(ToolRejected(reason)))

    @property
    def answered(self) -> bool:
        """Whether there has been a word, or nobody waits for it any more."""
        return self._word.locked() or self._answer.done()

    async def response(self) -> dict[str, Any]:
        """The arguments that were approved, when somebody has decided."""
        return await self._answer

    def _decide(self, say: Callable[[], None]) -> None:
        if not self._word.acquire(blocking=False):
            return  # never released: there is one word

        def unless_nobody_waits() -> None:
            if not self._answer.done():
                say()

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._answer.get_loop().call_soon_threadsafe(unless_nobody_waits)


@dataclass(frozen=True)
class Tool:
    """A function that kernels may ask for; one of a ``group`` is called ``group.name``."""

    name: str
    call: Callable[..., Any]
    signature: Signature = ANYTHING
    doc: str = ""

    @classmethod
    def of(cls, function: Callable[..., Any], name: str | None = None) -> Tool:
        """A Python callable, with the signature and the documentation that it has."""
        if not callable(function):
            raise TypeError(f"a tool is a function, not {type(function).__name__}")
        chosen = str(name or getattr(function, "__name__", ""))
        check_name(chosen)
        return cls(chosen, function, signature_of(function), inspect.getdoc(function) or "")

    @property
    def group(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def own_name(self) -> str:
        return self.name.rpartition(".")[2]


def check_name(name: str) -> None:
    """Of a function in the module ``tools``, beside what that module needs itself."""
    if not is_name(name) or name.startswith("_"):
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
            raise ValueError(f"there are two tools named {made.name!r}; give one another name")
        found[made.name] = made
    return found


def is_call(prompt: str) -> bool:
    return prompt.startswith(MARK)


class Desk:
    """Takes the calls of one client's kernel; without ``approve`` all of its tools are approved."""

    def __init__(self, tools: Mapping[str, Tool], approve: Approve | None) -> None:
        self.tools = tools
        self._approve = approve

    async def answer(
        self,
        prompt: str,
        *,
        thinking: Callable[[], AbstractContextManager[object]],
        show: Callable[[ApprovalRequest], None] | None = None,
    ) -> str:
        """What the kernel is told about its call. ``thinking`` is entered while somebody decides;
        ``show`` is given the request, if whoever sees it there is to decide."""
        call = _Call()
        try:
            call = _read(prompt)
            tool = self.tools.get(call.name)
            if tool is None:
                raise ToolRejected(f"there is no tool {call.name[:_NAME_SHOWN]!r}")
            # Nobody is asked about a call that could not be made.
            bind(tool.signature, call.arguments)
            arguments = call.arguments
            if show is not None or self._approve is not None:
                loop = asyncio.get_running_loop()
                request = ApprovalRequest(call.name, arguments, loop.create_future())
                with thinking():
                    if show is not None:
                        show(request)
                    elif self._approve is not None:
                        await _decide(self._approve, request)
                    arguments = await request.response()
            positional, named = bind(tool.signature, arguments)
        except ToolRejected as refusal:
            return call.problem("rejected", str(refusal))
        except TypeError as error:
            return call.problem("arguments", f"{call.name}(): {error}")
        except Exception as error:  # noqa: BLE001 - a cell that is not answered waits for ever
            return call.problem("rejected", f"it could not be approved: {words_of(error)}")
        return await _called(tool, positional, named, call)


@dataclass(frozen=True)
class _Call:
    """What a kernel asks for. Its answer carries its ``number``, so that it is no other call's."""

    name: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    number: str = ""

    def value(self, value: Any) -> str:
        return json.dumps({"number": self.number, "value": value})

    def problem(self, kind: str, message: str) -> str:
        return json.dumps({"number": self.number, "kind": kind, "message": message})


def _read(prompt: str) -> _Call:
    try:
        asked = json.loads(prompt.removeprefix(MARK))
        name, arguments = asked["tool"], asked["arguments"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ToolRejected("this is no call of a tool") from None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ToolRejected("this is no call of a tool")
    return _Call(name, arguments, str(asked.get("number", ""))[:_NUMBER_SHOWN])


async def _decide(approve: Approve, request: ApprovalRequest) -> None:
    """Ask whoever approves: on the loop if that is async, and otherwise in a thread, so that a
    person may take their time. They decide by what they return, or by the request, also later."""
    try:
        verdict = await apart.call(approve, request)
    except (ToolRejected, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise ToolRejected(f"it could not be approved: {words_of(error)}") from error
    if isinstance(verdict, bool):
        (request.accept if verdict else request.reject)()


async def _called(tool: Tool, positional: list[Any], named: dict[str, Any], call: _Call) -> str:
    try:
        value = await apart.call(tool.call, *positional, **named)
    except asyncio.CancelledError:
        raise  # nobody waits for the call any more; one that cancels itself is Abandoned
    except BaseException as error:  # noqa: BLE001 - it is the kernel's to hear of, sys.exit() too
        return call.problem("failed", words_of(error))
    try:
        return call.value(value)
    except Exception:  # noqa: BLE001 - whatever its own methods raise
        pass
    try:
        return call.value(str(value))
    except Exception as error:  # noqa: BLE001
        words = f"its value, of {type(value).__name__}, is no JSON and has no text"
        return call.problem("failed", f"{words}: {words_of(error)}")


def words_of(error: BaseException) -> str:
    """An error in words, also if it has none to say."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001
        return type(error).__name__
