"""The kernel's side of host tools: modules of functions that ask the caller's process to run them.

A call is a question over the way that ``input()`` takes. Nothing here decides anything: whatever
code in the kernel makes of this module, the caller answers for registered tools only.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
import threading
import types
from collections.abc import Mapping
from typing import Any

MARK = "\0kernelbox-tool\0"
"""How a question that is a call begins: no prompt for a person does."""


class ToolError(RuntimeError):
    """A tool failed; the message is what it raised."""


def call(name: str, arguments: Mapping[str, Any], more: str | None = None) -> Any:
    """Have a tool run outside. ``more`` names the parameter that takes any further arguments;
    one that is ``...`` was not given, and the tool's own default counts."""
    from kernelbox.inside.shell import ask_input

    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            f"{name}() was called from a thread; tools can be called from the main thread only, "
            "where the cell runs"
        )
    given = {key: value for key, value in arguments.items() if value is not ... and key != more}
    if more is not None:
        given |= arguments[more]
    number = os.urandom(8).hex()
    try:
        question = json.dumps({"tool": name, "arguments": given, "number": number})
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"{name}() takes arguments that are JSON: {error}") from None
    answer = json.loads(ask_input(MARK + question))
    if answer.get("number") != number:
        # To a call that was interrupted: taken for this one's, it would be a result of something
        # that nobody has approved.
        raise ToolError(
            f"the answer to {name}() was lost: that to an earlier call, which was interrupted, "
            "came in its place. Whether the tool ran is not known"
        )
    if "value" in answer:
        return answer["value"]
    kinds = {"rejected": PermissionError, "arguments": TypeError}
    raise kinds.get(answer.get("kind"), ToolError)(answer.get("message", ""))


def install(sources: Mapping[str, str]) -> None:
    """Make modules from their source, which help() and inspect.getsource() then show."""
    for name, source in sources.items():
        module = types.ModuleType(name)
        file = f"<{name}>"
        module.__file__ = file
        if any(other.startswith(f"{name}.") for other in sources):
            module.__path__ = []
        # No time: linecache keeps what is no file.
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        # Not with our own postponed annotations: signatures are to show types.
        exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)
        sys.modules[name] = module
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, module)


def keep_folder(folder: str) -> None:
    """Every cell starts in this folder, wherever the one before has gone."""
    from IPython.core.getipython import get_ipython

    os.chdir(folder)

    def back(*_: object) -> None:
        try:
            os.chdir(folder)
        except OSError as error:
            print(f"the working folder {folder!r} is gone: {error.strerror}", file=sys.stderr)

    shell = get_ipython()
    if shell is not None:
        shell.events.register("post_run_cell", back)
