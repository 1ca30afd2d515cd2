"""``kernelbox logs``: what the keeper wrote, and all that an execution printed."""

from __future__ import annotations

import os
from argparse import Namespace
from dataclasses import asdict
from typing import Any

from kernelbox.box import Box
from kernelbox.cli import exits
from kernelbox.cli.parser import UsageError
from kernelbox.cli.printing import say, say_text
from kernelbox.config import Settings
from kernelbox.errors import ExecutionNotFound
from kernelbox.keeper.home import locate

_EVERYTHING = 1 << 62
_LONGEST_TAIL = 1 << 20


def logs(options: Namespace) -> int:
    if options.kernel is None:
        if options.execution is not None or options.search is not None:
            raise UsageError(
                "kernelbox logs: an execution belongs to a kernel; which one?",
                "kernelbox logs --name NAME --execution ID …",
            )
        return _keeper_logs(options)
    stream = "stderr" if options.stderr else "stdout"
    with Box() as box:
        execution_id = options.execution or _latest(box, options.kernel)
        facts: dict[str, Any] = {"execution_id": execution_id, "stream": stream}
        if options.search is not None:
            matches = box.search_output(
                options.kernel, execution_id, options.search, stream=stream, limit=options.limit
            )
            text = "".join(f"{match.line or '?'}: {match.text}\n" for match in matches)
            facts["matches"] = [asdict(match) for match in matches]
        else:
            length = _EVERYTHING if options.length is None else options.length
            page = box.output(
                options.kernel, execution_id, stream=stream, start=options.start, length=length
            )
            text = page.text
            facts |= asdict(page)
    if options.human:
        say_text(text)
    else:
        say(facts)
    return exits.DONE


def _latest(box: Box, kernel: str) -> str:
    """What runs now, or else what ran last."""
    status = box.status(kernel)
    found = [status["running"], *status["recent"]]
    for execution in filter(None, found):
        return str(execution["execution_id"])
    raise ExecutionNotFound("nothing has been run in this kernel yet")


def _keeper_logs(options: Namespace) -> int:
    found = home_logs(locate(Settings.from_environment()).rundir, options.lines)
    if options.human:
        for log in found:
            say_text(f"==> {log['path']} <==\n{log['text']}\n")
        if not found:
            say_text("nothing was logged: the keeper of this home has not complained\n")
    else:
        say({"logs": found})
    return exits.DONE


def home_logs(rundir: str, lines: int) -> list[dict[str, str]]:
    """The ends of all logs of a home, the keeper's first; empty ones are left out."""
    paths = []
    for folder, _, names in os.walk(rundir):
        paths += [os.path.join(folder, name) for name in names if name.endswith(".log")]
    found = []
    for path in sorted(paths, key=lambda path: (os.path.basename(path) != "keeper.log", path)):
        try:
            text = _tail(path, lines)
        except OSError:
            continue  # a keeper that ends takes its log along
        if text:
            source = os.path.splitext(os.path.basename(path))[0]
            found.append({"source": source, "path": path, "text": text})
    return found


def _tail(path: str, lines: int) -> str:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _LONGEST_TAIL))
        text = file.read().decode("utf-8", "replace")
    return "".join(text.splitlines(keepends=True)[-lines:]) if lines > 0 else ""
