"""``kernelbox audit``: what was written down of kernels, their executions and denials."""

from __future__ import annotations

import os
from argparse import Namespace
from collections import deque
from typing import Any

from kernelbox import audit as log
from kernelbox.cli import exits
from kernelbox.cli.printing import say, say_text
from kernelbox.config import Settings
from kernelbox.errors import BadInput

_FIRST = ("time", "event", "kernel")
_SELDOM = ("kernel_id", "warden", "keeper", "sha256", "code")


def audit(options: Namespace) -> int:
    """The latest events, of one kernel or kind if so wanted; the oldest first."""
    path = options.file or Settings.from_environment().audit_log
    if not path:
        raise BadInput(
            "nothing is audited: KERNELBOX_AUDIT_LOG is not set. Let it name a file, here and "
            "where kernels are made"
        )
    path = os.path.abspath(os.path.expanduser(path))
    latest: deque[dict[str, Any]] = deque(maxlen=max(options.lines, 0))
    try:
        for event in log.read(path):
            if _wanted(event, options.kernel, options.event):
                latest.append(event)
    except OSError as error:
        raise BadInput(f"the audit log {path} cannot be read: {error.strerror}") from None
    if options.human:
        say_text("".join(f"{_in_a_line(event)}\n" for event in latest) or "nothing was found\n")
    else:
        say({"path": path, "events": list(latest)})
    return exits.DONE


def _wanted(event: dict[str, Any], kernel: str | None, kind: str | None) -> bool:
    if kernel is not None and kernel not in (event.get("kernel"), event.get("kernel_id")):
        return False
    if kind is None:
        return True
    name = str(event.get("event") or "damaged")
    return name == kind or name.startswith(f"{kind}.")


def _in_a_line(event: dict[str, Any]) -> str:
    rest = {
        name: value
        for name, value in event.items()
        if name not in (*_FIRST, *_SELDOM) and value is not None
    }
    words = [str(event[name]) for name in _FIRST if event.get(name) is not None]
    words += [f"{name}={value}" for name, value in rest.items()]
    # What code can choose, such as a domain, must not move the cursor of who reads it.
    return "".join(c if c.isprintable() else "?" for c in "  ".join(words))
